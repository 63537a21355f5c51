/* Weights of 8 bits (e4m3) with scales, and their products; for compute capability 8.9 and later. */
#ifndef SPANGATE_E4M3_CUH
#define SPANGATE_E4M3_CUH

#include "common.cuh"

/* The scale of the weight at [o][i] is values[o >> rowShift][i >> 4 >> inShift]. */
struct Scales {
  const float *values;
  int stride, rowShift, inShift;

  __device__ __forceinline__ const float *row(int o) const { return values + size_t(o >> rowShift) * stride; }
};

__device__ __forceinline__ float2 from_e4m3(unsigned short pair) {
  float2 to = {};
#if __CUDA_ARCH__ >= 890
  uint32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
      : "=f"(to.x), "=f"(to.y)
      : "r"(halves));
#else
  __trap();
#endif
  return to;
}

/* Sixteen weights times sixteen values of the row. */
__device__ __forceinline__ float dot16(const uint4 &weights, const float (&x)[16]) {
  const uint32 words[4] = {weights.x, weights.y, weights.z, weights.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 low = from_e4m3(words[i] & 0xffffu), high = from_e4m3(words[i] >> 16);
    sum = fmaf(low.x, x[4 * i], sum), sum = fmaf(low.y, x[4 * i + 1], sum);
    sum = fmaf(high.x, x[4 * i + 2], sum), sum = fmaf(high.y, x[4 * i + 3], sum);
  }
  return sum;
}

#endif
