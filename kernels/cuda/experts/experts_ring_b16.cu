/* Products of one row with weights of its experts in bfloat16 (experts_ring.cuh has what they compute). */
#include "experts_ring.cuh"

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
experts_ring_gated_b16(const bf16 *input, const bf16 *__restrict__ weights, const float *, int, int, int,
    const int *chosen, int perToken, int in, int ffn, int gateStep, int upOffset, int activation, const float *squares,
    int squareCount, float epsilon, bf16 *out) {
  gated_experts(RowB16{weights, in}, chosen, perToken, ffn, gateStep, upOffset, activation, input,
                {squares, squareCount, in, epsilon}, out);
}

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
experts_ring_down_b16(const bf16 *input, const bf16 *__restrict__ weights, const float *, int, int, int,
    const int *chosen, const float *factors, int perToken, int in, int outputs, float scale, float *residual,
    const bf16 *__restrict__ norm, bf16 *next, float *squares) {
  down_experts(RowB16{weights, in}, chosen, factors, perToken, outputs, input, {nullptr, scale, residual, norm, next, squares});
}
