/*
 * The end of a tile: the results of its team of warps are combined and written as the output or as a partial result.
 * The unit that writes the last partial result of a row merges them all.
 */
#ifndef SPANGATE_ATTENTION_TEAM_CUH
#define SPANGATE_ATTENTION_TEAM_CUH

#include "attention_merge.cuh"
#include "attention_softmax.cuh"
#include "attention_rotate.cuh"

struct TileState {
  float out[kHeadDim / 8][4];
  RunningSoftmax softmax;
  Queries q;
};

/* What the computing warps exchange in shared memory. */
struct Exchange {
  Ring rings[kWarps];
  int sharedSlots[2][kWarps]; /* the slot of each warp's part of a shared step; two steps alternate */
  const float *results[kWarps];
  float logSums[kWarps][kTileRows];
  uint32 complete[3]; /* bit r: all parts of row r are there; one word for the team of four, two for teams of two */
};

/* Until they are combined, a warp's results lie in the slot that it holds. */
static_assert(kSlotSize * 2 >= kTileRows * kHeadDim * 4, "results do not fit");

/* Waits for all warps of a team. */
__device__ __forceinline__ void join(const Team &team) {
  if (team.size == 1) {
    __syncwarp();
  } else {
    asm volatile("barrier.sync %0, %1;" ::"r"(team.size == 4 ? 3 : 1 + team.tile), "r"(team.size * 32) : "memory");
  }
}

__device__ __forceinline__ void write_tile(const PlanArguments &a, const PlanUnit &unit, const LaneRows &rows,
                                           const TileRow &tileRow, const TileState &s) {
  const int lane = threadIdx.x & 31, column = (lane & 3) * 2;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = __shfl_sync(kAllLanes, tileRow.row, rows.tileRow[r]);
    const int partial = __shfl_sync(kAllLanes, tileRow.partial, rows.tileRow[r]);
    if (row < 0) continue;
    const int head = unit.firstHead + (r * 8 + lane / 4) % unit.headCount;
    const float inverse = result_factor(a, partial, head, s.softmax.sum[r], s.softmax.reference[r]);
    uint32 *result = reinterpret_cast<uint32 *>(result_at(a, row, head) + column);
    float2 *part = reinterpret_cast<float2 *>(partial_at(a, partial, head) + column);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n++) {
      const float x = s.out[n][2 * r] * inverse, y = s.out[n][2 * r + 1] * inverse;
      if (partial < 0) {
        result[n * 4] = pack_bf16(x, y);
      } else {
        part[n * 4] = make_float2(x, y);
      }
    }
    if ((lane & 3) == 0) write_log_sum(a, partial, head, s.softmax.log_sum(r));
  }
}

__device__ __forceinline__ void keep_results(const TileState &s, bf16 *scratch, Exchange &x) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float *results = reinterpret_cast<float *>(scratch);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int packed = r * 8 + lane / 4;
    const float sum = s.softmax.sum[r], inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n++) {
      float2 *to = reinterpret_cast<float2 *>(results + packed * kHeadDim + n * 8 + (lane & 3) * 2);
      *to = make_float2(s.out[n][2 * r] * inverse, s.out[n][2 * r + 1] * inverse);
    }
    if ((lane & 3) == 0) x.logSums[warp][packed] = s.softmax.log_sum(r);
  }
  if (lane == 0) x.results[warp] = results;
}

/* Combines the warps' results, weighted by their sums; a warp writes every team.size-th packed row. */
__device__ __forceinline__ void write_team(const PlanArguments &a, const PlanUnit &unit, const Team &team,
                                           const TileRow &tileRow, const Exchange &x) {
  const int lane = threadIdx.x & 31, first = team.tile * team.size;
  const float *results[kWarps];
  float weights[kWarps]; /* weight of each warp's result for packed row `lane` */
  float top = -infinity(), sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    const int of = first + min(w, team.size - 1);
    results[w] = x.results[of];
    weights[w] = w < team.size ? x.logSums[of][lane % kTileRows] : -infinity();
    top = fmaxf(top, weights[w]);
  }
  const float base = top == -infinity() ? 0.0f : top;
