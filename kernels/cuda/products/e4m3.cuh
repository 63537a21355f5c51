/* Numbers rounded to 8 bits (e4m3), as multiples of a scale that they share (quantize.cu). */
#ifndef SPANGATE_E4M3_CUH
#define SPANGATE_E4M3_CUH

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

/* What a scale's numbers are multiplied by before they are rounded. */
__device__ __forceinline__ float inverse_scale(float greatest) { return greatest > 0 ? kGreatest / greatest : 1.0f; }

/* Eight bf16, which are rounded once more, to 8 bits. */
__device__ __forceinline__ void unpack_halves(const uint4 &from, float (&low)[4], float (&high)[4]) {
  unpack4(make_uint2(from.x, from.y), low), unpack4(make_uint2(from.z, from.w), high);
}
__device__ __forceinline__ float greatest_of8(const uint4 &from) {
  float low[4], high[4];
  unpack_halves(from, low, high);
  return fmaxf(greatest_of(low), greatest_of(high));
}
__device__ __forceinline__ uint2 e4m3_eight(const uint4 &from, float inverse) {
  float low[4], high[4];
  unpack_halves(from, low, high);
  return make_uint2(e4m3_four(low, inverse), e4m3_four(high, inverse));
}

/* The greatest magnitude of 128 numbers, of which each of 16 neighbouring lanes has eight; all sixteen call it. */
__device__ __forceinline__ float greatest_of_block(const uint4 &own) {
  const uint32 lanes = 0xffffu << (threadIdx.x & 16);
  float greatest = greatest_of8(own);
#pragma unroll
  for (int step = 8; step > 0; step >>= 1) greatest = fmaxf(greatest, __shfl_xor_sync(lanes, greatest, step));
  return greatest;
}

/*
 * Vectors of eight numbers of a row that a thread keeps in registers: 1,024 threads keep 32,768 numbers. With room for
 * twice as many a step took 3 % longer.
 */
constexpr int kRowVectors = 4;

/* The greatest of the block's numbers, none of them negative; every thread gets it. `scratch`: 32 entries. */
__device__ __forceinline__ float block_greatest(float x, float *scratch) {
  x = warp_max(x);
  const int lane = threadIdx.x & 31, warps = (blockDim.x + 31) >> 5;
  if (lane == 0) scratch[threadIdx.x >> 5] = x;
  __syncthreads();
  return warp_max(lane < warps ? scratch[lane] : 0.0f);
}

/* A block's row with one scale; a thread has every blockDim-th vector, and zeros past the row's end. */
__device__ __forceinline__ void put_row(const uint4 (&own)[kRowVectors], size_t row, int vectors, uint2 *values,
                                        float *scales, float *scratch) {
  float greatest = 0;
#pragma unroll
  for (int c = 0; c < kRowVectors; c++) greatest = fmaxf(greatest, greatest_of8(own[c]));
  greatest = block_greatest(greatest, scratch);
  const float inverse = inverse_scale(greatest);
#pragma unroll
  for (int c = 0; c < kRowVectors; c++) {
    const int vector = threadIdx.x + c * blockDim.x;
    if (vector < vectors) values[row * vectors + vector] = e4m3_eight(own[c], inverse);
  }
  if (threadIdx.x == 0) scales[row] = greatest / kGreatest;
}

/*
 * Eight numbers of a row to 8 bits with a scale for 128 numbers of it, at scales[i / 128][row], `rowStride` from one to the
 * next; 16 neighbouring lanes that have a scale's numbers call it.
 */
__device__ __forceinline__ void put_block(const uint4 &own, size_t row, int vector, int vectors, uint2 *values,
                                          float *scales, int rowStride) {
  const float greatest = greatest_of_block(own);
  values[row * vectors + vector] = e4m3_eight(own, inverse_scale(greatest));
  if (vector % 16 == 0) scales[size_t(vector / 16) * rowStride + row] = greatest / kGreatest;
}

#endif
