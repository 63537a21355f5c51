/*
 * One row times a weight matrix. In a decode step of batch 1 all weights are read this way, as fast as memory allows.
 * What lies between two products of a layer is done at the end of the first and at the beginning of the second.
 *
 *   input [in] bf16, weights [out][in] bf16, in a multiple of 8; product[o] = sum of input[i] * weights[o][i], float32
 *   matvec, matvec_float   output[o] = product[o] * factor                                        bf16, float32
 *   matvec_gated           output[o] = silu(product[o] * factor) * (product[ffn + o] * factor)    bf16 [ffn]
 *                          weights [2 * ffn][in], out = ffn; silu(x) = x / (1 + exp(-x))
 *   matvec_add             residual[o] += product[o] * scale; next[o] = residual[o] * norm[o];
 *                          squares[block] = sum of the block's residual^2
 *
 * RMSNorm is split at its factor: matvec_add leaves the row times the norm's weights, and each block's sum of squares.
 * The products of that row compute factor = 1 / sqrt(sum of squares / in + epsilon) from them, always in the same
 * order. With squares null the input is a finished row, and the factor is 1.
 *
 * A warp computes two products. A lane has 4 weight loads of 16 bytes in flight before it uses the first, so that some
 * 80 KB are on their way to a multiprocessor at any time; more loads, or hints to load more into the second-level
 * cache, made memory slower. The first weights are loaded before the kernel waits for the one before it (common.cuh). A
 * block lets the next kernel begin only when it has all its weights, so that the next kernel's loads do not delay its
 * own. The input is read through the first-level cache, which weights bypass. Grid: ceil(out / 8) blocks of 128
 * threads, matvec_gated ceil(out / 4). Bytes: 2 a weight. Oracle: test/backend/cuda/emulated-matvec.ts.
 */
#include "matvec.cuh"

constexpr int kBatch = 2;
constexpr int kBatchVectors = kBatch * 32;

__device__ __forceinline__ float dot8(const uint4 &weights, const float (&x)[8], float sum) {
  float w[8];
  unpack8(weights, w);
#pragma unroll
  for (int i = 0; i < 8; i++) sum = fmaf(w[i], x[i], sum);
  return sum;
}

/* The two weight rows of a warp. */
struct RowPair {
  const uint4 *rows[kOutputs];
  uint4 batch[kOutputs][kBatch];
  int vectors; /* how many vectors of 8 weights a row has */

  /* Starts the loads of the first weights, then waits for the kernel before. */
  __device__ __forceinline__ void begin(const bf16 *weights, int in, int firstRow, int secondRow) {
    vectors = in / 8;
    rows[0] = reinterpret_cast<const uint4 *>(weights + size_t(firstRow) * in);
    rows[1] = reinterpret_cast<const uint4 *>(weights + size_t(secondRow) * in);
    if (vectors >= kBatchVectors) load_batch(0);
    wait_for_previous();
  }

  __device__ __forceinline__ void load_batch(int first) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int b = 0; b < kBatch; b++)
#pragma unroll
      for (int o = 0; o < kOutputs; o++) batch[o][b] = load_weights(rows[o] + first + lane + b * 32);
  }

  /* Computes both products; every lane gets them. */
  __device__ __forceinline__ void multiply(const bf16 *input, float (&sums)[kOutputs]) {
    const uint4 *x4 = reinterpret_cast<const uint4 *>(input) + (threadIdx.x & 31);
#pragma unroll
    for (int o = 0; o < kOutputs; o++) sums[o] = 0;
    int first = 0;
    for (; first + kBatchVectors <= vectors; first += kBatchVectors) {
      if (first > 0) load_batch(first);
#pragma unroll
      for (int b = 0; b < kBatch; b++) {
        float x[8];
        unpack8(x4[first + b * 32], x);
#pragma unroll
        for (int o = 0; o < kOutputs; o++) sums[o] = dot8(batch[o][b], x, sums[o]);
      }
    }
    for (int vector = first + (threadIdx.x & 31); vector < vectors; vector += 32) {
      float x[8];
      unpack8(reinterpret_cast<const uint4 *>(input)[vector], x);
#pragma unroll
      for (int o = 0; o < kOutputs; o++) sums[o] = dot8(load_weights(rows[o] + vector), x, sums[o]);
    }
#pragma unroll
    for (int o = 0; o < kOutputs; o++) sums[o] = warp_sum(sums[o]);
    let_next_begin();
  }
};

/* Two neighbouring outputs of a warp; lanes 0 and 1 each hold one. */
__device__ __forceinline__ float neighbour_sum(const bf16 *input, const bf16 *weights, int in, int out,
                                               const float *squares, int squareCount, float epsilon) {
  const int first = warp_index() * kOutputs;
  RowPair pair;
  pair.begin(weights, in, min(first, out - 1), min(first + 1, out - 1));
  const float factor = norm_factor(squares, squareCount, in, epsilon);
  float sums[kOutputs];
  pair.multiply(input, sums);
  return ((threadIdx.x & 31) == 0 ? sums[0] : sums[1]) * factor;
}

extern "C" __global__ void __launch_bounds__(kWarps * 32)
matvec(const bf16 *input, const bf16 *__restrict__ weights, int in, int out, const float *squares,
       int squareCount, float epsilon, bf16 *output) {
  const float sum = neighbour_sum(input, weights, in, out, squares, squareCount, epsilon);
  const int lane = threadIdx.x & 31, o = warp_index() * kOutputs + lane;
  if (lane < kOutputs && o < out) output[o] = pack_bf16(sum, 0.0f) & 0xffffu;
}

extern "C" __global__ void __launch_bounds__(kWarps * 32)
matvec_float(const bf16 *input, const bf16 *__restrict__ weights, int in, int out, const float *squares,
             int squareCount, float epsilon, float *output) {
  const float sum = neighbour_sum(input, weights, in, out, squares, squareCount, epsilon);
  const int lane = threadIdx.x & 31, o = warp_index() * kOutputs + lane;
  if (lane < kOutputs && o < out) output[o] = sum;
}

extern "C" __global__ void __launch_bounds__(kWarps * 32)
matvec_gated(const bf16 *input, const bf16 *__restrict__ weights, int in, int ffn, const float *squares,
             int squareCount, float epsilon, bf16 *output) {
  const int o = warp_index(), row = min(o, ffn - 1);
  RowPair pair;
  pair.begin(weights, in, row, ffn + row);
  const float factor = norm_factor(squares, squareCount, in, epsilon);
  float sums[kOutputs];
  pair.multiply(input, sums);
  const float gate = sums[0] * factor, up = sums[1] * factor;
  if ((threadIdx.x & 31) == 0 && o < ffn) output[o] = pack_bf16(up * gate / (1.0f + __expf(-gate)), 0.0f) & 0xffffu;
}

extern "C" __global__ void __launch_bounds__(kWarps * 32)
matvec_add(const bf16 *input, const bf16 *__restrict__ weights, int in, int out, float scale,
           float *residual, const bf16 *__restrict__ norm, bf16 *next, float *squares) {
  const int lane = threadIdx.x & 31, first = warp_index() * kOutputs, o = first + lane;
  const bool isMine = lane < kOutputs && o < out;
  RowPair pair;
  const float weight = isMine ? to_float(norm[o]) : 0.0f;
  pair.begin(weights, in, min(first, out - 1), min(first + 1, out - 1));
  const RowSum row = {isMine ? residual[o] : 0.0f, weight, isMine, o};
  float sums[kOutputs];
  pair.multiply(input, sums);
  add_products(row, lane == 0 ? sums[0] : sums[1], scale, residual, next, squares);
}
