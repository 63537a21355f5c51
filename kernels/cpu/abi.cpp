/* The C entry points: argument checks, then the kernel of the context's instruction set. */
#include "../abi.h"

#include <math.h>

#include <algorithm>
#include <memory>
#include <new>
#include <system_error>

#include "internal.h"
#include "pool.h"
#include "processor.h"

namespace {

using namespace spg;

/* Sets isa, kernels and products; false when this CPU or this build does not have them. */
bool choose_kernels(int32_t isa, spg_context &context) {
  context.isa = SPG_ISA_REFERENCE;
  context.products = reference_products();
  context.choose = reference_choose();
  if (isa == SPG_ISA_REFERENCE) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool takesAmx = isa == SPG_ISA_AUTO || isa == SPG_ISA_AMX;
  if (avx512 && (takesAmx || isa == SPG_ISA_AVX512 || isa == SPG_ISA_AVX512_PLAIN)) {
    const bool amx = takesAmx && amx_allowed();
    context.kernels = avx512_kernels();
    context.tileKernels = amx ? amx_kernels() : nullptr;
    context.isa = amx ? SPG_ISA_AMX : SPG_ISA_AVX512;
    const bool vnni = isa != SPG_ISA_AVX512_PLAIN && __builtin_cpu_supports("avx512vnni");
    context.products = amx ? amx_products() : vnni ? avx512vnni_products() : avx512_products();
    context.choose = vnni ? avx512vnni_choose() : avx512_choose();
    return amx || isa != SPG_ISA_AMX;
  }
  if (avx2 && (isa == SPG_ISA_AUTO || isa == SPG_ISA_AVX2 || isa == SPG_ISA_AVX2_PLAIN)) {
    context.isa = SPG_ISA_AVX2;
    context.kernels = avx2_kernels();
    const bool vnni = isa != SPG_ISA_AVX2_PLAIN && has_avx_vnni();
    context.products = vnni ? avxvnni_products() : avx2_products();
    context.choose = vnni ? avxvnni_choose() : avx2_choose();
    return true;
  }
#endif
  return isa == SPG_ISA_AUTO;
}

/*
 * AMX takes K and V apart before it multiplies, which takes as long as 6 queries take without it. Prompts gain by it, and
 * the few rows of a decode where many heads share K and V. What a row is, and not how many are beside it, says which kernels
 * attend for it, so no row's bits depend on the others. (Measured on an Intel Xeon: by AMX a decode of 6 heads takes twice
 * as long and one of 7 a sixth less; prompts take half as long or less with any number.)
 */
constexpr int kLeastTileGroup = 7;

Attender attender_of(const PoolView &view, Rows rows, const KernelTable *kernels) {
  Attender attender;
  attender.rows = rows;
  attender.kernels = kernels;
  attender.view = view;
  attender.view.costs = kernels->costs;
  return attender;
}

/* Opens the attenders of a pool whose view is complete, and memory for each thread. Throws std::bad_alloc. */
void open_attenders(spg_pool &pool) {
  const KernelTable *vectors = pool.context->kernels, *tiles = pool.context->tileKernels;
  if (!tiles || pool.view.group >= kLeastTileGroup) {
    pool.attenders.push_back(attender_of(pool.view, kAllRows, tiles ? tiles : vectors));
  } else {
    pool.attenders.push_back(attender_of(pool.view, kPromptRows, tiles));
    pool.attenders.push_back(attender_of(pool.view, kGeneratedRows, vectors));
  }
  for (const Attender &attender : pool.attenders) {
    const size_t floats = (attender.kernels->scratchFloats(attender.view) + 15) / 16 * 16;
    pool.scratchFloats = std::max(pool.scratchFloats, floats);
  }
  pool.scratch.reserve(pool.scratchFloats * pool.context->threads->size());
}

/* Prepares the work lists and the cos/sin rows of a checked step. */
void prepare(spg_pool &pool) {
  const StepView &step = pool.step.view;
  size_t partialFloats = 0, slidingFloats = 0;
  for (Attender &attender : pool.attenders) {
    plan_step(pool.step, pool.context->threads->size(), attender);
    partialFloats += attender.work.list.partialFloats;
    slidingFloats += attender.sliding.list.partialFloats;
  }
  pool.partials.reserve(std::max(partialFloats, slidingFloats));
  for (int piece = 0; piece < step.pieces; piece++) {
    for (int row = step.pieceRows[piece]; row < step.pieceRows[piece + 1]; row++) {
      for (const std::unique_ptr<RopeTable> &rope : pool.ropes) {
        if (!rope) continue;
        rope->ensure(step.positions[row]);
        for (int s = step.pieceSegments[piece]; s < step.pieceSegments[piece + 1]; s++) {
          rope->ensure(step.positions[row] - step.segmentOffsets[s]);
        }
      }
    }
  }
}

bool layers_fit(const spg_pool_config &config, const uint8_t *layers) {
  for (int i = 0; i < config.layer_count; i++) {
    if (layers[i] > (SPG_ROTATES | SPG_SECOND_ROPE | SPG_SLIDES)) return false;
    if ((layers[i] & SPG_SECOND_ROPE) && config.rope_tables < 2) return false;
    if ((layers[i] & SPG_SLIDES) && config.window < 1) return false;
  }
  return true;
}

int32_t check_layer(const spg_pool *pool, int32_t layer, const float *qkv, int32_t stride) {
  if (!pool || !qkv) return SPG_E_NULL;
  if (!pool->step.ready) return SPG_E_NO_STEP;
  if (layer < 0 || layer >= pool->view.layers) return SPG_E_LAYER;
  const int width = (pool->view.queryHeads + 2 * pool->view.kvHeads) * pool->view.headDim;
  return stride < width ? SPG_E_ROWS : SPG_OK;
}

}

