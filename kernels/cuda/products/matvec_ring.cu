/*
 * The products of matvec.cu by thread blocks that stay (matvec_ring.cuh); parameters and results are the same, but
 * that matvec_ring_gated takes an activation's number (activation.cuh), and matvec_ring_add a bias [out] bf16 or null,
 * which is added to the products first; its squares[block] is of all the block's outputs.
 *
 * Grid: any, of 256 threads. Bytes: 2 a weight. Oracle: test/backend/cuda/emulated-matvec.ts.
 */
#include "matvec_ring.cuh"

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
matvec_ring(const bf16 *input, const bf16 *__restrict__ weights, int in, int out, const float *squares, int squareCount,
            float epsilon, bf16 *output) {
  ring_product(RowB16{weights, in}, out, input, {squares, squareCount, in, epsilon}, output);
}

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
matvec_ring_float(const bf16 *input, const bf16 *__restrict__ weights, int in, int out, const float *squares,
                  int squareCount, float epsilon, float *output) {
  ring_product(RowB16{weights, in}, out, input, {squares, squareCount, in, epsilon}, output);
}

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
matvec_ring_gated(const bf16 *input, const bf16 *__restrict__ weights, int in, int ffn, int activation,
                  const float *squares, int squareCount, float epsilon, bf16 *output) {
  ring_gated(RowB16{weights, in}, ffn, activation, input, {squares, squareCount, in, epsilon}, output);
}

extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)
matvec_ring_add(const bf16 *input, const bf16 *__restrict__ weights, int in, int out, const bf16 *__restrict__ bias,
                float scale, float *residual, const bf16 *__restrict__ norm, bf16 *next, float *squares) {
  ring_add(RowB16{weights, in}, out, input, {bias, scale, residual, norm, next, squares});
}
