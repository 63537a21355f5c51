/*
 * Merges partial results into results: the unit that arrives last at a row's counter does it (attention_plan.cuh).
 */
#ifndef SPANGATE_ATTENTION_MERGE_CUH
#define SPANGATE_ATTENTION_MERGE_CUH

#include "attention_plan.cuh"

/*
 * Announces that this unit has written its partial result of a row. One thread calls it, after the writing threads have
 * called __threadfence and passed a barrier. @return whether all parts of the row are there: then the caller calls
 * __threadfence and merges them
 */
__device__ __forceinline__ bool arrive_at_merge(const PlanArguments &a, const PlanUnit &unit, int merge,
                                                int partCount) {
  int *counter = a.arrivals + size_t(merge) * (a.kvHeads * head_tiles_of_group(a)) + unit.counter;
  if (atomicAdd(counter, 1) != partCount - 1) return false;
  *counter = 0;
  return true;
}

/*
 * A warp merges the parts of a row's heads [firstHead, firstHead + headCount): four heads at a time, and four parts of
 * each, since a load takes long. Weights are 2^(log sum - greatest log sum so far). Lane 4 i + j holds the weight of
 * part i and head j.
 */
__device__ __forceinline__ void merge_columns(const PlanArguments &a, const PlanMerge &at, int firstHead,
                                              int headCount, int ownColumn) {
  constexpr int kHeads = 4, kAtOnce = 4;
  const int lane = threadIdx.x & 31, column = min(ownColumn, kHeadDim - 4), ownPart = lane / kHeads % kAtOnce;
#pragma unroll 1
  for (int start = 0; start < headCount; start += kHeads) {
    const auto head = [&](int j) { return firstHead + min(start + j, headCount - 1); };
    const float *sums = a.partialSums + size_t(at.firstPartial) * a.queryHeads + head(lane % kHeads);
    float top = -infinity(), total = 0;
    float4 out[kHeads];
#pragma unroll
    for (int j = 0; j < kHeads; j++) out[j] = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int first = 0; first < at.partCount; first += kAtOnce) {
      const int count = min(kAtOnce, at.partCount - first);
      const bool exists = lane < kHeads * kAtOnce && ownPart < count;
      const float sum = exists ? __ldcg(sums + size_t(first + ownPart) * a.queryHeads) : -infinity();
      float4 x[kAtOnce][kHeads]; /* past the end: the last part again, with weight 0 */
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
#pragma unroll
        for (int j = 0; j < kHeads; j++) {
          const float *from = partial_at(a, at.firstPartial + first + min(i, count - 1), head(j)) + column;
          x[i][j] = __ldcg(reinterpret_cast<const float4 *>(from));
        }
      }
      float greatest = fmaxf(top, sum);
#pragma unroll
      for (int step = kHeads; step < 32; step *= 2) {
        greatest = fmaxf(greatest, __shfl_xor_sync(kAllLanes, greatest, step));
      }
      const float base = greatest == -infinity() ? 0.0f : greatest;
      const float rescale = exp2_fast(top - base), weight = exp2_fast(sum - base);
      top = greatest;
      total = total * rescale + weight;
#pragma unroll
      for (int j = 0; j < kHeads; j++) {
        const float r = __shfl_sync(kAllLanes, rescale, j);
        out[j].x *= r, out[j].y *= r, out[j].z *= r, out[j].w *= r;
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) {
          const float w = __shfl_sync(kAllLanes, weight, i * kHeads + j);
          out[j].x += w * x[i][j].x, out[j].y += w * x[i][j].y;
          out[j].z += w * x[i][j].z, out[j].w += w * x[i][j].w;
        }
      }
    }
#pragma unroll
    for (int step = kHeads; step < 32; step *= 2) total += __shfl_xor_sync(kAllLanes, total, step);
    total += sink_weight(a, head(lane % kHeads), top);
    const float inverse = total > 0 ? 1.0f / total : 0.0f;
#pragma unroll
    for (int j = 0; j < kHeads; j++) {
      const float by = __shfl_sync(kAllLanes, inverse, j);
      if (ownColumn >= kHeadDim || start + j >= headCount) continue;
      const uint2 words = make_uint2(pack_bf16(out[j].x * by, out[j].y * by), pack_bf16(out[j].z * by, out[j].w * by));
      *reinterpret_cast<uint2 *>(result_at(a, at.row, head(j)) + column) = words;
    }
  }
}

/* A warp has 128 columns at a time. */
__device__ __forceinline__ void merge_row(const PlanArguments &a, const PlanMerge &at, int firstHead, int headCount) {
#pragma unroll
  for (int first = 0; first < kHeadDim; first += 128) {
    merge_columns(a, at, firstHead, headCount, first + int(threadIdx.x & 31) * 4);
  }
}

