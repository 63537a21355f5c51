/* The choice of a row's experts by a warp (route_rows.cu has what is chosen). */
#ifndef SPANGATE_CHOOSE_EXPERTS_CUH
#define SPANGATE_CHOOSE_EXPERTS_CUH

#include "expert_tiles.cuh"

/* Scores as unsigned numbers in the same order, from 1 on: one that is NaN is the least. */
__device__ __forceinline__ uint32 key_of(float score) {
  const uint32 bits = __float_as_uint(score);
  return score != score ? 1u : bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float score_of(uint32 key) {
  return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

struct Scores {
  const float *logits;
  const bf16 *bias;

  /* Zeros of both signs are one score: the last addition makes them the same. */
  __device__ __forceinline__ float at(int expert) const {
    return __ldcg(logits + expert) + (bias ? to_float(bias[expert]) : 0.0f) + 0.0f;
  }
};

/* Where a row's experts and their weights go; `tiles` and `order` may be null. */
struct Chosen {
  int *experts;
  float *factors;
  ExpertTile *tiles;
  int *order;

  __device__ __forceinline__ void put(int rank, int expert, float factor) const {
    experts[rank] = expert;
    factors[rank] = factor;
    if (tiles) tiles[rank] = {expert, rank, 1, 0}, order[rank] = rank;
  }
};

/*
 * A lane keeps the scores of every 32nd expert, at most kKept of them, and that of rank `lane` when it is found. Ranks
 * from 32 on are written at once and divided in the end.
 */
template <int kKept>
__device__ __forceinline__ void choose_kept(const Scores &scores, int experts, int perToken, bool normalised,
                                            const Chosen &chosen) {
  const int lane = threadIdx.x & 31;
  uint32 keys[kKept];
#pragma unroll
  for (int i = 0; i < kKept; i++) {
    const int expert = lane + 32 * i;
    keys[i] = expert < experts ? key_of(scores.at(expert)) : 0u;
  }
  float greatest = 0, sum = 0, ownFactor = 0;
  int ownExpert = 0;
#pragma unroll 1
  for (int rank = 0; rank < perToken; rank++) {
    uint32 best = 0, place = 0;
#pragma unroll
    for (int i = 0; i < kKept; i++) {
      if (keys[i] > best) best = keys[i], place = i;
    }
    const uint32 top = __reduce_max_sync(kAllLanes, best);
    const uint32 expert = __reduce_min_sync(kAllLanes, best == top ? lane + 32 * place : ~0u);
#pragma unroll
    for (int i = 0; i < kKept; i++) {
      if (expert == uint32(lane + 32 * i)) keys[i] = 0;
    }
    const float score = score_of(top);
    if (rank == 0) {
      greatest = score;
      if (!normalised) {
        /* The best is no longer kept: its exponential is 1. */
#pragma unroll
        for (int i = 0; i < kKept; i++) sum += keys[i] ? __expf(score_of(keys[i]) - greatest) : 0.0f;
        sum = warp_sum(sum) + __expf(score - greatest);
      }
    }
    const float weight = __expf(score - greatest);
    if (normalised) sum += weight;
    if (rank < 32 && lane == rank) ownExpert = expert, ownFactor = weight;
    if (rank >= 32 && lane == rank % 32) chosen.put(rank, expert, weight);
  }
  if (lane < perToken) chosen.put(lane, ownExpert, ownFactor / sum);
  for (int rank = lane + 32; rank < perToken; rank += 32) chosen.factors[rank] /= sum;
}

/* @param experts at most 512 */
__device__ __forceinline__ void choose_experts(const Scores &scores, int experts, int perToken, bool normalised,
                                               const Chosen &chosen) {
  if (experts <= 128) {
    choose_kept<4>(scores, experts, perToken, normalised, chosen);
  } else {
    choose_kept<16>(scores, experts, perToken, normalised, chosen);
  }
}

#endif
