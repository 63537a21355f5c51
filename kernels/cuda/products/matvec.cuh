/* What the products of one row share, whatever their weights' type (matvec.cu, matvec_e4m3.cu). */
#ifndef SPANGATE_MATVEC_CUH
#define SPANGATE_MATVEC_CUH

#include "common.cuh"

constexpr int kOutputs = 2;
constexpr int kWarps = 4;

/* A load of weights, which are read once: they take no space in the cache that holds the input. */
__device__ __forceinline__ uint4 load_weights(const uint4 *from) {
  uint4 to;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
      : "l"(from));
  return to;
}

__device__ __forceinline__ float norm_factor(const float *squares, int squareCount, int in, float epsilon) {
  if (!squares) return 1.0f;
  float sum = 0;
#pragma unroll 8
  for (int i = threadIdx.x & 31; i < squareCount; i += 32) sum += squares[i];
  return rsqrtf(warp_sum(sum) / in + epsilon);
}

__device__ __forceinline__ int warp_index() { return (blockIdx.x * blockDim.x + threadIdx.x) >> 5; }

/* What is left to do with two neighbouring outputs of a warp, of which lanes 0 and 1 hold one each. */
struct RowSum {
  float residual, norm;
  bool isMine;
  int o;
};

/* Adds two products to the residual stream, and leaves the block's sum of squares. Every thread of the block calls it. */
__device__ __forceinline__ void add_products(const RowSum &row, float sum, float scale, float *residual, bf16 *next,
                                             float *squares) {
  __shared__ float blockSquares[kWarps];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float value = row.residual + sum * scale;
  if (row.isMine) {
    residual[row.o] = value;
    next[row.o] = pack_bf16(value * row.norm, 0.0f) & 0xffffu;
  }
  const float own = row.isMine ? value * value : 0.0f;
  const float both = own + __shfl_down_sync(kAllLanes, own, 1);
  if (lane == 0) blockSquares[warp] = both;
  __syncthreads();
  if (threadIdx.x == 0) squares[blockIdx.x] = (blockSquares[0] + blockSquares[1]) + (blockSquares[2] + blockSquares[3]);
}

#endif
