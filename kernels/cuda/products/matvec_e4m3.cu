/*
 * The products of matvec.cu over weights of 8 bits (e4m3) with scales; the row stays in bf16.
 *
 *   weights [out][in] e4m3, in a multiple of 16; the weight at [o][i] counts scales[o >> rowShift][i >> 4 >> inShift],
 *   scales float32, `scaleStride` from row to row: a scale for 128 outputs and inputs is rowShift 7 and inShift 3, one
 *   for an output rowShift 0 and inShift 31
 *   matvec_e4m3, matvec_e4m3_gated, matvec_e4m3_add: otherwise as matvec, matvec_gated, matvec_add
 *
 * A lane's load of 16 bytes has 16 weights of one scale. Grid: as matvec.cu. Bytes: 1 a weight. For compute capability
 * 8.9 and later; launched elsewhere, it faults. Oracle: test/backend/cuda/emulated-matvec.ts.
 */
#include "matvec.cuh"

/* A lane's loads of weights that are in flight together, for each output: with 4 an H200 took 5 % longer, with 8 16 %. */
constexpr int kByteBatch = 2;
constexpr int kByteVectors = kByteBatch * 32;

struct Scales {
  const float *values;
  int stride, rowShift, inShift;

  __device__ __forceinline__ const float *row(int o) const { return values + size_t(o >> rowShift) * stride; }
};

__device__ __forceinline__ float2 from_e4m3(unsigned short pair) {
  float2 to = {};
#if __CUDA_ARCH__ >= 890
  uint32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
      : "=f"(to.x), "=f"(to.y)
      : "r"(halves));
#else
  __trap();
#endif
  return to;
}

/* Sixteen weights times sixteen values of the row. */
__device__ __forceinline__ float dot16(const uint4 &weights, const float (&x)[16]) {
  const uint32 words[4] = {weights.x, weights.y, weights.z, weights.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 low = from_e4m3(words[i] & 0xffffu), high = from_e4m3(words[i] >> 16);
    sum = fmaf(low.x, x[4 * i], sum), sum = fmaf(low.y, x[4 * i + 1], sum);
    sum = fmaf(high.x, x[4 * i + 2], sum), sum = fmaf(high.y, x[4 * i + 3], sum);
  }
  return sum;
}

/* The two weight rows of a warp. */
struct BytePair {
  const uint4 *rows[kOutputs];
  const float *scales[kOutputs];
  uint4 batch[kOutputs][kByteBatch];
  int vectors, inShift; /* how many vectors of 16 weights a row has */

  /* Starts the loads of the first weights, then waits for the kernel before. */
  __device__ __forceinline__ void begin(const unsigned char *weights, const Scales &of, int in, int firstRow,
                                        int secondRow) {
    vectors = in / 16, inShift = of.inShift;
    rows[0] = reinterpret_cast<const uint4 *>(weights + size_t(firstRow) * in);
    rows[1] = reinterpret_cast<const uint4 *>(weights + size_t(secondRow) * in);
    scales[0] = of.row(firstRow), scales[1] = of.row(secondRow);
    if (vectors >= kByteVectors) load_batch(0);
    wait_for_previous();
  }

  __device__ __forceinline__ void load_batch(int first) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int b = 0; b < kByteBatch; b++)
#pragma unroll
      for (int o = 0; o < kOutputs; o++) batch[o][b] = load_weights(rows[o] + first + lane + b * 32);
  }

  __device__ __forceinline__ void add(const bf16 *input, int vector, const uint4 (&weights)[kOutputs],
                                      float (&sums)[kOutputs]) const {
    const uint4 *x4 = reinterpret_cast<const uint4 *>(input) + 2 * vector;
    float low[8], high[8], x[16];
    unpack8(x4[0], low), unpack8(x4[1], high);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = low[i], x[8 + i] = high[i];
#pragma unroll
    for (int o = 0; o < kOutputs; o++) {
      sums[o] = fmaf(dot16(weights[o], x), __ldg(scales[o] + (vector >> inShift)), sums[o]);
    }
  }

  /* Computes both products; every lane gets them. */
  __device__ __forceinline__ void multiply(const bf16 *input, float (&sums)[kOutputs]) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int o = 0; o < kOutputs; o++) sums[o] = 0;
    int first = 0;
    for (; first + kByteVectors <= vectors; first += kByteVectors) {
      if (first > 0) load_batch(first);
#pragma unroll
      for (int b = 0; b < kByteBatch; b++) add(input, first + lane + b * 32, {batch[0][b], batch[1][b]}, sums);
    }
    for (int vector = first + lane; vector < vectors; vector += 32) {
      add(input, vector, {load_weights(rows[0] + vector), load_weights(rows[1] + vector)}, sums);
    }
#pragma unroll
    for (int o = 0; o < kOutputs; o++) sums[o] = warp_sum(sums[o]);
    let_next_begin();
  }
};

extern "C" __global__ void __launch_bounds__(kWarps * 32)
matvec_e4m3(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales,
            int scaleStride, int rowShift, int inShift, int in, int out, const float *squares, int squareCount,
            float epsilon, bf16 *output) {
  const int lane = threadIdx.x & 31, first = warp_index() * kOutputs, o = first + lane;
  BytePair pair;
  pair.begin(weights, {scales, scaleStride, rowShift, inShift}, in, min(first, out - 1), min(first + 1, out - 1));
  const float factor = norm_factor(squares, squareCount, in, epsilon);
  float sums[kOutputs];
  pair.multiply(input, sums);
  if (lane < kOutputs && o < out) output[o] = pack_bf16((lane == 0 ? sums[0] : sums[1]) * factor, 0.0f) & 0xffffu;
}

extern "C" __global__ void __launch_bounds__(kWarps * 32)
matvec_e4m3_gated(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales,
                  int scaleStride, int rowShift, int inShift, int in, int ffn, const float *squares, int squareCount,
                  float epsilon, bf16 *output) {
  const int o = warp_index(), row = min(o, ffn - 1);
  BytePair pair;
  pair.begin(weights, {scales, scaleStride, rowShift, inShift}, in, row, ffn + row);
  const float factor = norm_factor(squares, squareCount, in, epsilon);
  float sums[kOutputs];
  pair.multiply(input, sums);
  const float gate = sums[0] * factor, up = sums[1] * factor;
  if ((threadIdx.x & 31) == 0 && o < ffn) output[o] = pack_bf16(up * gate / (1.0f + __expf(-gate)), 0.0f) & 0xffffu;
}

extern "C" __global__ void __launch_bounds__(kWarps * 32)
matvec_e4m3_add(const bf16 *input, const unsigned char *__restrict__ weights, const float *__restrict__ scales,
                int scaleStride, int rowShift, int inShift, int in, int out, float scale, float *residual,
                const bf16 *__restrict__ norm, bf16 *next, float *squares) {
  const int lane = threadIdx.x & 31, first = warp_index() * kOutputs, o = first + lane;
  const bool isMine = lane < kOutputs && o < out;
  BytePair pair;
  const float weight = isMine ? to_float(norm[o]) : 0.0f;
  pair.begin(weights, {scales, scaleStride, rowShift, inShift}, in, min(first, out - 1), min(first + 1, out - 1));
  const RowSum row = {isMine ? residual[o] : 0.0f, weight, isMine, o};
  float sums[kOutputs];
  pair.multiply(input, sums);
  add_products(row, lane == 0 ? sums[0] : sums[1], scale, residual, next, squares);
}
