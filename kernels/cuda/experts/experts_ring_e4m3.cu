/* Products of one row with weights of its experts in 8 bits (experts_ring.cuh has what they compute). */
#include "experts_ring.cuh"
#include "matvec_ring_e4m3.cuh"

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
experts_ring_gated_e4m3(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales, int scaleStride, int rowShift, int inShift,
    const int *chosen, int perToken, int in, int ffn, int gateStep, int upOffset, int activation, const float *squares,
    int squareCount, float epsilon, bf16 *out) {
  gated_experts(RowE4m3{weights, {scales, scaleStride, rowShift, inShift}, in}, chosen, perToken, ffn, gateStep, upOffset, activation, input,
                {squares, squareCount, in, epsilon}, out);
}

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
experts_ring_down_e4m3(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales, int scaleStride, int rowShift, int inShift,
    const int *chosen, const float *factors, int perToken, int in, int outputs, float scale, float *residual,
    const bf16 *__restrict__ norm, bf16 *next, float *squares) {
  down_experts(RowE4m3{weights, {scales, scaleStride, rowShift, inShift}, in}, chosen, factors, perToken, outputs, input, {nullptr, scale, residual, norm, next, squares});
}
