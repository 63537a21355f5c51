/* Weights that are packed once for the products of a context. */
#ifndef SPANGATE_KERNELS_MATRIX_H
#define SPANGATE_KERNELS_MATRIX_H

#include "memory.h"
#include "pool.h"
#include "products.h"

struct spg_matrix {
  ~spg_matrix() { spg::unmap_pages(memory, bytes); }

  spg_context *context = nullptr;
  spg::MatrixView view{};
  /* Of all numbers, then of scales and sums. */
  unsigned char *memory = nullptr;
  size_t bytes = 0;
};

namespace spg {

/* Rows of a caller's tensor, and where they go: output `first` and those after it, or every other panel of 16. */
struct MatrixRows {
  const void *weights;
  int type; /* spg_type */
  int first, count;
  bool everyOtherPanel;
};

/* Rows of blocks of MXFP4, and their scales; every rowStep-th row is taken. */
struct Mx4Rows {
  const uint8_t *blocks, *scales;
  int rowStep;
};

/* Rows of numbers in E4M3, and a scale for each `scaleInputs` of a row. */
struct E4m3Rows {
  const uint8_t *numbers;
  const float *scales;
  int scaleInputs;

  int scales_per_row(int inputs) const { return (inputs + scaleInputs - 1) / scaleInputs; }
};

/* Sets out a matrix of zeros. Returns an spg_status. */
int32_t lay_out_matrix(int form, int parts, int outputs, int inputs, spg_matrix &matrix);
/* The output that a row becomes. */
int output_of(const MatrixRows &rows, int row);
void fill_matrix(spg_matrix &matrix, const MatrixRows &rows);
/* `rows` says where they go; it has no weights. */
void fill_mx4(spg_matrix &matrix, const Mx4Rows &weights, const MatrixRows &rows);

void fill_e4m3(spg_matrix &matrix, const E4m3Rows &weights, const MatrixRows &rows);

/* What a caller asks of a product, or of a norm. */
struct ProductArguments {
  int32_t rows, xStride, parts, finish;
  float factor;
  int32_t outStride;
};
struct NormArguments {
  int32_t width, xStride, finish;
  float factor;
  int32_t outStride;
};
bool product_fits(const MatrixView &view, const ProductArguments &arguments);
bool norm_fits(const NormArguments &arguments);

/* The rows of one product, and the product itself, on the threads of a context. */
int32_t run_product(spg_context &context, const MatrixView &matrix, const PlainRows &plain, int rows, int parts,
                    const ProductCall &call);
/* Norms of rows, on the threads of a context. */
void run_norm(spg_context &context, const NormCall &call, int rows);

}

#endif
