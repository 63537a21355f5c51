/*
 * Shadows of K beside the pool, and what is compared with them (kernels/abi_sparse.h says why): y = Hd k of K as stored,
 * Hd the orthonormal Hadamard transform of each power-of-two part of the head, the greatest first, in 4 bits a number and
 * a float16 scale max|y| / 7 a token.
 *
 * SHADOWS of one layer: [block][kvHead][blockTokens / 16] of panels. A panel has 16 tokens:
 *
 *   { codes [HEAD_DIM / 32][16 tokens][16 bytes], scales float16 [16] }
 *
 * Byte i of vector v holds dimension d = 16 v + i in its lower 4 bits and dimension HEAD_DIM / 2 + d in its upper ones,
 * each as the number plus 8. Eight tokens' bytes of a vector are a matrix as load_matrices (mma.cuh) takes it.
 *
 * The bits are those of the CPU (kernels/cpu/choose.h) for the same K: sums and products are rounded one by one, in the
 * same order, and nothing is fused.
 */
#ifndef SPANGATE_SHADOW_CUH
#define SPANGATE_SHADOW_CUH

#include "heads.cuh"

constexpr int kPanelTokens = 16;
constexpr int kShadowLimit = 7, kShadowZero = 8;
/* 16-byte vectors of a token's codes. Heads of other sizes than multiples of 32 have no shadows. */
constexpr int kShadowVectors = HEAD_DIM < 32 ? 1 : HEAD_DIM / 32;
constexpr int kVectorBytes = 16;
constexpr int kScalesAt = kShadowVectors * kPanelTokens * kVectorBytes;
constexpr int kPanelBytes = kScalesAt + 2 * kPanelTokens;

__device__ __forceinline__ unsigned short to_half(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

__device__ __forceinline__ float half_to_float(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

constexpr float kMaxHalf = 65504.0f;

/* Rounds to float16; what is too large becomes the greatest finite number. */
__device__ __forceinline__ unsigned short to_finite_half(float x) {
  return to_half(fminf(fmaxf(x, -kMaxHalf), kMaxHalf));
}

/* Index of a panel in a layer's shadows; blocks have 2^blockShift tokens. */
__device__ __forceinline__ size_t panel_index(int block, int token, int kvHead, int kvHeads, int blockShift) {
  return (((size_t(block) * kvHeads + kvHead) << blockShift) + token) / kPanelTokens;
}

/* y [HEAD_DIM] in shared memory becomes Hd y. A whole warp must call it; it ends with what all lanes wrote in view. */
__device__ __forceinline__ void transform(float *y) {
  const int lane = threadIdx.x & 31;
  for (int start = 0; start < HEAD_DIM;) {
    int part = 1;
    while (2 * part <= HEAD_DIM - start) part *= 2;
    float *own = y + start;
    for (int half = 1; half < part; half *= 2) {
      __syncwarp();
      for (int pair = lane; pair < part / 2; pair += 32) {
        const int i = pair / half * 2 * half + pair % half;
        const float a = own[i], b = own[i + half];
        own[i] = __fadd_rn(a, b);
        own[i + half] = __fsub_rn(a, b);
      }
    }
    __syncwarp();
    const float factor = __fdiv_rn(1.0f, __fsqrt_rn(float(part)));
    for (int i = lane; i < part; i += 32) own[i] = __fmul_rn(own[i], factor);
    start += part;
  }
  __syncwarp();
}

/* The greatest magnitude of y [HEAD_DIM]; NaN where a number is not finite. All lanes get it. */
__device__ __forceinline__ float greatest_of(const float *y) {
  float greatest = 0, zeros = 0;
  for (int i = threadIdx.x & 31; i < HEAD_DIM; i += 32) {
    greatest = fmaxf(greatest, fabsf(y[i]));
    zeros += y[i] * 0.0f;
  }
  return warp_max(greatest) + warp_sum(zeros);
}

#endif
