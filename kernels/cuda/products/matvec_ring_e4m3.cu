/*
 * The products of matvec_e4m3.cu by thread blocks that stay (matvec_ring.cuh); parameters and results are the same, but
 * as matvec_ring.cu says.
 *
 * Grid: any, of 256 threads. Bytes: 1 a weight. For compute capability 8.9 and later; launched elsewhere, it faults.
 * Oracle: test/backend/cuda/emulated-matvec.ts.
 */
#include "matvec_ring_e4m3.cuh"

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
matvec_ring_e4m3(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales,
                 int scaleStride, int rowShift, int inShift, int in, int out, const float *squares, int squareCount,
                 float epsilon, bf16 *output) {
  const RowE4m3 form = {weights, {scales, scaleStride, rowShift, inShift}, in};
  ring_product(form, out, input, {squares, squareCount, in, epsilon}, output);
}

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
matvec_ring_e4m3_gated(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales,
                       int scaleStride, int rowShift, int inShift, int in, int ffn, int activation,
                       const float *squares, int squareCount, float epsilon, bf16 *output) {
  const RowE4m3 form = {weights, {scales, scaleStride, rowShift, inShift}, in};
  ring_gated(form, ffn, activation, input, {squares, squareCount, in, epsilon}, output);
}

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
matvec_ring_e4m3_add(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales,
                     int scaleStride, int rowShift, int inShift, int in, int out, const bf16 *__restrict__ bias,
                     float scale, float *residual, const bf16 *__restrict__ norm, bf16 *next, float *squares) {
  const RowE4m3 form = {weights, {scales, scaleStride, rowShift, inShift}, in};
  ring_add(form, out, input, {bias, scale, residual, norm, next, squares});
}
