/* Shared by drawing a token and reporting log-probabilities: how a row is sampled, and the order of logits. */
#ifndef SPANGATE_SAMPLING_CUH
#define SPANGATE_SAMPLING_CUH

#include "common.cuh"

/* How a row is sampled, 16 words. The fields mean the same as in SamplingParams of worker/contract/messages.ts. */
struct SampleRow {
  float inverseTemperature; /* 0: greedy */
  float topP, minP;
  int topK;                 /* 0: off */
  float repetitionPenalty, presencePenalty, frequencyPenalty;
  int firstEdit, editCount; /* a row's edits in the list of edits; a row edits no token twice */
  uint32 seedLow, seedHigh, indexLow, indexHigh; /* the number drawn is uniform(seed, index) of worker/sample/rng.ts */
  int topLogprobs;          /* -1: none at all */
  int reserved[2];
};

/* An edit: changes one token's logit before a token is drawn (worker/sample/penalties.ts). */
struct TokenEdit {
  int tokenId;
  int flags;          /* kSeen, kBanned */
  int generatedCount;
  float bias;
};
constexpr int kSeen = 1, kBanned = 2;

/* Calls see(logit, tokenId) for the block's share of a row, with eight loads in flight at a time. */
template <class See>
__device__ __forceinline__ void for_each_logit(const float *logits, int count, See see) {
  constexpr int kAtOnce = 8;
  for (int start = threadIdx.x; start < count; start += kAtOnce * blockDim.x) {
    float held[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      const int i = start + k * blockDim.x;
      held[k] = i < count ? logits[i] : -infinity();
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      const int i = start + k * blockDim.x;
      if (i < count) see(held[k], i);
    }
  }
}

/*
 * Ranks tokens by logit: the greatest rank is the best, and of equal logits the lowest id ranks first. The upper half
 * of a rank orders like the float; NaN is the greatest, and -0 equals 0.
 */
__device__ __forceinline__ uint32 key_of(float x) {
  if (x != x) return 0xffffffffu;
  const uint32 bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64 rank_of(float logit, int tokenId) {
  return uint64(key_of(logit)) << 32 | (0xffffffffu - uint32(tokenId));
}
__device__ __forceinline__ int token_of(uint64 rank) { return int(0xffffffffu - uint32(rank)); }
__device__ __forceinline__ float logit_of(uint64 rank) {
  const uint32 key = uint32(rank >> 32);
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* The best token whose rank is below `limit`; every thread gets it. */
__device__ __forceinline__ uint64 best_below(const float *logits, int vocabSize, uint64 limit, uint64 *scratch) {
  uint64 best = 0;
  for_each_logit(logits, vocabSize, [&](float logit, int tokenId) {
    const uint64 rank = rank_of(logit, tokenId);
    if (rank > best && rank < limit) best = rank;
  });
  return block_max(best, scratch);
}

/* False where the best logit is NaN or not finite. */
__device__ __forceinline__ bool is_usable(uint64 best) {
  const uint32 key = uint32(best >> 32);
  return key > key_of(-infinity()) && key < key_of(infinity());
}

/* Philox 4x32-10 as in worker/sample/rng.ts: the 53 bits of uniform(seed, index). */
__device__ __forceinline__ uint64 random_bits(const SampleRow &row) {
  uint32 c0 = row.indexLow, c1 = row.indexHigh, c2 = 0, c3 = 0, k0 = row.seedLow, k1 = row.seedHigh;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint32 high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    const uint32 high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
  }
  return uint64(c0 >> 5) << 26 | c1 >> 6;
}

#endif
