/*
 * Rows in 8 bits (e4m3) for products with weights of 8 bits: each number as a multiple of its scale, which is the greatest
 * magnitude that shares it, divided by e4m3's greatest number, 448.
 *
 *   input [rows][in] bf16; out [rows][in] e4m3; scales float32
 *   quantize_blocks   a scale for 128 numbers of a row, at scales[i / 128][row], `rowStride` from one to the next; in a
 *                     multiple of 128. Grid: (rows, ceil(in / 1024)) of 256 threads, a warp for 128 numbers
 *   quantize_rows     a scale for a row, at scales[row]; in a multiple of 8. Grid: rows, of blocks of in / 32 threads in whole
 *                     warps, at most 1,024; a row that is wider than these keep is read twice
 *
 * Where all numbers are 0, so is the scale. NaN stays NaN. Bytes: 3 a number. For compute capability 8.9 and later;
 * launched elsewhere, it faults. Oracle: test/backend/cuda/emulated-e4m3.ts.
 */
#include "e4m3.cuh"

extern "C" __global__ void __launch_bounds__(256)
quantize_blocks(const bf16 *input, const int *rowCount, int in, int rowStride, uint32 *__restrict__ out,
                float *__restrict__ scales) {
  let_next_begin();
  wait_for_previous();
  const int row = blockIdx.x, lane = threadIdx.x & 31, block = blockIdx.y * 8 + (threadIdx.x >> 5);
  if (row >= *rowCount || block >= in / 128) return;
  const size_t at = (size_t(row) * in + block * 128) / 4 + lane;
  float x[4];
  unpack4(reinterpret_cast<const uint2 *>(input)[at], x);
  const float greatest = warp_max(greatest_of(x));
  out[at] = e4m3_four(x, inverse_scale(greatest));
  if (lane == 0) scales[size_t(block) * rowStride + row] = greatest / kGreatest;
}

extern "C" __global__ void __launch_bounds__(1024)
quantize_rows(const bf16 *input, const int *rowCount, int in, uint2 *__restrict__ out, float *__restrict__ scales) {
  __shared__ float scratch[32];
  let_next_begin();
  wait_for_previous();
  const size_t row = blockIdx.x;
  if (row >= *rowCount) return;
  const uint4 *from = reinterpret_cast<const uint4 *>(input) + row * in / 8;
  const int vectors = in / 8;
  if (vectors > kRowVectors * int(blockDim.x)) {
    float greatest = 0;
    for (int vector = threadIdx.x; vector < vectors; vector += blockDim.x)
      greatest = fmaxf(greatest, greatest_of8(from[vector]));
    greatest = block_greatest(greatest, scratch);
    for (int vector = threadIdx.x; vector < vectors; vector += blockDim.x)
      out[row * vectors + vector] = e4m3_eight(from[vector], inverse_scale(greatest));
    if (threadIdx.x == 0) scales[row] = greatest / kGreatest;
    return;
  }
  uint4 own[kRowVectors];
#pragma unroll
  for (int c = 0; c < kRowVectors; c++) {
    const int vector = threadIdx.x + c * blockDim.x;
    own[c] = vector < vectors ? from[vector] : make_uint4(0, 0, 0, 0);
  }
  put_row(own, row, vectors, out, scales, scratch);
}
