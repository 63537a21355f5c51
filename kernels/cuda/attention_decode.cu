/*
 * Attention for tiles of up to 16 packed rows, that is for decoding: bound by reading K and V (attention.cuh has items,
 * rotation, softmax and the arguments).
 *
 * Warp w takes the item's tiles of 16 tokens w, w + 4, ... with a pipeline of kStages tiles of its own and no barrier
 * until the warps' results are merged at the end. Shared memory a warp: kStages times 16 rows of K and of V, rows of
 * 2 * (headDim + 8) bytes; q passes through the tile that is free next, and stays in registers.
 *
 * Grid: any number of blocks of 128 threads; block b of n takes units b, b + n, ..., unit = item * kvHeads + kvHead, so
 * one launch serves any step. Floor: the bytes of K and V seen. Oracle: test/backend/cuda/emulated-attention.ts.
 */

#include "attention.cuh"

#ifndef STAGES
#define STAGES 2
#endif

constexpr int kRows = 16, kStages = STAGES;
constexpr int kTokens = 16, kTileSize = kTokens * kStride;
constexpr int kWarpShared = 2 * kStages * kTileSize;
/* A warp's results wait for the merge where its K and V were. */
static_assert(kWarpShared * 2 >= kRows * kHeadDim * 4, "results do not fit");

using TileCursor = Cursor<kTokens>;

struct WarpState {
  float out[kHeadDim / 8][4];
  RunningSoftmax softmax;
  uint32 q[kHeadDim / 16][4];
};

__device__ __forceinline__ void attend_tile(const AttentionArguments &a, const Unit &unit,
                                            const TileCursor &at, const bf16 *keys, const bf16 *values, WarpState &s) {
  const int lane = threadIdx.x & 31;
  float scores[2][4] = {};
#pragma unroll
  for (int d = 0; d < kHeadDim; d += 16) {
    uint32 k[4];
    load_matrices(k, keys + key_fragment_offset() + d);
    multiply_add(scores[0], s.q[d / 16], k[0], k[1]);
    multiply_add(scores[1], s.q[d / 16], k[2], k[3]);
  }
  if (token_limit(unit, at, 0) < at.token + kTokens) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int r = (i >> 1) & 1, token = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
      if (at.token + token >= token_limit(unit, at, r * 8 + lane / 4)) scores[i >> 2][i & 3] = -infinity();
    }
  }
  float rescale[2];
  if (__any_sync(kAllLanes, s.softmax.update(scores, a.scaleLog2, rescale))) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) s.out[n][i] *= rescale[i / 2];
    }
  }
  const uint32 p[4] = {pack_bf16(scores[0][0], scores[0][1]), pack_bf16(scores[0][2], scores[0][3]),
                       pack_bf16(scores[1][0], scores[1][1]), pack_bf16(scores[1][2], scores[1][3])};
#pragma unroll
  for (int d = 0; d < kHeadDim; d += 16) {
    uint32 v[4];
    load_matrices_transposed(v, values + row_fragment_offset() + d);
    multiply_add(s.out[d / 8], p, v[0], v[1]);
    multiply_add(s.out[d / 8 + 1], p, v[2], v[3]);
  }
}

/* Starts the copy of the warp's next tile, if there is one. */
__device__ __forceinline__ void load_ahead(const AttentionArguments &a, const Unit &unit, TileCursor &ahead, bf16 *to) {
  if (!ahead.done(unit)) {
    load_tile<kTokens, 32>(a, ahead, unit.kvHead, threadIdx.x & 31, to, to + kTileSize);
    ahead.skip(a, unit, kWarps);
  }
  commit_copies();
}

