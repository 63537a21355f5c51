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

constexpr int kPanelShift = 4, kPanelTokens = 1 << kPanelShift;
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

/* The same for two, the first in the low half. */
__device__ __forceinline__ uint32 to_finite_halves(float low, float high) {
  uint32 pair;
  asm("{\n.reg .b32 x;\ncvt.rn.f16x2.f32 x, %1, %2;\nmin.f16x2 x, x, %3;\nmax.f16x2 %0, x, %4;\n}"
      : "=r"(pair)
      : "f"(high), "f"(low), "r"(0x7bff7bff), "r"(0xfbfffbff));
  return pair;
}

/* Index of a panel in a layer's shadows; blocks have 2^blockShift tokens. */
__device__ __forceinline__ size_t panel_index(int block, int token, int kvHead, int kvHeads, int blockShift) {
  return (((size_t(block) * kvHeads + kvHead) << blockShift) + token) / kPanelTokens;
}

/* The greatest power of two that is not above `count`. */
__host__ __device__ constexpr int part_of(int count) {
  int part = 1;
  while (2 * part <= count) part *= 2;
  return part;
}

__device__ __forceinline__ void add_pair(float &a, float &b) {
  const float sum = __fadd_rn(a, b);
  b = __fsub_rn(a, b), a = sum;
}

#endif
