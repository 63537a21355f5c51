/*
 * The filters of sampling as searches. Top-k, top-p, min-p and the draw itself each look for a prefix of the tokens in
 * order of logit (ties by lowest id): the shortest prefix that reaches a count or a mass. A search keeps an interval of
 * logits that contains the prefix's end, and each pass narrows it to an eighth, until one logit is left. Once few
 * enough tokens lie in the interval, the search continues over those alone, in shared memory.
 *
 * Mass is exp((logit - greatest) / temperature) * 2^40 as an integer: sums are exact and the same in any order.
 */
#ifndef SPANGATE_PREFIX_SEARCH_CUH
#define SPANGATE_PREFIX_SEARCH_CUH

#include "sampling.cuh"

constexpr int kThreads = 1024, kWarps = kThreads / 32, kListSize = 8192, kPivots = 7;
constexpr float kWeightScale = 1099511627776.0f;
/* exp(-29) * 2^40 < 1: tokens more than 29 temperatures below the best logit have no mass. */
constexpr float kReach = 29.0f;

struct Row {
  const float *logits;
  int vocabSize;
  float greatest, inverseTemperature;

  __device__ __forceinline__ float weight(float logit) const { return expf((logit - greatest) * inverseTemperature); }
  __device__ __forceinline__ uint64 mass(float logit) const { return uint64(weight(logit) * kWeightScale); }
};

/* The logits that a search looks at: a list in shared memory, or the whole row. */
struct Candidates {
  const float *logits;
  int count;
  uint64 mass;
};

struct Shared {
  uint64 scratch[32];
  uint64 sums[kWarps][kPivots];
  float list[kListSize];
  int cell;
};

/* Puts the logits in [low, high) into the list, if they fit. @return how many there are */
__device__ int gather(const Row &row, float low, float high, Shared &shared) {
  if (threadIdx.x == 0) shared.cell = 0;
  __syncthreads();
  for_each_logit(row.logits, row.vocabSize, [&](float logit, int) {
    if (!(logit >= low && logit < high)) return;
    const uint32 lanes = __activemask(), leader = __ffs(lanes) - 1, lane = threadIdx.x & 31;
    int at = 0;
    if (lane == leader) at = atomicAdd(&shared.cell, __popc(lanes));
    at = __shfl_sync(lanes, at, leader) + __popc(lanes & ((1u << lane) - 1));
    if (at < kListSize) shared.list[at] = logit;
  });
  __syncthreads();
  const int count = shared.cell;
  __syncthreads();
  return count;
}

enum class Measure { kCount, kMass };

template <Measure measure>
__device__ __forceinline__ uint64 measure_of(const Row &row, float logit) {
  return measure == Measure::kCount ? 1 : row.mass(logit);
}

/* Count or mass of the candidates whose logit is at least `low`. */
template <Measure measure>
__device__ uint64 tally(const Row &row, const Candidates &from, float low, Shared &shared) {
  uint64 sum = 0;
  for_each_logit(from.logits, from.count, [&](float logit, int) {
    if (logit >= low) sum += measure_of<measure>(row, logit);
  });
  return block_sum(sum, shared.scratch);
}

/* Invariant: candidates at or above `low` reach the target; those at or above `high` measure `above`, which is less. */
struct Interval {
  float low, high;
  uint64 above;
};

template <Measure measure>
__device__ Interval narrow(const Row &row, const Candidates &from, const Interval &in, uint64 target, Shared &shared) {
  float pivots[kPivots];
  uint64 sums[kPivots] = {};
#pragma unroll
  for (int j = 0; j < kPivots; j++) {
    const float share = float(j + 1) / (kPivots + 1);
    pivots[j] = fminf(fmaxf(in.low + (in.high - in.low) * share, in.low), in.high);
  }
  for_each_logit(from.logits, from.count, [&](float logit, int) {
    if (!(logit >= pivots[0] && logit < in.high)) return;
    const uint64 size = measure_of<measure>(row, logit);
#pragma unroll
    for (int j = 0; j < kPivots; j++) sums[j] += logit >= pivots[j] ? size : 0;
  });
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < kPivots; j++) {
    sums[j] = warp_sum(sums[j]);
    if (lane == 0) shared.sums[threadIdx.x >> 5][j] = sums[j];
  }
  __syncthreads();
  Interval out = {in.low, in.high, in.above};
#pragma unroll
  for (int j = 0; j < kPivots; j++) {
    const uint64 reached = in.above + warp_sum(shared.sums[lane][j]);
    if (reached >= target) {
      out.low = pivots[j];
    } else {
      out.high = pivots[j], out.above = reached;
      break;
    }
  }
  __syncthreads();
  return out;
}

struct Prefix {
  float last;   /* the lowest logit of the prefix */
  uint64 ties;  /* how many tokens with that logit belong to the prefix: those with the lowest ids */
  uint64 mass;
};

/* Requires target >= 1, and that the candidates within reach of the best logit together reach the target. */
template <Measure measure>
__device__ Prefix shortest_prefix(const Row &row, const Candidates &from, uint64 target, Shared &shared) {
  const float reach = kReach / row.inverseTemperature;
  Interval in = {row.greatest - reach, nextafterf(row.greatest, infinity()), 0};
  Candidates at = from;
  for (int pass = 1; nextafterf(in.low, infinity()) < in.high; pass++) {
    in = narrow<measure>(row, at, in, target, shared);
    if (at.logits == row.logits && pass % 3 == 0) {
      const int count = gather(row, in.low, in.high, shared);
      if (count <= kListSize) at = {shared.list, count, 0};
    }
  }
  const uint64 each = row.mass(in.low);
  if (measure == Measure::kMass) {
    const uint64 ties = (target - in.above + each - 1) / each;
    return {in.low, ties, in.above + ties * each};
  }
  const uint64 ties = target - in.above;
  return {in.low, ties, tally<Measure::kMass>(row, from, in.high, shared) + ties * each};
}

#endif