extern "C" {

const char *spg_strerror(int32_t status) {
  switch (status) {
    case SPG_OK: return "success";
    case SPG_E_NULL: return "a required pointer is null";
    case SPG_E_ISA: return "this CPU or this build lacks the instruction set asked for";
    case SPG_E_THREADS: return "threads must be 1 to 256, and startable";
    case SPG_E_MEMORY: return "not enough memory";
    case SPG_E_SHAPE: return "a field of the pool's configuration is out of range";
    case SPG_E_LAYER: return "layer is not in the pool";
    case SPG_E_ROWS: return "a row count or row stride is out of range";
    case SPG_E_PIECES: return "pieceRows or pieceSegments do not rise from 0 to their totals";
    case SPG_E_SEGMENT: return "a segment's first token, token count or blocks are out of range";
    case SPG_E_BLOCK_ID: return "a block id is not in the pool";
    case SPG_E_SLOT: return "slots are not in the pool, not their piece's own, written twice, or copied from and to";
    case SPG_E_POSITION: return "a position or segment offset is not below maxPositions";
    case SPG_E_NO_STEP: return "no step has begun";
    case SPG_E_TOKEN_ID: return "a token id is not in the table";
    case SPG_E_TYPE: return "unknown element type";
    case SPG_E_MX8_HEAD: return "KV in mx8 needs a head size that is a multiple of 32";
    case SPG_E_MX8_FIXED: return "KV in mx8 stays where it is: tokens are neither copied nor compared";
    case SPG_E_MATRIX: return "a matrix's outputs, inputs or parts are out of range, or rows do not fit in";
    case SPG_E_WINDOW: return "a layer slides, and segments have no positions";
    case SPG_E_SPARSE: return "the pool has no shadows, or its shape, seats or lists do not allow them";
    case SPG_E_CHOICE: return "choices do not fit their pieces, seats, buffers or bounds";
    case SPG_E_PRODUCT: return "a product's rows, strides, parts or finish are out of range";
    default: return "unknown status";
  }
}

int32_t spg_open(int32_t isa, int32_t threads, spg_context **out) {
  if (!out) return SPG_E_NULL;
  if (threads < 1 || threads > 256) return SPG_E_THREADS;
  try {
    auto context = std::make_unique<spg_context>();
    if (!choose_kernels(isa, *context)) return SPG_E_ISA;
    context->threads = std::make_unique<ThreadPool>(context->kernels ? threads : 1);
    *out = context.release();
    return SPG_OK;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  } catch (const std::system_error &) {
    return SPG_E_THREADS;
  }
}

void spg_close(spg_context *context) {
  delete context;
}

int32_t spg_isa_of(const spg_context *context) {
  return context ? context->isa : 0;
}

int32_t spg_hold_threads(spg_context *context, int32_t held) {
  if (!context) return SPG_E_NULL;
  context->threads->hold(held != 0);
  return SPG_OK;
}

int32_t spg_pool_open(spg_context *context, const spg_pool_config *config, const double *frequencies,
                      const uint8_t *layers, const float *sinks, spg_pool **out) {
  if (!context || !config || !layers || !out || (!frequencies && config->rotary_dim > 0)) return SPG_E_NULL;
  PoolView view;
  size_t bytes;
  const int32_t status = make_view(*config, view, bytes);
  if (status != SPG_OK) return status;
  if (!layers_fit(*config, layers)) return SPG_E_SHAPE;
  const int half = view.rotaryDim / 2, tables = config->rope_tables;
  for (int i = 0; i < tables * half; i++) {
    if (!isfinite(frequencies[i])) return SPG_E_SHAPE;
  }
  const int sinkCount = sinks ? view.layers * view.queryHeads : 0;
  for (int i = 0; i < sinkCount; i++) {
    if (!isfinite(sinks[i])) return SPG_E_SHAPE;
  }
  try {
    auto pool = std::make_unique<spg_pool>();
    pool->context = context;
    pool->kernels = context->kernels;
    pool->view = view;
    pool->view.data = static_cast<unsigned char *>(map_zero_pages(bytes, true));
    pool->bytes = bytes;
    if (!pool->view.data) return SPG_E_MEMORY;
    pool->tables = tables;
    pool->inverseFrequencies.assign(frequencies, frequencies + tables * half);
    pool->layerKinds.assign(layers, layers + view.layers);
    pool->view.layerKinds = pool->layerKinds.data();
    pool->sinks.assign(sinks, sinks + sinkCount);
    pool->view.sinks = sinks ? pool->sinks.data() : nullptr;
    for (int table = 0; table < tables; table++) {
      pool->view.inverseFrequencies[table] = pool->inverseFrequencies.data() + table * half;
    }
    if (context->kernels) {
      make_rope_tables(*pool);
      open_attenders(*pool);
    }
    *out = pool.release();
    return SPG_OK;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

void spg_pool_close(spg_pool *pool) {
  delete pool;
}

void *spg_pool_data(spg_pool *pool) {
  return pool ? pool->view.data : nullptr;
}

int64_t spg_pool_bytes(const spg_pool *pool) {
  return pool ? static_cast<int64_t>(pool->view.layerBytes) * pool->view.layers : -1;
}

int64_t spg_pool_resident_bytes(const spg_pool *pool) {
  return pool ? resident_bytes(pool->view.data, pool->bytes) : -1;
}

int32_t spg_step_begin(spg_pool *pool, const int32_t *positions, const int32_t *slots, int32_t row_count,
                       const int32_t *piece_rows, const int32_t *piece_segments, const int32_t *piece_generated,
                       int32_t piece_count,
                       const int32_t *segment_block_starts, const int32_t *segment_first_tokens,
                       const int32_t *segment_token_counts, const int32_t *segment_offsets,
                       const int32_t *segment_positions, int32_t segment_count, const int32_t *block_ids,
                       int32_t block_id_count) {
  if (!pool) return SPG_E_NULL;
  const StepArguments plan{positions, slots, row_count, piece_rows, piece_segments, piece_generated, piece_count, segment_block_starts,
                           segment_first_tokens, segment_token_counts, segment_offsets, segment_positions,
                           segment_count, block_ids, block_id_count};
  pool->step.ready = false;
  if (pool->sparse) pool->sparse->choices.clear();
  try {
    const int32_t status = check_step(plan, pool->view, pool->step);
    if (status != SPG_OK) return status;
    copy_step(plan, pool->step);
    if (pool->context->kernels) prepare(*pool);
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
  pool->step.ready = true;
  return SPG_OK;
}

int32_t spg_write_kv(spg_pool *pool, int32_t layer, const float *qkv, int32_t qkv_stride, const float *k_norm) {
  const int32_t status = check_layer(pool, layer, qkv, qkv_stride);
  if (status != SPG_OK) return status;
  const LayerCall call{layer, qkv, static_cast<size_t>(qkv_stride), nullptr, k_norm, nullptr};
  run_write_kv(*pool, call);
  return SPG_OK;
}

int32_t spg_attend(spg_pool *pool, int32_t layer, const float *qkv, int32_t qkv_stride, const float *q_norm,
                   float *out) {
  const int32_t status = check_layer(pool, layer, qkv, qkv_stride);
  if (status != SPG_OK) return status;
  if (!out) return SPG_E_NULL;
  const LayerCall call{layer, qkv, static_cast<size_t>(qkv_stride), q_norm, nullptr, out};
  run_choices(*pool, call);
  run_attend(*pool, call);
  return SPG_OK;
}

int32_t spg_attention(spg_pool *pool, int32_t layer, const float *qkv, int32_t qkv_stride, const float *q_norm,
                      const float *k_norm, float *out) {
  if (!out) return SPG_E_NULL;
  const int32_t status = spg_write_kv(pool, layer, qkv, qkv_stride, k_norm);
  return status == SPG_OK ? spg_attend(pool, layer, qkv, qkv_stride, q_norm, out) : status;
}

int32_t spg_copy_tokens(spg_pool *pool, const int32_t *source_slots, const int32_t *target_slots,
                        const int32_t *deltas, int32_t token_count) {
  if (!pool) return SPG_E_NULL;
  if (is_mx8(pool->view)) return SPG_E_MX8_FIXED;
  const TokenCopies copies{source_slots, target_slots, deltas, token_count};
  try {
    const int32_t status = check_copies(copies, pool->view, pool->step);
    if (status == SPG_OK) run_copy_tokens(*pool, copies);
    return status;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

int32_t spg_deviations(spg_pool *pool, int32_t layer, const float *qkv, int32_t qkv_stride, const float *k_norm,
                       float *out) {
  const int32_t status = check_layer(pool, layer, qkv, qkv_stride);
  if (status != SPG_OK) return status;
  if (!out) return SPG_E_NULL;
  if (is_mx8(pool->view)) return SPG_E_MX8_FIXED;
  const LayerCall call{layer, qkv, static_cast<size_t>(qkv_stride), nullptr, k_norm, out};
  run_deviations(*pool, call);
  return SPG_OK;
}

int32_t spg_embed_rows(spg_context *context, const void *table, int32_t type, int32_t row_count, int32_t width,
                       const int32_t *token_ids, int32_t token_count, float *out) {
  if (!context || !table || !token_ids || !out) return SPG_E_NULL;
  if (type != SPG_FLOAT32 && type != SPG_FLOAT16 && type != SPG_BFLOAT16) return SPG_E_TYPE;
  if (row_count < 1 || width < 1 || token_count < 1) return SPG_E_ROWS;
  for (int i = 0; i < token_count; i++) {
    if (token_ids[i] < 0 || token_ids[i] >= row_count) return SPG_E_TOKEN_ID;
  }
  if (!context->kernels) {
    reference::embed_rows(table, type, width, token_ids, token_count, out);
    return SPG_OK;
  }
  for (int i = 0; i < token_count; i++) {
    const size_t start = static_cast<size_t>(token_ids[i]) * width;
    context->kernels->embedRow(table, type, start, width, out + static_cast<size_t>(i) * width);
  }
  return SPG_OK;
}

}