#pragma unroll
  for (int w = 0; w < kWarps; w++) sum += weights[w] = exp2_fast(weights[w] - base);
  const float logSum = sum > 0 ? base + log2f(sum) : -infinity();
  const int ownRow = lane % kTileRows / unit.headCount, ownHead = unit.firstHead + lane % kTileRows % unit.headCount;
  const float inverse = result_factor(a, __shfl_sync(kAllLanes, tileRow.partial, ownRow), ownHead, sum, base);
#pragma unroll 2
  for (int packed = team.part; packed < unit.rowsPerTile * unit.headCount; packed += team.size) {
    const int of = packed / unit.headCount, head = unit.firstHead + packed % unit.headCount;
    const int row = __shfl_sync(kAllLanes, tileRow.row, of), partial = __shfl_sync(kAllLanes, tileRow.partial, of);
    const float rowSum = __shfl_sync(kAllLanes, logSum, packed);
#pragma unroll
    for (int part = 0; part < (kHeadDim + 127) / 128; part++) {
      const int column = part * 128 + lane * 4;
      float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int w = 0; w < kWarps; w++) {
        const float weight = __shfl_sync(kAllLanes, weights[w] * inverse, packed);
        const float *from = results[w] + packed * kHeadDim + (column < kHeadDim ? column : 0);
        const float4 value = *reinterpret_cast<const float4 *>(from);
        if (w >= team.size) break;
        out.x += weight * value.x, out.y += weight * value.y, out.z += weight * value.z, out.w += weight * value.w;
      }
      if (row < 0 || column >= kHeadDim) continue;
      if (partial < 0) {
        const uint2 words = make_uint2(pack_bf16(out.x, out.y), pack_bf16(out.z, out.w));
        *reinterpret_cast<uint2 *>(result_at(a, row, head) + column) = words;
      } else {
        *reinterpret_cast<float4 *>(partial_at(a, partial, head) + column) = out;
      }
    }
    if (row >= 0 && partial >= 0 && lane == 0) write_log_sum(a, partial, head, rowSum);
  }
}

/* Merges those rows of the tile whose last partial result this unit wrote; the team's warps share the rows. */
__device__ __forceinline__ void finish_team(const PlanArguments &a, const PlanUnit &unit, const Team &team,
                                            const TileRow &tileRow, const PlanMerge &merge, Exchange &x) {
  uint32 complete = 0;
  /* Every team that a warp may be in has a place of its own, so none is overwritten while another team still reads. */
  uint32 &told = x.complete[team.size == kWarps ? 0 : 1 + team.tile];
  if (team.part == 0) {
    const bool isLast = tileRow.merge >= 0 && arrive_at_merge(a, unit, tileRow.merge, merge.partCount);
    complete = __ballot_sync(kAllLanes, isLast);
    if (team.size > 1 && (threadIdx.x & 31) == 0) told = complete;
  }
  if (team.size > 1) {
    join(team);
    complete = told;
    for (int i = 0, r = 0; r < unit.rowsPerTile; r++) {
      if (complete >> r & 1 && i++ % team.size != team.part) complete &= ~(1u << r);
    }
  }
  merge_rows(a, unit, merge, complete);
}

/* @param scratch the slot that the warp holds */
__device__ __forceinline__ void finish_tile(const PlanArguments &a, const PlanUnit &unit, const Team &team,
                                            const TileRow &tileRow, const LaneRows &rows, TileState &s, bf16 *scratch,
                                            Exchange &x) {
  s.softmax.finish();
  if (team.size == 1) {
    write_tile(a, unit, rows, tileRow, s);
  } else {
    keep_results(s, scratch, x);
    join(team);
    write_team(a, unit, team, tileRow, x);
  }
  const bool isPart = __any_sync(kAllLanes, tileRow.merge >= 0);
  PlanMerge merge = {};
  if (tileRow.merge >= 0) merge = a.merges[tileRow.merge];
  if (isPart) __threadfence();
  join(team); /* all warps have written, and nobody reads the others' results any more */
  if (isPart) finish_team(a, unit, team, tileRow, merge, x);
}

#endif
