/* How each warp of a persistent thread block goes over the block's units and through a ring of shared memory. */
#ifndef SPANGATE_UNIT_WALK_CUH
#define SPANGATE_UNIT_WALK_CUH

#include "attention_plan.cuh"

/* A place in a ring of kCount slots and the parity of its round. */
template <int kCount>
struct RingPlace {
  int slot = 0;
  uint32 parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == kCount) slot = 0, parity ^= 1;
  }
};

/*
 * The unit that a thread block works on at its visit 0, 1, 2 ... Units are sorted by work, the longest first, and the
 * order of the blocks is reversed at each visit, so that no block gets the longest unit twice.
 */
__device__ __forceinline__ int unit_index(int visit) {
  return visit * gridDim.x + (visit & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

/* Goes over the units of a thread block, one after the other. */
struct UnitWalk {
  int visit = 0, count;

  __device__ __forceinline__ explicit UnitWalk(const PlanArguments &a)
      : count(*a.itemCount * a.kvHeads * head_tiles_of_group(a)) {}
  __device__ __forceinline__ int index() const { return unit_index(visit); }
  __device__ __forceinline__ bool done() const { return index() >= count; }
};

#endif
