/* What products of one matrix and of many have in common: weights in 4 bits, and how work is dealt out. */
#ifndef SPANGATE_KERNELS_PRODUCT_H
#define SPANGATE_KERNELS_PRODUCT_H

#include "matrix.h"

namespace spg {

/* Weights of one task when there are so few rows that reading weights is the work. */
constexpr size_t kBytesPerTask = 128 * 1024;
/*
 * A product of fewer weights and rows than this is done at once. Waking a thread takes longer (25 microseconds, measured
 * on a virtual machine); one that waits awake takes its first task after half a microsecond, and two cores fetch weights
 * from the last cache twice as fast as one.
 */
constexpr double kSerialProducts = 1000000, kSerialProductsHeld = 30000;
/* How many tasks each thread should find when rows are few. */
constexpr int kTasksPerThread = 4;
/* Pairs in mx4 or e4m3 that a thread widens at a time: they stay in the second cache beside rows, and one row reads each but once. */
constexpr int kWidenedPairs = 2;

/* Weights in mx4 or e4m3, and memory of each thread for some pairs of them in b16; none: they are multiplied by as they are. */
struct Narrow {
  const MatrixView *weights;
  unsigned char *memory;
};

/* Packed rows by a matrix, and where the product goes. */
struct Product {
  const ProductTable &kernels;
  MatrixView matrix;
  Narrow narrow;
  PlainRows plain;
  PackedRows rows;
  ProductCall call;
  int panels;
};

static inline int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

/* The matrix as products see it: mx4 and e4m3 as b16, whose data come a few pairs at a time. */
static inline MatrixView wide_view(const MatrixView &matrix) {
  MatrixView view = matrix;
  if (!is_narrow(matrix)) return view;
  view.form = SPG_B16;
  view.data = nullptr;
  return view;
}

/* Memory in which threads widen pairs of the matrix, where it is in mx4 or e4m3. May throw std::bad_alloc. */
static inline Narrow narrow_of(spg_context &context, const MatrixView &stored) {
  if (!is_narrow(stored)) return {nullptr, nullptr};
  context.widened.reserve(context.threads->size() * kWidenedPairs * pair_bytes(wide_view(stored)) / sizeof(float));
  return {&stored, reinterpret_cast<unsigned char *>(context.widened.data())};
}

/* Multiplies packed rows by some pairs; those in mx4 and e4m3 are widened in this thread's memory before. */
static inline void multiply_range(const Product &product, const PackedRows &rows, const ProductRange &range, int thread) {
  const ProductTable &kernels = product.kernels;
  if (!product.narrow.weights) return kernels.multiply(product.matrix, rows, product.call, range);
  unsigned char *memory = product.narrow.memory + thread * kWidenedPairs * pair_bytes(product.matrix);
  MatrixView some = product.matrix;
  some.data = memory;
  for (int pair = range.firstPair; pair < range.endPair; pair += kWidenedPairs) {
    const int end = pair + kWidenedPairs < range.endPair ? pair + kWidenedPairs : range.endPair;
    kernels.widenPairs(*product.narrow.weights, pair, end, memory);
    some.firstPair = pair;
    kernels.multiply(some, rows, product.call, {pair, end, range.firstPanel, range.endPanel});
  }
}

}

#endif
