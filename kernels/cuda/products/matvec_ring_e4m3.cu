/*
 * The products of matvec_e4m3.cu by thread blocks that stay (matvec_ring.cuh); parameters and results are the same, but
 * that matvec_ring_e4m3_add's squares[block] is of all the block's outputs.
 *
 * Grid: any, of 256 threads. Bytes: 1 a weight. For compute capability 8.9 and later; launched elsewhere, it faults.
 * Oracle: test/backend/cuda/emulated-matvec.ts.
 */
#include "e4m3.cuh"
#include "matvec_ring.cuh"

struct RowE4m3 {
  static constexpr int kWeights = 16;
  const unsigned char *weights;
  Scales scales;
  int in;

  __device__ __forceinline__ const uint4 *row(int o) const {
    return reinterpret_cast<const uint4 *>(weights + size_t(o) * in);
  }
  __device__ __forceinline__ float scale(int o, int vector) const {
    return __ldg(scales.row(o) + (vector >> scales.inShift));
  }
  static __device__ __forceinline__ float add(float sum, const uint4 &weights, const uint4 *input, float scale) {
    float low[8], high[8], x[16];
    unpack8(input[0], low), unpack8(input[1], high);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = low[i], x[8 + i] = high[i];
    return fmaf(dot16(weights, x), scale, sum);
  }
};

extern "C" __global__ void __launch_bounds__(kRingWarps * 32)
matvec_ring_e4m3(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales,
                 int scaleStride, int rowShift, int inShift, int in, int out, const float *squares, int squareCount,
                 float epsilon, bf16 *output) {
  const RowE4m3 form = {weights, {scales, scaleStride, rowShift, inShift}, in};
  ring_product(form, out, input, {squares, squareCount, epsilon}, output);
}

extern "C" __global__ void __launch_bounds__(kRingWarps * 32)
matvec_ring_e4m3_gated(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales,
                       int scaleStride, int rowShift, int inShift, int in, int ffn, const float *squares,
                       int squareCount, float epsilon, bf16 *output) {
  const RowE4m3 form = {weights, {scales, scaleStride, rowShift, inShift}, in};
  ring_gated(form, ffn, input, {squares, squareCount, epsilon}, output);
}

extern "C" __global__ void __launch_bounds__(kRingWarps * 32)
matvec_ring_e4m3_add(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales,
                     int scaleStride, int rowShift, int inShift, int in, int out, float scale, float *residual,
                     const bf16 *__restrict__ norm, bf16 *next, float *squares) {
  const RowE4m3 form = {weights, {scales, scaleStride, rowShift, inShift}, in};
  ring_add(form, out, input, scale, residual, norm, next, squares);
}
