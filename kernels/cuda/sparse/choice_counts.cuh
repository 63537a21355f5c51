/* What is counted where tokens are chosen: [seats] lists since the seat was fresh (worker/contract/sparse.ts). */
#ifndef SPANGATE_CHOICE_COUNTS_CUH
#define SPANGATE_CHOICE_COUNTS_CUH

#include "choice_plan.cuh"

/* One thread block, before anything of the step is counted. */
__device__ __forceinline__ void forget_fresh(const ChoicePlan &plan, uint64 *counts) {
  for (int i = threadIdx.x; i < plan.entryCount; i += blockDim.x) {
    if (plan.entries[i].isFresh) counts[plan.entries[i].seat] = 0;
  }
}

/* One thread, of each list that was chosen. */
__device__ __forceinline__ void count_list(const ChoiceEntry &entry, uint64 *counts) {
  atomicAdd(counts + entry.seat, 1ull);
}

#endif
