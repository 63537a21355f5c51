/*
 * Chooses by the scores (choice_plan.cuh) of one layer: for each entry and KV head the list of the tokens that the row
 * reads, rising by number.
 *
 *   L_h = log2 of the sum over the candidates of 2^z_h;   score = the greatest of z_h - L_h over the KV head's query heads
 *
 * Forced tokens are in the list always; the rest of it are those with the greatest score as float16, of equal scores the
 * lower numbers. A score is not above 0 but for rounding, so its bits without the sign are compared, fewer first.
 *
 *   scores: what score_shadows.cu wrote. A KV head's first row is overwritten by ranks: 0 of a forced token, of others one
 *   more than their score's bits, and 0xffff behind the last candidate
 *   lists int2 [entries][kvHeads][listStride]: slot in the pool, and the offset of the token's segment
 *   counts: as in choice_counts.cuh
 *
 * Ranks are counted in two rounds, the upper 11 bits and the lower 4 of those at the limit, and then a list is filled in
 * order. A thread works on the same eight tokens in each round, so that it reads what it wrote itself.
 *
 * Grid: (rows that choose at most * kvHeads) of 1024 threads. Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_counts.cuh"
#include "choice_plan.cuh"
#include "shadow.cuh"

constexpr int kThreads = 1024, kWarps = kThreads / 32, kLane = 8;
constexpr int kLowBits = 4, kBins = 1 << (15 - kLowBits), kLowBins = 1 << kLowBits;
constexpr int kBinsPerThread = kBins / kThreads;
/* Behind the last candidate. Ranks end at that of the least finite number of float16. */
constexpr int kNoRank = 0xffff;

struct Eight {
  unsigned short x[kLane];
};

__device__ __forceinline__ Eight load_eight(const unsigned short *from) {
  const uint4 all = *reinterpret_cast<const uint4 *>(from);
  const uint32 words[4] = {all.x, all.y, all.z, all.w};
  Eight eight;
#pragma unroll
  for (int i = 0; i < kLane; i++) eight.x[i] = static_cast<unsigned short>(words[i / 2] >> 16 * (i % 2));
  return eight;
}

__device__ __forceinline__ void store_eight(unsigned short *to, const Eight &eight) {
  uint32 words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = uint32(eight.x[2 * i]) | uint32(eight.x[2 * i + 1]) << 16;
  *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

/* What stands before this thread's x in the block, and in `total` the sum. scratch: [33] ints. */
__device__ __forceinline__ int scan_before(int x, int *scratch, int &total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int sum = x;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    int warps = scratch[lane];
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const int other = __shfl_up_sync(kAllLanes, warps, step);
      if (lane >= step) warps += other;
    }
    scratch[lane] = warps;
  }
  __syncthreads();
  total = scratch[kWarps - 1];
  const int before = (warp == 0 ? 0 : scratch[warp - 1]) + sum - x;
  __syncthreads();
  return before;
}

/* L of the query heads of a KV head, by the parts of the entry's units: a warp each. */
__device__ __forceinline__ void find_sums(const ChoiceEntry &entry, const float2 *parts, int firstHead, int group,
                                          int queryHeads, float *sums) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (warp < group) {
    const float2 *own = parts + size_t(entry.firstUnit) * queryHeads + firstHead + warp;
    float greatest = -infinity();
    for (int u = lane; u < entry.unitCount; u += 32) greatest = fmaxf(greatest, own[size_t(u) * queryHeads].x);
    greatest = warp_max(greatest);
    float sum = 0;
    for (int u = lane; u < entry.unitCount; u += 32) {
      const float2 part = own[size_t(u) * queryHeads];
      sum += part.y * exp2_fast(part.x - greatest);
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[warp] = greatest + log2f(sum);
  }
  __syncthreads();
}

/* A rank for each candidate, in place of the scores of the first query head: 0 for a forced one, else at least 1. */
__device__ __forceinline__ void rank_tokens(const ChoiceEntry &entry, unsigned short *scores, const float *sums, int group,
                                            int *bins) {
  for (int first = threadIdx.x * kLane; first < entry.candidates; first += kThreads * kLane) {
    float best[kLane];
#pragma unroll
    for (int i = 0; i < kLane; i++) best[i] = -infinity();
    for (int h = 0; h < group; h++) {
      const Eight z = load_eight(scores + size_t(h) * entry.scoreStride + first);
#pragma unroll
      for (int i = 0; i < kLane; i++) best[i] = fmaxf(best[i], half_to_float(z.x[i]) - sums[h]);
    }
    Eight ranks;
#pragma unroll
    for (int i = 0; i < kLane; i++) {
      const bool isForced = best[i] == infinity();
      const int rank = isForced ? 0 : (to_finite_half(best[i]) & 0x7fff) + 1;
      ranks.x[i] = static_cast<unsigned short>(first + i < entry.candidates ? rank : kNoRank);
      if (first + i < entry.candidates) atomicAdd(bins + (rank >> kLowBits), 1);
    }
    store_eight(scores + first, ranks);
  }
  __syncthreads();
}

