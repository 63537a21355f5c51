/*
 * The gated activation of the MLP.
 *
 *   gateUp [rows][2 * ffn] bf16, a row holding gate [ffn] and up [ffn]; out [rows][ffn] bf16, computed in float32 by the
 *   activation of this number (activation.cuh); ffn a multiple of 8
 *   scales not null: out in 8 bits, as quantize_blocks of quantize.cu would have it, with its rowStride; ffn a multiple of
 *   128
 *   activate_rows  in 8 bits as quantize_rows of quantize.cu would have it, ffn at most 32,768
 *
 * Grid: (ceil(ffn / 8 / 256), rows) of 256 threads; activate_rows: rows, of blocks of ffn / 32 threads at least, in whole
 * warps. Bytes: 6 a value. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "activation.cuh"
#include "e4m3.cuh"

/* Eight values of a row. */
__device__ __forceinline__ uint4 activated(const uint4 *row, int vector, int vectors, int activation) {
  float gate[8], up[8];
  unpack8(row[vector], gate);
  unpack8(row[vectors + vector], up);
#pragma unroll
  for (int i = 0; i < 8; i++) up[i] = gated(gate[i], up[i], activation);
  return pack8(up);
}

extern "C" __global__ void __launch_bounds__(256)
activate(const bf16 *gateUp, const int *rowCount, int ffn, int activation, void *out, float *scales, int rowStride) {
  let_next_begin();
  wait_for_previous();
  const size_t row = blockIdx.y;
  const int vector = blockIdx.x * blockDim.x + threadIdx.x, vectors = ffn / 8;
  if (row >= *rowCount || vector >= vectors) return;
  const uint4 own = activated(reinterpret_cast<const uint4 *>(gateUp) + row * 2 * vectors, vector, vectors, activation);
  if (scales) return put_block(own, row, vector, vectors, static_cast<uint2 *>(out), scales, rowStride);
  static_cast<uint4 *>(out)[row * vectors + vector] = own;
}

extern "C" __global__ void __launch_bounds__(1024)
activate_rows(const bf16 *gateUp, const int *rowCount, int ffn, int activation, uint2 *__restrict__ out,
              float *__restrict__ scales) {
  __shared__ float scratch[32];
  let_next_begin();
  wait_for_previous();
  const size_t row = blockIdx.x;
  if (row >= *rowCount) return;
  const int vectors = ffn / 8;
  uint4 own[kRowVectors];
#pragma unroll
  for (int c = 0; c < kRowVectors; c++) {
    const int vector = threadIdx.x + c * blockDim.x;
    own[c] = make_uint4(0, 0, 0, 0);
    if (vector < vectors) {
      own[c] = activated(reinterpret_cast<const uint4 *>(gateUp) + row * 2 * vectors, vector, vectors, activation);
    }
  }
  put_row(own, row, vectors, out, scales, scratch);
}