/* All of the warp's tiles of an item. */
__device__ __forceinline__ void attend_tiles(const AttentionArguments &a, const Unit &unit, bf16 *tiles,
                                             WarpState &s) {
  TileCursor at, ahead;
  ahead.enter(a, unit, 0);
  ahead.skip(a, unit, threadIdx.x >> 5);
  at = ahead;
  for (int stage = 0; stage < kStages - 1; stage++) load_ahead(a, unit, ahead, tiles + stage * 2 * kTileSize);
  int turnedSlice = -1;
  for (int stage = 0; !at.done(unit); at.skip(a, unit, kWarps), stage = stage + 1 == kStages ? 0 : stage + 1) {
    __syncwarp(); /* the tile before is used up */
    bf16 *spare = tiles + (stage == 0 ? kStages - 1 : stage - 1) * 2 * kTileSize;
    if (at.index != turnedSlice) {
      write_queries<kRows>(a, unit, 0, at.slice.offset, spare);
#pragma unroll
      for (int d = 0; d < kHeadDim; d += 16) load_matrices(s.q[d / 16], spare + row_fragment_offset() + d);
      turnedSlice = at.index;
      __syncwarp();
    }
    load_ahead(a, unit, ahead, spare);
    wait_copies<kStages - 1>();
    __syncwarp();
    const bf16 *keys = tiles + stage * 2 * kTileSize;
    attend_tile(a, unit, at, keys, keys + kTileSize, s);
  }
  wait_copies<0>();
  s.softmax.finish();
}

__device__ __forceinline__ void keep_results(const WarpState &s, float scaleLog2, float *results, float *logSums) {
  const int lane = threadIdx.x & 31;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = r * 8 + lane / 4;
    const float sum = s.softmax.sum[r], inverse = sum > 0 ? 1.0f / sum : 0.0f;
    for (int n = 0; n < kHeadDim / 8; n++) {
      float2 *to = reinterpret_cast<float2 *>(results + row * kHeadDim + n * 8 + (lane & 3) * 2);
      *to = make_float2(s.out[n][2 * r] * inverse, s.out[n][2 * r + 1] * inverse);
    }
    if ((lane & 3) == 0) logSums[row] = s.softmax.log_sum(r, scaleLog2);
  }
}

/* Two dimensions a thread: the warps' results weighed by their sums. */
__device__ __forceinline__ void merge_warps(const AttentionArguments &a, const Unit &unit,
                                            const bf16 *shared, const float (&logSums)[kWarps][kRows]) {
  for (int i = threadIdx.x; i < unit.packedCount * (kHeadDim / 2); i += kWarps * 32) {
    const int row = i / (kHeadDim / 2), column = i % (kHeadDim / 2) * 2;
    float top = -infinity(), sum = 0;
    for (int w = 0; w < kWarps; w++) top = fmaxf(top, logSums[w][row]);
    const float base = top == -infinity() ? 0.0f : top;
    float2 out = make_float2(0, 0);
    for (int w = 0; w < kWarps; w++) {
      const float *results = reinterpret_cast<const float *>(shared + w * kWarpShared);
      const float weight = exp2_fast(logSums[w][row] - base);
      sum += weight;
      out.x += weight * results[row * kHeadDim + column];
      out.y += weight * results[row * kHeadDim + column + 1];
    }
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    write_result(a, unit, row, column, out.x * inverse, out.y * inverse);
    if (column == 0) write_sum(a, unit, row, sum > 0 ? base + log2f(sum) : -infinity());
  }
}

__device__ __forceinline__ void attend_unit(const AttentionArguments &a, const Unit &unit, bf16 *shared,
                                            float (&logSums)[kWarps][kRows]) {
  const int warp = threadIdx.x >> 5;
  bf16 *tiles = shared + warp * kWarpShared;
  WarpState state = {};
  state.softmax.reset();
  attend_tiles(a, unit, tiles, state);
  keep_results(state, a.scaleLog2, reinterpret_cast<float *>(tiles), logSums[warp]);
  __syncthreads();
  merge_warps(a, unit, shared, logSums);
}

extern "C" __global__ void __launch_bounds__(kWarps * 32) attention_decode(ATTENTION_PARAMETERS) {
  extern __shared__ __align__(16) bf16 shared[];
  __shared__ float logSums[kWarps][kRows];
  let_next_begin();
  wait_for_previous();
  const AttentionArguments a = ATTENTION_ARGUMENTS;
  require_shared_memory(kWarps * kWarpShared);
  const int units = *itemCount * kvHeads;
  for (int index = blockIdx.x; index < units; index += gridDim.x) {
    attend_unit(a, unit_at(a, index), shared, logSums);
    __syncthreads(); /* shared memory is free again */
  }
}
