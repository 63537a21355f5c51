/*
 * Attention for items of up to eight tiles ("large") without wgmma; arithmetic limits its speed. (attention_plan.cuh
 * has the plan, rotation, softmax and the arguments.)
 *
 * Four warps have two tiles (32 packed rows) each, so that a K or V fragment loaded once serves two products; of heads
 * above 128 dimensions, whose sums fill a warp's registers, eight warps have one each. A step is
 * 64 tokens, or 32 where a thread block has less shared memory (sm_86, sm_89, sm_120). Shared memory holds q, and K and
 * V twice: the next tokens are copied while these are used, with one barrier a step. That is (128 + 4 * tokens) rows of
 * 2 * (headDim + 8) bytes; a launch with space for 64 tokens gets 64. A warp rotates its own rows of q.
 *
 * Grid: any number of blocks of 128 threads (256 for heads above 128); block b of n takes units b, b + n, ..., unit = (item * kvHeads + kvHead) *
 * headTiles + headTile, longest items first. Floor: 4 * headDim FLOP for each pair of packed row and token seen.
 * Oracle: test/gpu/attention-oracle.ts.
 */
#include "attention_fragments.cuh"
#include "attention_merge.cuh"
#include "attention_plan.cuh"
#include "attention_softmax.cuh" /* SCORE_CAP */
#include "heads.cuh"             /* HEAD_DIM */

constexpr int kFragments = kHeadDim > 128 ? 1 : 2, kTiles = 8, kWarps = kTiles / kFragments;
constexpr int kVectors = kHeadDim / 8;

/* Walks over the steps of an item; a step never crosses a slice's end. */
template <int kTokens>
struct Cursor {
  int index, token; /* of the slice in the plan; of the step's first token in the slice */
  int end, tokenCount;

  __device__ __forceinline__ Cursor(const PlanArguments &a, const PlanItem &item)
      : index(item.firstSlice - 1), token(0), end(item.firstSlice + item.sliceCount), tokenCount(0) {
    next(a);
  }

  __device__ __forceinline__ bool done() const { return index >= end; }

  /* Skips empty slices. */
  __device__ __forceinline__ void next(const PlanArguments &a) {
    token += kTokens;
    while (token >= tokenCount && ++index < end) {
      token = 0;
      tokenCount = a.slices[index].tokenCount;
    }
  }
};

/* Starts the copies of a step's K and V [kTokens][kStride]; tokens past the end become zeros. */
template <int kTokens>
__device__ __forceinline__ void load_step(const PlanArguments &a, const Cursor<kTokens> &at, int kvHead, bf16 *keys) {
  const int shift = 31 - __clz(a.blockTokens);
  const PlanSlice slice = a.slices[at.index];
#pragma unroll
  for (int start = 0; start < kTokens * kVectors; start += kWarps * 32) {
    const int i = start + threadIdx.x, row = i / kVectors, vector = i % kVectors;
    if (kTokens * kVectors % (kWarps * 32) != 0 && row >= kTokens) break;
    const bool valid = at.token + row < at.tokenCount;
    const int place = slice.firstToken + at.token + (valid ? row : 0);
    const size_t head = size_t(a.blockIds[slice.block + (place >> shift)]) * a.kvHeads + kvHead;
    const size_t slot = (head * 2 << shift) + (place & (a.blockTokens - 1));
    const bf16 *from = a.pool + slot * kHeadDim + vector * 8;
    copy_async(keys + row * kStride + vector * 8, from, valid);
    copy_async(keys + (kTokens + row) * kStride + vector * 8, from + (kHeadDim << shift), valid);
  }
}

/* The two tiles of a warp. */
struct TilePair {
  float out[kFragments][kHeadDim / 8][4];
  RunningSoftmax softmax[kFragments];
};

template <int kTokens>
using Scores = float[kFragments][kTokens / 8][4];

template <int kTokens>
__device__ __forceinline__ void score_step(const bf16 *queries, const bf16 *keys, Scores<kTokens> &scores) {
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
    for (int f = 0; f < kFragments; f++) load_matrices(q[f], queries + f * kTileRows * kStride + d);
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

/* Masks tokens that a row does not see or that do not exist. */
template <int kTokens>
__device__ __forceinline__ void mask_step(const PlanUnit &unit, const LargeSlice &slice, int token, int firstTile,
                                          Scores<kTokens> &scores) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int f = 0; f < kFragments; f++) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int itemRow = (firstTile + f) * unit.rowsPerTile + (r * 8 + lane / 4) / unit.headCount;
      const int limit = visible_tokens(slice, itemRow) - token;
      const int hidden = itemRow - slice.firstRow - slice.late - token;
