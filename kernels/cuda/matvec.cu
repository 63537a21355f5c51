/*
 * One row times a weight matrix: what a decode step of batch 1 does with all its weights, at the rate of memory.
 *
 *   input [in] bf16, weights [out][in] bf16, output [out] bf16 (matvec) or float32 (matvec_float); in a multiple of 8
 *   output[o] = sum of input[i] * weights[o][i], in float32
 *
 * A warp computes two outputs: a lane has 8 weight loads of 16 bytes in flight before it uses the first, so that some
 * 60 KB are on their way to a multiprocessor at any time. The input is read through the first-level cache, which the
 * weights pass by. Grid: ceil(out / 2 / 4) blocks of 128 threads. Bytes: 2 a weight.
 * Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "common.cuh"

constexpr int kOutputs = 2;
constexpr int kBatch = 4;

/* Read once: kept in no cache that the input uses. */
__device__ __forceinline__ uint4 load_weights(const uint4 *from) {
  uint4 to;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
      : "l"(from));
  return to;
}

__device__ __forceinline__ float dot8(const uint4 &weights, const float (&x)[8], float sum) {
  float w[8];
  unpack8(weights, w);
#pragma unroll
  for (int i = 0; i < 8; i++) sum = fmaf(w[i], x[i], sum);
  return sum;
}

/* The warp's sums, in every lane. */
__device__ __forceinline__ void matvec_sums(const bf16 *input, const bf16 *weights, int in, int out, int first,
                                            float (&sums)[kOutputs]) {
  const int lane = threadIdx.x & 31, chunks = in / 8;
  const uint4 *x4 = reinterpret_cast<const uint4 *>(input);
  const uint4 *rows[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; o++) {
    rows[o] = reinterpret_cast<const uint4 *>(weights + size_t(min(first + o, out - 1)) * in);
    sums[o] = 0;
  }
  int chunk = lane;
  for (; chunk + (kBatch - 1) * 32 < chunks; chunk += kBatch * 32) {
    uint4 w[kOutputs][kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; b++)
#pragma unroll
      for (int o = 0; o < kOutputs; o++) w[o][b] = load_weights(rows[o] + chunk + b * 32);
#pragma unroll
    for (int b = 0; b < kBatch; b++) {
      float x[8];
      unpack8(__ldg(x4 + chunk + b * 32), x);
#pragma unroll
      for (int o = 0; o < kOutputs; o++) sums[o] = dot8(w[o][b], x, sums[o]);
    }
  }
  for (; chunk < chunks; chunk += 32) {
    float x[8];
    unpack8(__ldg(x4 + chunk), x);
#pragma unroll
    for (int o = 0; o < kOutputs; o++) sums[o] = dot8(load_weights(rows[o] + chunk), x, sums[o]);
  }
#pragma unroll
  for (int o = 0; o < kOutputs; o++) sums[o] = warp_sum(sums[o]);
}

__device__ __forceinline__ int first_output() {
  return ((blockIdx.x * blockDim.x + threadIdx.x) >> 5) * kOutputs;
}

extern "C" __global__ void __launch_bounds__(128)
matvec(const bf16 *__restrict__ input, const bf16 *__restrict__ weights, int in, int out, bf16 *__restrict__ output) {
  const int first = first_output(), lane = threadIdx.x & 31;
  if (first >= out) return;
  float sums[kOutputs];
  matvec_sums(input, weights, in, out, first, sums);
  const float mine = lane == 0 ? sums[0] : sums[1];
  if (lane < kOutputs && first + lane < out) output[first + lane] = pack_bf16(mine, 0.0f) & 0xffffu;
}

extern "C" __global__ void __launch_bounds__(128)
matvec_float(const bf16 *__restrict__ input, const bf16 *__restrict__ weights, int in, int out,
             float *__restrict__ output) {
  const int first = first_output(), lane = threadIdx.x & 31;
  if (first >= out) return;
  float sums[kOutputs];
  matvec_sums(input, weights, in, out, first, sums);
  const float mine = lane == 0 ? sums[0] : sums[1];
  if (lane < kOutputs && first + lane < out) output[first + lane] = mine;
}
