/* Sequences of operations: made once for a model, run in one call for a step's rows. */
#include "sequence.h"

#include <math.h>
#include <string.h>

#include <new>

namespace {

using namespace spg;

constexpr int kMostRows = 1 << 20;

bool is_buffer(int32_t buffer) {
  return buffer >= SPG_RESIDUAL && buffer <= SPG_LOGITS;
}

/* A copy that lives as long as the sequence; null of null. */
const float *keep(spg_sequence &sequence, const float *values, size_t count) {
  if (!values) return nullptr;
  sequence.copies.emplace_back(new float[count]);
  memcpy(sequence.copies.back().get(), values, count * sizeof(float));
  return sequence.copies.back().get();
}

/* Adds an operation whose arguments were checked; `complete` copies what it points to. */
template <class Complete>
int32_t add(spg_sequence &sequence, Operation operation, Complete complete) {
  try {
    complete(operation);
    sequence.operations.push_back(operation);
    return SPG_OK;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

int32_t run_operation(spg_pool &pool, const Operation &each, int32_t rows, float *const *buffers) {
  const float *x = buffers[each.xBuffer] + each.offset;
  float *out = buffers[each.outBuffer] + each.offset;
  if (each.kind == Operation::Kind::kAttention) {
    const LayerCall call{each.layer, x, each.xStride, each.qNorm, each.kNorm, out};
    run_write_kv(pool, call);
    run_choices(pool, call);
    run_attend(pool, call);
    return SPG_OK;
  }
  const PlainRows plain{x, each.xStride, nullptr, each.norm, each.normEps};
  if (each.kind == Operation::Kind::kNorm) {
    run_norm(*pool.context, {plain, each.width, each.finish == SPG_ADD, each.factor, out, each.outStride}, rows);
    return SPG_OK;
  }
  const ProductCall call{each.finish, out, each.outStride, each.bias, each.factor, nullptr, nullptr};
  return run_product(*pool.context, *each.matrix, plain, rows, each.parts, call);
}

}

extern "C" {

int32_t spg_sequence_open(spg_pool *pool, spg_sequence **out) {
  if (!pool || !out) return SPG_E_NULL;
  try {
    auto sequence = std::make_unique<spg_sequence>();
    sequence->pool = pool;
    *out = sequence.release();
    return SPG_OK;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

void spg_sequence_close(spg_sequence *sequence) {
  delete sequence;
}

int32_t spg_sequence_product(spg_sequence *sequence, const spg_matrix *matrix, int32_t x, int32_t x_stride,
                             const float *norm, float norm_eps, int32_t parts, int32_t finish, float factor,
                             const float *bias, int32_t out, int32_t out_stride) {
  if (!sequence || !matrix) return SPG_E_NULL;
  const MatrixView &view = matrix->view;
  const bool fits = is_buffer(x) && is_buffer(out) && x != out && matrix->context == sequence->pool->context;
  if (!fits || !product_fits(view, {1, x_stride, parts, finish, factor, out_stride})) return SPG_E_PRODUCT;
  Operation product{};
  product.kind = Operation::Kind::kProduct;
  product.xBuffer = x, product.outBuffer = out;
  product.matrix = &view;
  product.parts = parts;
  product.xStride = x_stride, product.outStride = out_stride;
  product.normEps = norm_eps, product.factor = factor;
  product.finish = finish;
  return add(*sequence, product, [&](Operation &each) {
    each.norm = keep(*sequence, norm, view.inputs);
    each.bias = keep(*sequence, bias, view.outputs);
  });
}

int32_t spg_sequence_norm(spg_sequence *sequence, int32_t x, int32_t offset, int32_t width, int32_t x_stride,
                          const float *norm, float norm_eps, int32_t finish, float factor, int32_t out,
                          int32_t out_stride) {
  if (!sequence || !norm) return SPG_E_NULL;
  const bool fits = is_buffer(x) && is_buffer(out) && offset >= 0 && width >= 1;
  if (!fits || !norm_fits({width, x_stride, finish, factor, out_stride})) return SPG_E_PRODUCT;
  Operation operation{};
  operation.kind = Operation::Kind::kNorm;
  operation.xBuffer = x, operation.outBuffer = out;
  operation.offset = offset;
  operation.width = width;
  operation.xStride = x_stride, operation.outStride = out_stride;
  operation.normEps = norm_eps, operation.factor = factor;
  operation.finish = finish;
  return add(*sequence, operation, [&](Operation &each) { each.norm = keep(*sequence, norm, width); });
}

int32_t spg_sequence_attention(spg_sequence *sequence, int32_t layer, const float *q_norm, const float *k_norm) {
  if (!sequence) return SPG_E_NULL;
  const PoolView &view = sequence->pool->view;
  if (layer < 0 || layer >= view.layers) return SPG_E_LAYER;
  Operation attention{};
  attention.kind = Operation::Kind::kAttention;
  attention.xBuffer = SPG_QKV, attention.outBuffer = SPG_ATTENTION;
  attention.layer = layer;
  attention.xStride = static_cast<size_t>(view.queryHeads + 2 * view.kvHeads) * view.headDim;
  return add(*sequence, attention, [&](Operation &each) {
    each.qNorm = keep(*sequence, q_norm, view.headDim);
    each.kNorm = keep(*sequence, k_norm, view.headDim);
  });
}

int32_t spg_sequence_run(spg_sequence *sequence, int32_t first, int32_t end, int32_t row_count, float *residual,
                         float *qkv, float *attention, float *branch, float *gated, float *logits) {
  if (!sequence || !residual || !qkv || !attention || !branch || !gated || !logits) return SPG_E_NULL;
  spg_pool &pool = *sequence->pool;
  const int32_t count = static_cast<int32_t>(sequence->operations.size());
  if (first < 0 || end < first || end > count) return SPG_E_LAYER;
  if (row_count < 1 || row_count > kMostRows) return SPG_E_ROWS;
  for (int32_t i = first; i < end; i++) {
    if (sequence->operations[i].kind != Operation::Kind::kAttention) continue;
    if (!pool.step.ready) return SPG_E_NO_STEP;
    if (row_count != pool.step.view.rows) return SPG_E_ROWS;
  }
  float *const buffers[] = {residual, qkv, attention, branch, gated, logits};
  int32_t status = SPG_OK;
  for (int32_t i = first; i < end && status == SPG_OK; i++) {
    status = run_operation(pool, sequence->operations[i], row_count, buffers);
  }
  return status;
}

}
