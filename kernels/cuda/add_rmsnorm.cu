/*
 * Adds a sublayer's output to the residual stream and makes the next sublayer's input, in one pass.
 *
 *   residual [rows][hidden] float32, delta [rows][deltaCount][hidden] bf16 or null, deltaBias, deltaNorm [hidden] bf16 or
 *   null, deltaFactors [rows][deltaCount] float32 or null, where deltaCount is 1
 *   d = delta + deltaBias, or of a row's deltas, what its experts give, the sum of factor * delta, in their order; with deltaNorm RMSNorm of it: d / sqrt(mean(d^2) + epsilon) * (deltaNorm + normOffset)
 *   residual += d * scale        scale: Granite's residual multiplier, else 1; nothing when delta is null
 *   out = residual / sqrt(mean(residual^2) + epsilon) * (weight + normOffset)        bf16 [rows][hidden]
 *   weight [hidden] bf16; null: out = residual. normOffset: 1 where a model stores a norm's weights less one, else 0
 *   scales not null: out in 8 bits, as quantize_blocks of quantize.cu would have it, with its rowStride, hidden a multiple
 *   of 128; with rowStride 0 as quantize_rows
 *
 * Grid: one block a row, blockDim >= hidden / 32 rounded up to whole warps (a thread keeps at most 4 vectors of 8
 * values in registers): hidden is a multiple of 8, at most 32,768. Bytes: 12 a value; what deltaNorm reads twice is cached.
 * Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "e4m3.cuh"

constexpr int kVectors = kRowVectors;

__device__ __forceinline__ void load_residual(const float *residual, int vector, float (&x)[8]) {
  const float4 a = reinterpret_cast<const float4 *>(residual)[2 * vector];
  const float4 b = reinterpret_cast<const float4 *>(residual)[2 * vector + 1];
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

struct Delta {
  const bf16 *values, *bias;
  const float *factors;
  int count, hidden;

  __device__ __forceinline__ void load(int vector, float (&d)[8]) const {
    if (factors) return load_sum(vector, d);
    unpack8(reinterpret_cast<const uint4 *>(values)[vector], d);
    if (!bias) return;
    float b[8];
    unpack8(reinterpret_cast<const uint4 *>(bias)[vector], b);
#pragma unroll
    for (int i = 0; i < 8; i++) d[i] += b[i];
  }

  __device__ __forceinline__ void load_sum(int vector, float (&d)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i++) d[i] = 0;
#pragma unroll 4
    for (int j = 0; j < count; j++) {
      float x[8];
      unpack8(reinterpret_cast<const uint4 *>(values + size_t(j) * hidden)[vector], x);
      const float factor = factors[j];
#pragma unroll
      for (int i = 0; i < 8; i++) d[i] = fmaf(factor, x[i], d[i]);
    }
  }
};

/* Multiplies by a norm's factor and weights. */
__device__ __forceinline__ void weigh(float (&x)[8], float factor, const bf16 *weight, float offset, int vector) {
  float w[8];
  unpack8(reinterpret_cast<const uint4 *>(weight)[vector], w);
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] *= factor * (w[i] + offset);
}

/* The whole block calls it. */
__device__ __forceinline__ float delta_factor(const Delta &delta, float epsilon, int hidden, float *scratch) {
  float squares = 0;
  for (int vector = threadIdx.x; vector < hidden / 8; vector += blockDim.x) {
    float d[8];
    delta.load(vector, d);
#pragma unroll
    for (int i = 0; i < 8; i++) squares += d[i] * d[i];
  }
  return rsqrtf(block_sum(squares, scratch) / hidden + epsilon);
}

extern "C" __global__ void __launch_bounds__(1024)
add_rmsnorm(float *__restrict__ residual, const bf16 *deltaValues, const float *deltaFactors, int deltaCount,
            const bf16 *__restrict__ deltaBias, const bf16 *__restrict__ deltaNorm, float scale, const bf16 *__restrict__ weight, float normOffset,
            float epsilon, const int *rowCount, int hidden, void *__restrict__ out, float *scales, int rowStride) {
  __shared__ float scratch[32];
  let_next_begin();
  wait_for_previous();
  const size_t row = blockIdx.x;
  if (row >= *rowCount) return;
  const int vectors = hidden / 8;
  residual += row * hidden;
  const Delta delta = {deltaValues + row * deltaCount * hidden, deltaBias,
                       deltaFactors ? deltaFactors + row * deltaCount : nullptr, deltaCount, hidden};
  const float deltaFactor = deltaValues && deltaNorm ? delta_factor(delta, epsilon, hidden, scratch) : 1.0f;
  float x[kVectors][8];
  float squares = 0;
#pragma unroll
  for (int c = 0; c < kVectors; c++) {
    const int vector = threadIdx.x + c * blockDim.x;
    if (vector >= vectors) break;
    load_residual(residual, vector, x[c]);
    if (deltaValues) {
      float d[8];
      delta.load(vector, d);
      if (deltaNorm) weigh(d, deltaFactor, deltaNorm, normOffset, vector);
#pragma unroll
      for (int i = 0; i < 8; i++) x[c][i] += d[i] * scale;
      reinterpret_cast<float4 *>(residual)[2 * vector] = make_float4(x[c][0], x[c][1], x[c][2], x[c][3]);
      reinterpret_cast<float4 *>(residual)[2 * vector + 1] = make_float4(x[c][4], x[c][5], x[c][6], x[c][7]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) squares += x[c][i] * x[c][i];
  }
  const float factor = rsqrtf(block_sum(squares, scratch) / hidden + epsilon);
  if (scales && rowStride == 0) {
    uint4 packed[kVectors];
#pragma unroll
    for (int c = 0; c < kVectors; c++) {
      const int vector = threadIdx.x + c * blockDim.x;
      packed[c] = make_uint4(0, 0, 0, 0);
      if (vector >= vectors) continue;
      if (weight) weigh(x[c], factor, weight, normOffset, vector);
      packed[c] = pack8(x[c]);
    }
    return put_row(packed, row, vectors, static_cast<uint2 *>(out), scales, scratch);
  }
#pragma unroll
  for (int c = 0; c < kVectors; c++) {
    const int vector = threadIdx.x + c * blockDim.x;
    if (vector >= vectors) break;
    if (weight) weigh(x[c], factor, weight, normOffset, vector);
    const uint4 packed = pack8(x[c]);
    if (scales) {
      put_block(packed, row, vector, vectors, static_cast<uint2 *>(out), scales, rowStride);
    } else {
      static_cast<uint4 *>(out)[row * vectors + vector] = packed;
    }
  }
}
