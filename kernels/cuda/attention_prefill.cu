/*
 * Attention for tiles of many rows: bound by arithmetic (attention.cuh has items, rotation, softmax and the arguments).
 *
 * Tile: 128 packed rows, 4 warps of 32 rows each (two m16 fragments, so that a K or V fragment loaded once serves two
 * products), 64 tokens a step. Shared memory: q, and K and V twice (the next tile is copied while this one is used; one
 * barrier a tile): 128 + 4 * 64 rows of 2 * (headDim + 8) bytes. A warp turns its own rows of q.
 *
 * Grid: items * kvHeads blocks of 128 threads, longest items first. Floor: 4 * headDim FLOP for each pair of packed row
 * and token seen. Oracle: test/backend/cuda/emulated-attention.ts.
 */

#include "attention.cuh"

constexpr int kFragments = 2, kWarpRows = 16 * kFragments, kRows = kWarps * kWarpRows;
constexpr int kTokens = 64, kTileSize = kTokens * kStride;

using TileCursor = Cursor<kTokens>;

struct Accumulators {
  float out[kFragments][kHeadDim / 8][4];
  RunningSoftmax softmax[kFragments];
};

__device__ __forceinline__ void score_tile(const bf16 *queries, const bf16 *keys,
                                           float (&scores)[kFragments][kTokens / 8][4]) {
#pragma unroll
  for (int f = 0; f < kFragments; f++)
#pragma unroll
    for (int n = 0; n < kTokens / 8; n++) scores[f][n][0] = scores[f][n][1] = scores[f][n][2] = scores[f][n][3] = 0;
  queries += row_fragment_offset();
  keys += key_fragment_offset();
#pragma unroll
  for (int d = 0; d < kHeadDim; d += 16) {
    uint32 q[kFragments][4];
#pragma unroll
    for (int f = 0; f < kFragments; f++) load_matrices(q[f], queries + f * 16 * kStride + d);
#pragma unroll
    for (int n = 0; n < kTokens; n += 16) {
      uint32 k[4];
      load_matrices(k, keys + n * kStride + d);
#pragma unroll
      for (int f = 0; f < kFragments; f++) {
        multiply_add(scores[f][n / 8], q[f], k[0], k[1]);
        multiply_add(scores[f][n / 8 + 1], q[f], k[2], k[3]);
      }
    }
  }
}

/* Tokens that a row does not see, or that are not there, weigh nothing. */
__device__ __forceinline__ void mask_tile(const Unit &unit, const TileCursor &at, int warpRow,
                                          float (&scores)[kFragments][kTokens / 8][4]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int f = 0; f < kFragments; f++) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int limit = token_limit(unit, at, warpRow + f * 16 + r * 8 + lane / 4) - at.token;
#pragma unroll
      for (int n = 0; n < kTokens / 8; n++) {
        const int token = n * 8 + (lane & 3) * 2;
        if (token >= limit) scores[f][n][2 * r] = -infinity();
        if (token + 1 >= limit) scores[f][n][2 * r + 1] = -infinity();
      }
    }
  }
}

__device__ __forceinline__ void add_values(const bf16 *values, const float (&weights)[kFragments][kTokens / 8][4],
                                           Accumulators &sums) {
  values += row_fragment_offset();
#pragma unroll
  for (int t = 0; t < kTokens; t += 16) {
    uint32 p[kFragments][4];
#pragma unroll
    for (int f = 0; f < kFragments; f++) {
      const auto &low = weights[f][t / 8], &high = weights[f][t / 8 + 1];
      p[f][0] = pack_bf16(low[0], low[1]), p[f][1] = pack_bf16(low[2], low[3]);
      p[f][2] = pack_bf16(high[0], high[1]), p[f][3] = pack_bf16(high[2], high[3]);
    }
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) {
      uint32 v[4];
      load_matrices_transposed(v, values + t * kStride + d);
#pragma unroll
      for (int f = 0; f < kFragments; f++) {
        multiply_add(sums.out[f][d / 8], p[f], v[0], v[1]);
        multiply_add(sums.out[f][d / 8 + 1], p[f], v[2], v[3]);
      }
    }
  }
}