#pragma unroll
      for (int n = 0; n < kTokens / 8; n++) {
        const int column = n * 8 + (lane & 3) * 2;
        if (column >= limit || column < hidden) scores[f][n][2 * r] = -infinity();
        if (column + 1 >= limit || column + 1 < hidden) scores[f][n][2 * r + 1] = -infinity();
      }
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void add_values(const bf16 *values, const Scores<kTokens> &weights, TilePair &s) {
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
        multiply_add(s.out[f][d / 8], p[f], v[0], v[1]);
        multiply_add(s.out[f][d / 8 + 1], p[f], v[2], v[3]);
      }
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void attend_step(const PlanArguments &a, const PlanUnit &unit, const Cursor<kTokens> &at,
                                            int firstTile, const bf16 *queries, const bf16 *keys, TilePair &s) {
  Scores<kTokens> scores;
  score_step<kTokens>(queries, keys, scores);
  /* The first row of a slice sees the fewest tokens; rows that are not in the slice see none. */
  const LargeSlice slice(a.slices[at.index]);
  const int firstRow = firstTile * unit.rowsPerTile, endRow = firstRow + kFragments * unit.rowsPerTile;
  const bool areIn = firstRow >= slice.firstRow && endRow <= slice.firstRow + slice.rowCount;
  const bool areLate = endRow - slice.firstRow - slice.late > at.token;
  if (!areIn || areLate || visible_tokens(slice, firstRow) < at.token + kTokens) {
    mask_step<kTokens>(unit, slice, at.token, firstTile, scores);
  }
#pragma unroll
  for (int f = 0; f < kFragments; f++) {
    float rescale[2];
    const bool changed = s.softmax[f].update(scores[f], a.scaleLog2, rescale);
    if (__any_sync(kAllLanes, changed)) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s.out[f][n][i] *= rescale[i / 2];
      }
    }
  }
  add_values<kTokens>(keys + kTokens * kStride, scores, s);
}

__device__ __forceinline__ void write_results(const PlanArguments &a, const PlanUnit &unit, int firstTile,
                                              TilePair &s) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int f = 0; f < kFragments; f++) {
    s.softmax[f].finish();
    const TileRow tileRow = tile_row_at(a, unit, firstTile + f);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int packed = r * 8 + lane / 4, of = packed / unit.headCount;
      const int row = __shfl_sync(kAllLanes, tileRow.row, of);
      const int partial = __shfl_sync(kAllLanes, tileRow.partial, of);
      if (row < 0) continue;
      const int head = unit.firstHead + packed % unit.headCount;
      const float inverse = result_factor(a, partial, head, s.softmax[f].sum[r], s.softmax[f].reference[r]);
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n++) {
        const float *pair = &s.out[f][n][2 * r];
        write_result(a, row, partial, head, n * 8 + (lane & 3) * 2, pair[0] * inverse, pair[1] * inverse);
      }
      if ((lane & 3) == 0) write_log_sum(a, partial, head, s.softmax[f].log_sum(r));
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void attend_unit(const PlanArguments &a, const PlanUnit &unit, bf16 *shared) {
  constexpr int kStepSize = 2 * kTokens * kStride;
  const int firstTile = (threadIdx.x >> 5) * kFragments;
  const bool hasRows = firstTile < unit.tileCount;
  bf16 *queries = shared + firstTile * kTileRows * kStride, *ring = shared + kTiles * kTileRows * kStride;
  TilePair s = {};
#pragma unroll
  for (int f = 0; f < kFragments; f++) s.softmax[f].reset();
  Cursor<kTokens> ahead(a, unit.item), at = ahead;
  if (!ahead.done()) load_step(a, ahead, unit.kvHead, ring);
  commit_copies();
  for (int stage = 0; !at.done(); stage ^= 1, at = ahead) {
    if (at.token == 0 && hasRows) {
      __syncwarp(); /* all lanes have read the q of the slice before */
#pragma unroll
      for (int f = 0; f < kFragments; f++) {
        bf16 *to = queries + f * kTileRows * kStride;
        const TileRow tileRow = tile_row_at(a, unit, firstTile + f);
        const LargeSlice slice(a.slices[at.index]);
        const int offset = *offset_at(a, slice, (firstTile + f) * unit.rowsPerTile + int(threadIdx.x & 31));
        write_tile_queries<kStride>(a, unit, firstTile + f, tileRow, slice, offset, to);
      }
    }
    wait_copies<0>();
    __syncthreads(); /* these tokens have landed, and no warp reads those before any more */
    ahead.next(a);
    if (!ahead.done()) load_step(a, ahead, unit.kvHead, ring + (stage ^ 1) * kStepSize);
    commit_copies();
    if (hasRows) attend_step(a, unit, at, firstTile, queries, ring + stage * kStepSize, s);
  }
  write_results(a, unit, firstTile, s);
  for (int f = 0; f < kFragments; f++) finish_rows(a, unit, tile_row_at(a, unit, firstTile + f));
}

/* Bytes of shared memory that steps of this many tokens need. */
template <int kTokens>
constexpr int kSharedBytes = (kTiles * kTileRows + 4 * kTokens) * kStride * int(sizeof(bf16));

extern "C" __global__ void __launch_bounds__(kWarps * 32, kFragments) attention_tiles(PLAN_PARAMETERS) {
  extern __shared__ __align__(16) bf16 shared[];
  let_next_begin();
  const PlanArguments a = PLAN_ARGUMENTS;
  wait_for_previous();
  require_shared_memory(kSharedBytes<32>);
  uint32 bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  const int units = *itemCount * kvHeads * head_tiles_of_group(a);
  for (int index = blockIdx.x; index < units; index += gridDim.x) {
    if (bytes >= kSharedBytes<64>) {
      attend_unit<64>(a, plan_unit_at(a, index), shared);
    } else {
      attend_unit<32>(a, plan_unit_at(a, index), shared);
    }
    __syncthreads(); /* no warp reads shared memory any more */
  }
}
