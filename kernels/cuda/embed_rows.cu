/*
 * Copies rows of the embedding table into the residual stream.
 *
 *   table [vocabulary][hidden] bf16, tokenIds [rows], residual [rows][hidden] float32; hidden a multiple of 8
 *   residual[r] = scale * table[id(r)], id(r) = tokenIds[r], or sampledIds[-1 - tokenIds[r]] when that is negative:
 *   a token that the step before this one drew and that the host does not know yet
 *
 * Grid: one block a row. The caller checks the ids; a sampled id below 0 (a failed row) reads row 0.
 * Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
embed_rows(const bf16 *__restrict__ table, const int *__restrict__ tokenIds, const int *__restrict__ sampledIds,
           const int *rowCount, int hidden, float scale, float *__restrict__ residual) {
  let_next_begin();
  const int row = blockIdx.x;
  if (row >= *rowCount) return;
  int id = tokenIds[row];
  if (id < 0) id = max(0, sampledIds[-1 - id]);
  const uint4 *from = reinterpret_cast<const uint4 *>(table + size_t(id) * hidden);
  float4 *to = reinterpret_cast<float4 *>(residual + size_t(row) * hidden);
  for (int i = threadIdx.x; i < hidden / 8; i += blockDim.x) {
    float x[8];
    unpack8(from[i], x);
    to[2 * i] = make_float4(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale);
    to[2 * i + 1] = make_float4(x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale);
  }
}
