/* Sparse decoding: the C entry points. */
#include <algorithm>
#include <new>

#include "pool.h"
#include "predict.h"
#include "sparse.h"

namespace {

using namespace spg;

bool is_seat_layer(const spg_pool *pool, int32_t seat, int32_t layer) {
  return seat >= 0 && seat < pool->sparse->seats && layer >= 0 && layer < pool->view.layers;
}

}

extern "C" {

int32_t spg_sparse_open(spg_pool *pool, int32_t seats, int32_t list_tokens, int32_t rings) {
  if (!pool) return SPG_E_NULL;
  try {
    return open_sparse(*pool, seats, list_tokens, rings);
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

int64_t spg_shadow_bytes(const spg_pool *pool) {
  return pool && pool->sparse ? static_cast<int64_t>(pool->sparse->shadows.layerBytes) * pool->view.layers : 0;
}

const void *spg_shadow_data(const spg_pool *pool, int32_t layer, int32_t block_id, int32_t kv_head) {
  if (!pool || !pool->sparse || block_id < 0 || block_id >= pool->view.blocks) return nullptr;
  if (kv_head < 0 || kv_head >= pool->view.kvHeads) return nullptr;
  if (!is_seat_layer(pool, 0, layer)) return nullptr;
  return shadow_head(pool->sparse->shadows, layer, block_id, kv_head);
}

int32_t spg_shadow_blocks(spg_pool *pool, const int32_t *block_ids, int32_t block_count) {
  if (!pool || !block_ids) return SPG_E_NULL;
  if (!pool->sparse) return SPG_E_SPARSE;
  for (int32_t i = 0; i < block_count; i++) {
    if (block_ids[i] < 0 || block_ids[i] >= pool->view.blocks) return SPG_E_BLOCK_ID;
  }
  for (int32_t i = 0; i < block_count; i++) shadow_block(*pool, block_ids[i]);
  return SPG_OK;
}

int32_t spg_step_choices(spg_pool *pool, const int32_t *pieces, const int32_t *seats, const int32_t *flags,
                         const int32_t *modes, const int32_t *tokens, const int32_t *refresh_steps,
                         const float *least_cosines, const int32_t *segments, int32_t count,
                         const int32_t *segment_block_starts, const int32_t *segment_first_tokens,
                         const int32_t *segment_token_counts, const int32_t *segment_offsets,
                         const int32_t *segment_forced, int32_t segment_count, const int32_t *block_ids,
                         int32_t block_id_count) {
  if (!pool) return SPG_E_NULL;
  if (!pool->step.ready) return SPG_E_NO_STEP;
  const ChoiceArguments plan{pieces,        seats,         flags,
                             modes,         tokens,        refresh_steps,
                             least_cosines, segments,      count,
                             segment_block_starts,         segment_first_tokens,
                             segment_token_counts,         segment_offsets,
                             segment_forced,               segment_count,
                             block_ids,     block_id_count};
  int32_t status;
  try {
    status = begin_choices(*pool, plan);
  } catch (const std::bad_alloc &) {
    status = SPG_E_MEMORY;
  }
  if (status != SPG_OK) pool->step.ready = false;
  return status;
}

int32_t spg_sparse_counts(const spg_pool *pool, int32_t seat, double *out) {
  if (!pool || !out) return SPG_E_NULL;
  if (!pool->sparse || !is_seat_layer(pool, seat, 0)) return SPG_E_SPARSE;
  std::fill(out, out + SPG_COUNTS, 0.0);
  for (int layer = 0; layer < pool->view.layers; layer++) {
    const SeatLayer &each = pool->sparse->seatLayers[static_cast<size_t>(seat) * pool->view.layers + layer];
    for (int i = 0; i < SPG_COUNTS; i++) out[i] += each.counts[i];
  }
  return SPG_OK;
}

int32_t spg_sparse_list(const spg_pool *pool, int32_t seat, int32_t layer, int32_t kv_head, int32_t *out) {
  if (!pool || !out) return SPG_E_NULL;
  if (!pool->sparse || !is_seat_layer(pool, seat, layer)) return SPG_E_SPARSE;
  if (kv_head < 0 || kv_head >= pool->view.kvHeads) return SPG_E_SPARSE;
  const SparseState &sparse = *pool->sparse;
  const size_t index = static_cast<size_t>(seat) * pool->view.layers + layer;
  const int32_t *list = sparse.lists + (index * pool->view.kvHeads + kv_head) * sparse.listTokens;
  const int tokens = sparse.seatLayers[index].listTokens;
  for (int slot = 0; slot < sparse.listTokens; slot++) out[slot] = slot < tokens ? list[slot] : -1;
  return SPG_OK;
}

int32_t spg_predict_query(const float *newest, int32_t known, int32_t dim, int32_t listing, float *out) {
  if (!newest || !out) return SPG_E_NULL;
  if (known < 1 || known > kMostKnown || dim < 8 || dim > kMaxHeadDim || dim % 8 != 0) return SPG_E_SHAPE;
  const float *queries[kMostKnown];
  for (int i = 0; i < known; i++) queries[i] = newest + static_cast<size_t>(i) * dim;
  listing ? predict_by_listing(queries, known, dim, out) : predict_query(queries, known, dim, out);
  return SPG_OK;
}

}