__device__ __forceinline__ void attend_tile(const AttentionArguments &a, const Unit &unit,
                                            const TileCursor &at, int warpRow, const bf16 *queries, const bf16 *keys,
                                            const bf16 *values, Accumulators &sums) {
  float scores[kFragments][kTokens / 8][4];
  score_tile(queries, keys, scores);
  /* The warp's first row sees least. */
  if (token_limit(unit, at, warpRow) < at.token + kTokens) mask_tile(unit, at, warpRow, scores);
#pragma unroll
  for (int f = 0; f < kFragments; f++) {
    float rescale[2];
    const bool changed = sums.softmax[f].update(scores[f], a.scaleLog2, rescale);
    if (__any_sync(kAllLanes, changed)) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) sums.out[f][n][i] *= rescale[i / 2];
      }
    }
  }
  add_values(values, scores, sums);
}

__device__ __forceinline__ void attend_unit(const AttentionArguments &a, const Unit &unit, bf16 *shared) {
  const int lane = threadIdx.x & 31, warpRow = (threadIdx.x >> 5) * kWarpRows;
  const bool hasRows = warpRow < unit.packedCount;
  bf16 *queries = shared + warpRow * kStride;
  bf16 *tiles = shared + kRows * kStride;
  Accumulators sums = {};
#pragma unroll
  for (int f = 0; f < kFragments; f++) sums.softmax[f].reset();

  TileCursor at, ahead;
  at.enter(a, unit, 0);
  ahead = at;
  load_tile<kTokens, kWarps * 32>(a, ahead, unit.kvHead, threadIdx.x, tiles, tiles + kTileSize);
  commit_copies();
  for (int stage = 0; !at.done(unit); stage ^= 1, at = ahead) {
    if (at.token == 0 && hasRows) write_queries<kWarpRows>(a, unit, warpRow, at.slice.offset, queries);
    wait_copies<0>();
    __syncthreads(); /* this tile is there, and all warps have done with the one before */
    ahead.next(a, unit);
    if (!ahead.done(unit)) {
      bf16 *next = tiles + (stage ^ 1) * 2 * kTileSize;
      load_tile<kTokens, kWarps * 32>(a, ahead, unit.kvHead, threadIdx.x, next, next + kTileSize);
      commit_copies();
    }
    const bf16 *keys = tiles + stage * 2 * kTileSize;
    if (hasRows) attend_tile(a, unit, at, warpRow, queries, keys, keys + kTileSize, sums);
  }
#pragma unroll
  for (int f = 0; f < kFragments; f++) {
    sums.softmax[f].finish();
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = warpRow + f * 16 + r * 8 + lane / 4;
      if (row >= unit.packedCount) continue;
      const float inverse = sums.softmax[f].sum[r] > 0 ? 1.0f / sums.softmax[f].sum[r] : 0.0f;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n++) {
        const float *pair = &sums.out[f][n][2 * r];
        write_result(a, unit, row, n * 8 + (lane & 3) * 2, pair[0] * inverse, pair[1] * inverse);
      }
      if ((lane & 3) == 0) write_sum(a, unit, row, sums.softmax[f].log_sum(r, a.scaleLog2));
    }
  }
}

extern "C" __global__ void __launch_bounds__(kWarps * 32, 2) attention_prefill(ATTENTION_PARAMETERS) {
  extern __shared__ __align__(16) bf16 shared[];
  const AttentionArguments a = ATTENTION_ARGUMENTS;
  require_shared_memory((kRows + 4 * kTokens) * kStride);
  if (blockIdx.x < *itemCount * kvHeads) attend_unit(a, unit_at(a, blockIdx.x), shared);
}
