/* Weights of 8 bits as a form of matvec_ring.cuh. */
#ifndef SPANGATE_MATVEC_RING_E4M3_CUH
#define SPANGATE_MATVEC_RING_E4M3_CUH

#include "e4m3.cuh"
#include "matvec_ring.cuh"

struct RowE4m3 {
  static constexpr int kWeights = 16;
  const unsigned char *weights;
  Scales scales;
  int in;

  __device__ __forceinline__ const uint4 *at(int row, int vector) const {
    return reinterpret_cast<const uint4 *>(weights) + (size_t(row) * (in / kWeights) + vector);
  }
  __device__ __forceinline__ float scale(int row, int vector) const {
    return __ldg(scales.row(row) + (vector >> scales.inShift));
  }
  static __device__ __forceinline__ float add(float sum, const uint4 &weights, const uint4 *input, float scale) {
    float low[8], high[8], x[16];
    unpack8(input[0], low), unpack8(input[1], high);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = low[i], x[8 + i] = high[i];
    return fmaf(dot16(weights, x), scale, sum);
  }
  static __device__ __forceinline__ float add_scaled(float sum, const uint4 &weights, const uint4 *input, float scale) {
    return add(sum, weights, input, scale);
  }
};

#endif