/* The rank of the last token that is taken, and in `take` how many of that rank are. */
__device__ __forceinline__ int find_limit(const ChoiceEntry &entry, const unsigned short *ranks, int *bins, int *scratch,
                                          int &take) {
  __shared__ int found[2], low[kLowBins];
  int own[kBinsPerThread], sum = 0, total;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; i++) sum += own[i] = bins[threadIdx.x * kBinsPerThread + i];
  int before = scan_before(sum, scratch, total);
#pragma unroll
  for (int i = 0; i < kBinsPerThread; i++) {
    if (before < take && before + own[i] >= take) found[0] = threadIdx.x * kBinsPerThread + i, found[1] = take - before;
    before += own[i];
  }
  if (threadIdx.x < kLowBins) low[threadIdx.x] = 0;
  __syncthreads();
  const int bin = found[0];
  for (int first = threadIdx.x * kLane; first < entry.candidates; first += kThreads * kLane) {
    const Eight eight = load_eight(ranks + first);
#pragma unroll
    for (int i = 0; i < kLane; i++) {
      if (eight.x[i] >> kLowBits == bin && eight.x[i] != kNoRank) atomicAdd(low + (eight.x[i] & (kLowBins - 1)), 1);
    }
  }
  __syncthreads();
  take = found[1];
  int last = 0;
  for (; last + 1 < kLowBins && low[last] < take; last++) take -= low[last];
  return bin << kLowBits | last;
}

/* Slot and offset of a candidate. */
__device__ __forceinline__ int2 place_of(const ChoicePlan &plan, const ChoiceEntry &entry, int number, int blockShift) {
  const ChoiceSegment *segments = reinterpret_cast<const ChoiceSegment *>(plan.step + entry.firstSegment);
  int low = 0;
  for (int high = entry.segmentCount; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (segments[middle].number <= number) low = middle;
    else high = middle;
  }
  const ChoiceSegment &own = segments[low];
  const TokenPlace place = place_in(plan.step, own.blocks, own.firstToken + number - own.number, blockShift);
  return make_int2((place.block << blockShift) + place.token, own.offset);
}

/* The tokens below the limit and the first `equal` at it, in order. */
__device__ __forceinline__ void fill_list(const ChoicePlan &plan, const ChoiceEntry &entry, const unsigned short *ranks,
                                          int limit, int equal, int blockShift, int *scratch, int2 *list) {
  int takenBefore = 0, equalBefore = 0;
  for (int tile = 0; tile < entry.candidates; tile += kThreads * kLane) {
    const int first = tile + threadIdx.x * kLane;
    Eight eight;
#pragma unroll
    for (int i = 0; i < kLane; i++) eight.x[i] = kNoRank;
    if (first < entry.candidates) eight = load_eight(ranks + first);
    /* Up to 8192 in each half of a word. */
    int counted = 0, total;
#pragma unroll
    for (int i = 0; i < kLane; i++) counted += (eight.x[i] < limit) | (eight.x[i] == limit) << 16;
    const int before = scan_before(counted, scratch, total);
    int taken = takenBefore + (before & 0xffff), same = equalBefore + (before >> 16);
#pragma unroll
    for (int i = 0; i < kLane; i++) {
      const bool isEqual = eight.x[i] == limit;
      if (eight.x[i] < limit || (isEqual && same < equal)) {
        list[taken + min(same, equal)] = place_of(plan, entry, first + i, blockShift);
      }
      taken += eight.x[i] < limit, same += isEqual;
    }
    takenBefore += total & 0xffff, equalBefore += total >> 16;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
choose_tokens(const int *step, const int *choicePlace, int queryHeads, int kvHeads, int blockShift, int listStride,
              const float2 *parts, unsigned short *scores, int2 *lists, uint64 *counts) {
  __shared__ int bins[kBins], scratch[kWarps + 1];
  __shared__ float sums[kMaxGroup];
  let_next_begin();
  const ChoicePlan plan = choice_plan(step, choicePlace);
  for (int i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
  const int index = blockIdx.x / kvHeads, kvHead = blockIdx.x % kvHeads, group = queryHeads / kvHeads;
  wait_for_previous();
  if (index >= plan.entryCount) return;
  const ChoiceEntry entry = plan.entries[index];
  find_sums(entry, parts, kvHead * group, group, queryHeads, sums);
  unsigned short *own = scores + size_t(entry.scoreStart) * queryHeads + size_t(kvHead) * group * entry.scoreStride;
  rank_tokens(entry, own, sums, group, bins);
  int equal = entry.take;
  const int limit = find_limit(entry, own, bins, scratch, equal);
  fill_list(plan, entry, own, limit, equal, blockShift, scratch, lists + size_t(blockIdx.x) * listStride);
  if (threadIdx.x == 0) count_list(entry, counts);
}
