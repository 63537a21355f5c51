/*
 * Caps logits in place: x = cap * tanh(x / cap), float32 (Gemma 2).
 *
 *   logits [count]
 *
 * Grid: any, blocks of 256. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256) cap_logits(float *logits, int count, float cap) {
  let_next_begin();
  wait_for_previous();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    logits[i] = cap * tanhf(logits[i] / cap);
  }
}
