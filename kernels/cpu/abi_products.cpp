/* The C entry points of matrices and products: argument checks, then the work. */
#include <math.h>

#include <memory>
#include <new>

#include "matrix.h"

namespace {

using namespace spg;

constexpr int kMostRows = 1 << 20;
/* 2^100: a number that is 6 times as large is far from bfloat16's greatest. */
constexpr int kGreatestMx4Scale = 227;
constexpr float kGreatestE4m3Scale = 0x1p100f;

bool rows_fit(const MatrixView &view, const MatrixRows &rows) {
  if (rows.first < 0 || rows.count < 1 || rows.first >= view.outputs || rows.count > view.outputs) return false;
  return output_of(rows, rows.count - 1) < view.outputs;
}

}

namespace spg {

bool product_fits(const MatrixView &view, const ProductArguments &a) {
  const bool gates = is_gate(a.finish);
  if (a.rows < 1 || a.rows > kMostRows || a.xStride < view.inputs || a.parts < 1 || a.parts > 3) return false;
  if (a.finish < SPG_STORE || a.finish > SPG_CAP || !isfinite(a.factor)) return false;
  if (a.finish == SPG_CAP && a.factor <= 0) return false;
  if (gates && (view.outputs % kPairOutputs != 0 || a.factor != 1)) return false;
  return a.outStride >= (gates ? view.outputs / 2 : view.outputs);
}

bool norm_fits(const NormArguments &a) {
  if (a.width < 1 || a.xStride < a.width || a.outStride < a.width) return false;
  return (a.finish == SPG_STORE || a.finish == SPG_ADD) && isfinite(a.factor);
}

}

extern "C" {

int32_t spg_matrix_open(spg_context *context, int32_t form, int32_t parts, int32_t outputs, int32_t inputs,
                        spg_matrix **out) {
  if (!context || !out) return SPG_E_NULL;
  try {
    auto matrix = std::make_unique<spg_matrix>();
    matrix->context = context;
    const int32_t status = lay_out_matrix(form, parts, outputs, inputs, *matrix);
    if (status == SPG_OK) *out = matrix.release();
    return status;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

void spg_matrix_close(spg_matrix *matrix) {
  delete matrix;
}

int64_t spg_matrix_bytes(const spg_matrix *matrix) {
  return matrix ? static_cast<int64_t>(matrix->bytes) : 0;
}

int32_t spg_matrix_fill(spg_matrix *matrix, const void *weights, int32_t type, int32_t row_count, int32_t first_output,
                        int32_t every_other_panel) {
  if (!matrix || !weights) return SPG_E_NULL;
  if (type != SPG_FLOAT32 && type != SPG_FLOAT16 && type != SPG_BFLOAT16) return SPG_E_TYPE;
  const MatrixRows rows{weights, type, first_output, row_count, every_other_panel != 0};
  if (is_narrow(matrix->view) || !rows_fit(matrix->view, rows)) return SPG_E_MATRIX;
  try {
    fill_matrix(*matrix, rows);
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
  return SPG_OK;
}

int32_t spg_matrix_fill_e4m3(spg_matrix *matrix, const uint8_t *numbers, const float *scales, int32_t scale_inputs,
                             int32_t row_count, int32_t first_output, int32_t every_other_panel) {
  if (!matrix || !numbers || !scales) return SPG_E_NULL;
  const MatrixRows rows{nullptr, SPG_FLOAT32, first_output, row_count, every_other_panel != 0};
  const bool fits = scale_inputs >= 32 && scale_inputs % 32 == 0;
  if (matrix->view.form != SPG_E4M3 || !fits || !rows_fit(matrix->view, rows)) return SPG_E_MATRIX;
  const E4m3Rows weights{numbers, scales, scale_inputs};
  const size_t count = static_cast<size_t>(row_count) * weights.scales_per_row(matrix->view.inputs);
  for (size_t i = 0; i < count; i++) {
    if (!(fabsf(scales[i]) <= kGreatestE4m3Scale)) return SPG_E_MATRIX;
  }
  fill_e4m3(*matrix, weights, rows);
  return SPG_OK;
}

int32_t spg_matrix_fill_mx4(spg_matrix *matrix, const uint8_t *blocks, const uint8_t *scales, int32_t row_step,
                            int32_t row_count, int32_t first_output, int32_t every_other_panel) {
  if (!matrix || !blocks || !scales) return SPG_E_NULL;
  const MatrixView &view = matrix->view;
  const MatrixRows rows{nullptr, 0, first_output, row_count, every_other_panel != 0};
  if (view.form != SPG_MX4 || row_step < 1 || row_step > 2 || !rows_fit(view, rows)) return SPG_E_MATRIX;
  for (int32_t row = 0; row < row_count; row++) {
    const uint8_t *own = scales + static_cast<size_t>(row) * row_step * view.tiles;
    for (int tile = 0; tile < view.tiles; tile++) {
      if (own[tile] > kGreatestMx4Scale) return SPG_E_MATRIX;
    }
  }
  fill_mx4(*matrix, {blocks, scales, row_step}, rows);
  return SPG_OK;
}

int32_t spg_multiply(const spg_matrix *matrix, const float *x, int32_t row_count, int32_t x_stride,
                     const int32_t *x_rows, const float *norm, float norm_eps, int32_t parts, int32_t finish,
                     float factor, const float *bias, const float *row_factors, float *out, int32_t out_stride,
                     const int32_t *out_rows) {
  if (!matrix || !x || !out) return SPG_E_NULL;
  const MatrixView &view = matrix->view;
  if (!product_fits(view, {row_count, x_stride, parts, finish, factor, out_stride})) return SPG_E_PRODUCT;
  if ((out_rows || row_factors) && finish != SPG_ADD) return SPG_E_PRODUCT;
  for (int32_t i = 0; i < row_count; i++) {
    if (x_rows && (x_rows[i] < 0 || x_rows[i] >= kMostRows)) return SPG_E_PRODUCT;
    if (out_rows && (out_rows[i] < (i > 0 ? out_rows[i - 1] + 1 : 0) || out_rows[i] >= kMostRows)) return SPG_E_PRODUCT;
  }
  const PlainRows plain{x, static_cast<size_t>(x_stride), x_rows, norm, norm_eps};
  const ProductCall call{finish, out, static_cast<size_t>(out_stride), bias, factor, out_rows, row_factors};
  return run_product(*matrix->context, view, plain, row_count, parts, call);
}

int32_t spg_norm_rows(spg_context *context, const float *x, int32_t row_count, int32_t width, int32_t x_stride,
                      const float *norm, float norm_eps, int32_t finish, float factor, float *out,
                      int32_t out_stride) {
  if (!context || !x || !norm || !out) return SPG_E_NULL;
  if (row_count < 1 || row_count > kMostRows) return SPG_E_PRODUCT;
  if (!norm_fits({width, x_stride, finish, factor, out_stride})) return SPG_E_PRODUCT;
  const PlainRows rows{x, static_cast<size_t>(x_stride), nullptr, norm, norm_eps};
  run_norm(*context, {rows, width, finish == SPG_ADD, factor, out, static_cast<size_t>(out_stride)}, row_count);
  return SPG_OK;
}

}
