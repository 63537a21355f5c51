/* The operations of a model's step, kept so that one call runs many of them. */
#ifndef SPANGATE_KERNELS_SEQUENCE_H
#define SPANGATE_KERNELS_SEQUENCE_H

#include <memory>
#include <vector>

#include "matrix.h"

namespace spg {

/* One operation. Numbers that it points to are the sequence's own, except for buffers, which come with each run. */
struct Operation {
  enum class Kind { kProduct, kNorm, kAttention } kind;
  /* Of the buffers of a run. */
  int xBuffer, outBuffer;
  /* Floats before the first number of x and of out. */
  size_t offset;
  /* Product: the matrix, and into how many numbers one of x is split. Norm: how many numbers. Attention: the layer. */
  const MatrixView *matrix;
  int parts, width, layer;
  /* As in PlainRows, ProductCall and NormCall. */
  size_t xStride, outStride;
  const float *norm, *bias;
  float normEps, factor;
  int finish;
  /* Attention. */
  const float *qNorm, *kNorm;
};

}

struct spg_sequence {
  spg_pool *pool = nullptr;
  std::vector<spg::Operation> operations;
  std::vector<std::unique_ptr<float[]>> copies;
};

#endif
