#include "pool.h"

#include <math.h>

namespace spg {
namespace {

/* V rows of head sizes that are not multiples of 16 are read up to this many bytes past their end. */
constexpr size_t kTailBytes = 64;

bool in_range(int64_t value, int64_t low, int64_t high) {
  return value >= low && value <= high;
}

bool shape_allowed(const spg_pool_config &c) {
  const bool powerOfTwo = in_range(c.block_tokens, 1, 256) && (c.block_tokens & (c.block_tokens - 1)) == 0;
  const bool heads = in_range(c.kv_heads, 1, 1024) && in_range(c.query_heads, 1, 4096) &&
                     c.query_heads % c.kv_heads == 0 && c.query_heads / c.kv_heads <= kMaxQueryGroup;
  const bool dims = in_range(c.head_dim, 8, kMaxHeadDim) && c.head_dim % 8 == 0 &&
                    in_range(c.rotary_dim, 0, c.head_dim) && c.rotary_dim % 2 == 0;
  const bool counts = in_range(c.layer_count, 1, 1024) && in_range(c.block_count, 1, 1 << 24) &&
                      in_range(c.max_positions, 1, 1 << 24) && in_range(c.rope_interleaved, 0, 1) &&
                      in_range(c.packing, 0, 1) && in_range(c.window, 0, 1 << 24) && in_range(c.rope_tables, 1, 2) &&
                      static_cast<int64_t>(c.block_count) * c.block_tokens <= 1 << 30;
  const bool factors = isfinite(c.softmax_scale) && c.softmax_scale > 0 && isfinite(c.rope_factor) &&
                       isfinite(c.second_rope_factor) && isfinite(c.norm_eps) && c.norm_eps >= 0 &&
                       isfinite(c.score_cap) && c.score_cap >= 0;
  return powerOfTwo && heads && dims && counts && factors;
}

}

void make_rope_tables(spg_pool &pool) {
  PoolView &view = pool.view;
  for (int table = 0; table < pool.tables; table++) {
    if (pool.ropes[table]) continue;
    pool.ropes[table] = std::make_unique<RopeTable>(view.inverseFrequencies[table], view.rotaryDim,
                                                    view.ropeFactors[table], view.maxPositions);
    view.ropeOrigins[table] = pool.ropes[table]->origin();
  }
}

int32_t make_view(const spg_pool_config &c, PoolView &view, size_t &bytes) {
  if (!shape_allowed(c)) return SPG_E_SHAPE;
  if (c.kv_type != SPG_FLOAT32 && c.kv_type != SPG_FLOAT16 && c.kv_type != SPG_MX8) return SPG_E_TYPE;
  if (c.kv_type == SPG_MX8 && c.head_dim % kMx8Group != 0) return SPG_E_MX8_HEAD;
  view = PoolView{};
  view.layers = c.layer_count;
  view.blocks = c.block_count;
  view.blockTokens = c.block_tokens;
  view.queryHeads = c.query_heads;
  view.kvHeads = c.kv_heads;
  view.group = c.query_heads / c.kv_heads;
  view.headDim = c.head_dim;
  view.rotaryDim = c.rotary_dim;
  view.interleaved = c.rope_interleaved;
  view.packing = c.packing;
  view.maxPositions = c.max_positions;
  view.elementBytes = c.kv_type == SPG_FLOAT32 ? 4 : c.kv_type == SPG_FLOAT16 ? 2 : 1;
  view.softmaxScale = c.softmax_scale;
  view.window = c.window;
  view.ropeFactors[0] = c.rope_factor;
  view.ropeFactors[1] = c.second_rope_factor;
  view.normEps = c.norm_eps;
  view.scoreCap = c.score_cap;
  view.headBytes = static_cast<size_t>(2) * c.head_dim * c.block_tokens * view.elementBytes;
  if (is_mx8(view)) view.headBytes += view.headBytes / kMx8Group;
  view.blockBytes = view.headBytes * c.kv_heads;
  view.layerBytes = view.blockBytes * c.block_count;
  /*
   * The product 1024 layers x 2^24 blocks x 2^26 bytes would overflow 64 bits, so it is bounded before it is computed.
   */
  if (static_cast<double>(view.layerBytes) * view.layers > 1e15) return SPG_E_SHAPE;
  bytes = view.layerBytes * view.layers + kTailBytes;
  return SPG_OK;
}

}