/* Merges one head alone, sixteen parts at a time. */
__device__ __forceinline__ void merge_head_columns(const PlanArguments &a, const PlanMerge &at, int head,
                                                   int ownColumn) {
  constexpr int kAtOnce = 16;
  const int lane = threadIdx.x & 31, column = min(ownColumn, kHeadDim - 4);
  const float *sums = a.partialSums + size_t(at.firstPartial) * a.queryHeads + head;
  float top = -infinity(), total = 0;
  float4 out = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (int first = 0; first < at.partCount; first += kAtOnce) {
    const int count = min(kAtOnce, at.partCount - first);
    const float sum = lane < count ? __ldcg(sums + size_t(first + lane) * a.queryHeads) : -infinity();
    float4 x[kAtOnce]; /* past the end: the last part again, with weight 0 */
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const float *from = partial_at(a, at.firstPartial + first + min(i, count - 1), head) + column;
      x[i] = __ldcg(reinterpret_cast<const float4 *>(from));
    }
    const float greatest = fmaxf(top, warp_max(sum)), base = greatest == -infinity() ? 0.0f : greatest;
    const float rescale = exp2_fast(top - base), weight = exp2_fast(sum - base);
    top = greatest;
    total = total * rescale + weight;
    out.x *= rescale, out.y *= rescale, out.z *= rescale, out.w *= rescale;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const float w = __shfl_sync(kAllLanes, weight, i);
      out.x += w * x[i].x, out.y += w * x[i].y, out.z += w * x[i].z, out.w += w * x[i].w;
    }
  }
  total = warp_sum(total) + sink_weight(a, head, top);
  const float inverse = total > 0 ? 1.0f / total : 0.0f;
  if (ownColumn >= kHeadDim) return;
  *reinterpret_cast<uint2 *>(result_at(a, at.row, head) + column) =
      make_uint2(pack_bf16(out.x * inverse, out.y * inverse), pack_bf16(out.z * inverse, out.w * inverse));
}

__device__ __forceinline__ void merge_head(const PlanArguments &a, const PlanMerge &at, int head) {
#pragma unroll
  for (int first = 0; first < kHeadDim; first += 128) {
    merge_head_columns(a, at, head, first + int(threadIdx.x & 31) * 4);
  }
}

/* A warp merges those of its lanes' rows that `complete` names; `merge` is the lane's own row's. */
__device__ __forceinline__ void merge_rows(const PlanArguments &a, const PlanUnit &unit, const PlanMerge &merge,
                                           uint32 complete) {
  if (complete == 0) return;
  __threadfence();
#pragma unroll 1
  for (; complete != 0; complete &= complete - 1) {
    const auto of = [&](int word) { return __shfl_sync(kAllLanes, word, __ffs(complete) - 1); };
    const PlanMerge at = {of(merge.row), of(merge.firstPartial), of(merge.partCount), 0};
    merge_row(a, at, unit.firstHead, unit.headCount);
  }
}

/* Called after a warp has written its rows, one a lane; merges the rows whose last part this was. */
__device__ __forceinline__ void finish_rows(const PlanArguments &a, const PlanUnit &unit, const TileRow &tileRow) {
  if (!__any_sync(kAllLanes, tileRow.merge >= 0)) return;
  PlanMerge merge = {};
  if (tileRow.merge >= 0) merge = a.merges[tileRow.merge];
  __threadfence();
  __syncwarp();
  const bool isLast = tileRow.merge >= 0 && arrive_at_merge(a, unit, tileRow.merge, merge.partCount);
  merge_rows(a, unit, merge, __ballot_sync(kAllLanes, isLast));
}

/*
 * Merges where all units run at the same time: each unit waits until all parts of its rows are there and merges its
 * share of the heads, so that no unit has to merge all of them. Part p of n merges the heads h with h * n / heads = p.
 * The lower half of a counter counts arrivals, its upper half the units that are done; the last of these sets it to
 * zero.
 */
__device__ __forceinline__ void finish_rows_together(const PlanArguments &a, const PlanUnit &unit,
                                                     const TileRow &tileRow, const PlanMerge &merge) {
  const bool isPart = tileRow.merge >= 0;
  const int heads = unit.headCount, parts = max(merge.partCount, 1), part = tileRow.partial - merge.firstPartial;
  const int firstHead = (part * heads + parts - 1) / parts, endHead = ((part + 1) * heads + parts - 1) / parts;
  const bool hasHeads = isPart && firstHead < endHead;
  int *counter = a.arrivals + size_t(isPart ? tileRow.merge : 0) * (a.kvHeads * head_tiles_of_group(a)) + unit.counter;
  constexpr int kDone = 1 << 16;
  __threadfence();
  __syncwarp();
  if (isPart && atomicAdd(counter, hasHeads ? 1 : kDone + 1) / kDone == parts - 1 && !hasHeads) *counter = 0;
  uint32 left = __ballot_sync(kAllLanes, hasHeads);
  if (left == 0) return;
  if (hasHeads) {
    while (*reinterpret_cast<volatile int *>(counter) % kDone < parts) __nanosleep(20);
  }
  __syncwarp();
  __threadfence();
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    const auto of = [&](int word) { return __shfl_sync(kAllLanes, word, __ffs(left) - 1); };
    const PlanMerge at = {of(merge.row), of(merge.firstPartial), of(merge.partCount), 0};
    const int from = of(firstHead), count = of(endHead) - from;
    if (count == 1) {
      merge_head(a, at, unit.firstHead + from);
    } else {
      merge_row(a, at, unit.firstHead + from, count);
    }
  }
  if (hasHeads && atomicAdd(counter, kDone) / kDone == parts - 1) *counter = 0;
}

#endif
