/* Where rows of q, K and V stand in shared memory for mma.sync, and what a lane loads of them. */
#ifndef SPANGATE_ATTENTION_FRAGMENTS_CUH
#define SPANGATE_ATTENTION_FRAGMENTS_CUH

#include "attention_plan.cuh"

/* Rows are 16 bytes longer: an odd number of 16-byte vectors, so eight rows lie in different banks. */
constexpr int kStride = kHeadDim + 8;

/* Lane's place in the 16x16 corner of a matrix in shared memory for load_matrices. */
__device__ __forceinline__ int row_fragment_offset() { /* A row-major; B of V, transposed */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + ((lane >> 3) & 1) * 8) * kStride + (lane >> 4) * 8;
}
__device__ __forceinline__ int key_fragment_offset() { /* B of K: tokens are its columns */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + (lane >> 4) * 8) * kStride + ((lane >> 3) & 1) * 8;
}

#endif
