/*
 * Rows in 8 bits (e4m3) for products with weights of 8 bits: each number as a multiple of its scale, which is the greatest
 * magnitude that shares it, divided by e4m3's greatest number, 448.
 *
 *   input [rows][in] bf16; out [rows][in] e4m3; scales float32
 *   quantize_blocks   a scale for 128 numbers of a row, at scales[i / 128][row], `rowStride` from one to the next; in a
 *                     multiple of 128. Grid: (rows, ceil(in / 1024)) of 256 threads, a warp for 128 numbers
 *   quantize_rows     a scale for a row, at scales[row]; in a multiple of 4. Grid: rows, of 256 threads
 *
 * Where all numbers are 0, so is the scale. NaN stays NaN. Bytes: 3 a number. For compute capability 8.9 and later;
 * launched elsewhere, it faults. Oracle: test/backend/cuda/emulated-e4m3.ts.
 */
#include "common.cuh"

constexpr float kGreatest = 448;

__device__ __forceinline__ uint32 e4m3_four(const float (&x)[4], float inverse) {
  uint32 word = 0;
#if __CUDA_ARCH__ >= 890
  unsigned short low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1] * inverse), "f"(x[0] * inverse));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3] * inverse), "f"(x[2] * inverse));
  word = low | uint32(high) << 16;
#else
  __trap();
#endif
  return word;
}

__device__ __forceinline__ void unpack4(const uint2 &from, float (&to)[4]) {
  to[0] = low_float(from.x), to[1] = high_float(from.x), to[2] = low_float(from.y), to[3] = high_float(from.y);
}

__device__ __forceinline__ float greatest_of(const float (&x)[4]) {
  return fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
}

extern "C" __global__ void __launch_bounds__(256)
quantize_blocks(const bf16 *input, const int *rowCount, int in, int rowStride, uint32 *__restrict__ out,
                float *__restrict__ scales) {
  let_next_begin();
  wait_for_previous();
  const int row = blockIdx.x, lane = threadIdx.x & 31, block = blockIdx.y * 8 + (threadIdx.x >> 5);
  if (row >= *rowCount || block >= in / 128) return;
  const size_t at = (size_t(row) * in + block * 128) / 4 + lane;
  float x[4];
  unpack4(reinterpret_cast<const uint2 *>(input)[at], x);
  const float greatest = warp_max(greatest_of(x));
  out[at] = e4m3_four(x, greatest > 0 ? kGreatest / greatest : 1.0f);
  if (lane == 0) scales[size_t(block) * rowStride + row] = greatest / kGreatest;
}

extern "C" __global__ void __launch_bounds__(256)
quantize_rows(const bf16 *input, const int *rowCount, int in, uint32 *__restrict__ out, float *__restrict__ scales) {
  __shared__ float greatestOf[8];
  let_next_begin();
  wait_for_previous();
  const int row = blockIdx.x, lane = threadIdx.x & 31;
  if (row >= *rowCount) return;
  const uint2 *from = reinterpret_cast<const uint2 *>(input) + size_t(row) * in / 4;
  float x[4], greatest = 0;
  for (int i = threadIdx.x; i < in / 4; i += blockDim.x) {
    unpack4(from[i], x);
    greatest = fmaxf(greatest, greatest_of(x));
  }
  greatest = warp_max(greatest);
  if (lane == 0) greatestOf[threadIdx.x >> 5] = greatest;
  __syncthreads();
  greatest = warp_max(greatestOf[lane & 7]);
  const float inverse = greatest > 0 ? kGreatest / greatest : 1.0f;
  for (int i = threadIdx.x; i < in / 4; i += blockDim.x) {
    unpack4(from[i], x);
    out[size_t(row) * in / 4 + i] = e4m3_four(x, inverse);
  }
  if (threadIdx.x == 0) scales[row] = greatest / kGreatest;
}
