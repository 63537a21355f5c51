/* How the warps of a persistent thread block go over its units and through a ring of shared memory, each for itself. */
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

/* Units of a block, taken in turn there and back: the longest units come first, so no block gets the longest twice. */
struct UnitWalk {
  int round = 0, count;

  __device__ __forceinline__ explicit UnitWalk(const PlanArguments &a)
      : count(*a.itemCount * a.kvHeads * chunks_of_group(a)) {}
  __device__ __forceinline__ int index() const {
    const int place = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return round * gridDim.x + place;
  }
  __device__ __forceinline__ bool done() const { return index() >= count; }
};

#endif
