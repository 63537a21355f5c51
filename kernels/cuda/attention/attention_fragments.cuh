/* Where rows of q, K and V lie in shared memory for mma.sync, and which parts of them a lane loads. */
#ifndef SPANGATE_ATTENTION_FRAGMENTS_CUH
#define SPANGATE_ATTENTION_FRAGMENTS_CUH

#include "attention_plan.cuh"

/* A row is padded by 16 bytes to an odd number of 16-byte vectors, so eight rows lie in different banks. */
constexpr int kStride = kHeadDim + 8;

/* The lane's place in the 16x16 corner of a matrix in shared memory, for load_matrices. */
__device__ __forceinline__ int row_fragment_offset() { /* for A row-major; for B from V, transposed */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + ((lane >> 3) & 1) * 8) * kStride + (lane >> 4) * 8;
}
__device__ __forceinline__ int key_fragment_offset() { /* for B from K, whose columns are the tokens */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + (lane >> 4) * 8) * kStride + ((lane >> 3) & 1) * 8;
}

#endif
