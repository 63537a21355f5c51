/*
 * The gated activation of the MLP.
 *
 *   gateUp [rows][2 * ffn] bf16, a row holding gate [ffn] and up [ffn]; out [rows][ffn] bf16, computed in float32 by the
 *   activation of this number (activation.cuh); ffn a multiple of 8
 *
 * Grid: (ceil(ffn / 8 / 256), rows). Bytes: 6 a value. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "activation.cuh"
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
activate(const bf16 *gateUp, const int *rowCount, int ffn, int activation, bf16 *__restrict__ out) {
  let_next_begin();
  wait_for_previous();
  const size_t row = blockIdx.y;
  const int vector = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= *rowCount || vector >= ffn / 8) return;
  const uint4 *from = reinterpret_cast<const uint4 *>(gateUp + row * 2 * ffn);
  float gate[8], up[8];
  unpack8(from[vector], gate);
  unpack8(from[ffn / 8 + vector], up);
#pragma unroll
  for (int i = 0; i < 8; i++) up[i] = gated(gate[i], up[i], activation);
  reinterpret_cast<uint4 *>(out + row * ffn)[vector] = pack8(up);
}
