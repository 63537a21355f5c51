/*
 * RMSNorm over all heads of q of a row together, and over all heads of k (OLMo 2), in place, before qkv_finish.cu.
 *
 *   qkv [rows][rowWidth] bf16: q [qWidth], k [kWidth], v; qNorm [qWidth], kNorm [kWidth] bf16
 *   x = x / sqrt(mean(x^2) + epsilon) * norm; widths are multiples of 8
 *
 * Grid: (rows, 2) of 256 threads: a block for q, one for k. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
norm_projections(bf16 *qkv, const bf16 *__restrict__ qNorm, const bf16 *__restrict__ kNorm, float epsilon,
                 const int *rowCount, int qWidth, int kWidth, int rowWidth) {
  __shared__ float scratch[32];
  let_next_begin();
  wait_for_previous();
  if (blockIdx.x >= *rowCount) return;
  const bool isKey = blockIdx.y == 1;
  const int width = isKey ? kWidth : qWidth;
  uint4 *values = reinterpret_cast<uint4 *>(qkv + size_t(blockIdx.x) * rowWidth + (isKey ? qWidth : 0));
  const uint4 *norm = reinterpret_cast<const uint4 *>(isKey ? kNorm : qNorm);
  float squares = 0, x[8], w[8];
  for (int i = threadIdx.x; i < width / 8; i += blockDim.x) {
    unpack8(values[i], x);
#pragma unroll
    for (int j = 0; j < 8; j++) squares += x[j] * x[j];
  }
  const float factor = rsqrtf(block_sum(squares, scratch) / width + epsilon);
  for (int i = threadIdx.x; i < width / 8; i += blockDim.x) {
    unpack8(values[i], x);
    unpack8(norm[i], w);
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] *= factor * w[j];
    values[i] = pack8(x);
  }
}
