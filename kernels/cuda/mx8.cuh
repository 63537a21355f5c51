/*
 * KV in mx8 (kernels/abi.h says what the numbers and scales mean): where a pool has it, rounding, reading as bf16.
 *
 * POOL of one layer: [block][kvHead][blockTokens / 16] of parts. A part has 16 tokens:
 *
 *   { K: int8 [16][headDim], V: int8 [16][headDim], scales of K: uint8 [16][headDim / 32], scales of V: the same }
 *
 * It is one stretch of memory, so that one bulk copy fetches it. blockTokens is a multiple of 16, headDim of 32.
 *
 * EXACT. A number has 7 bits and a sign and bf16 has 8 bits of fraction, so what is read is exact in bf16: a kernel
 * gives the bits that it gives over a bf16 pool of the same values.
 *
 * Files that use it are compiled with KV_MX8, 1 where the pool is in mx8. Oracle: test/support/gpu-mx8.ts.
 */
#ifndef SPANGATE_MX8_CUH
#define SPANGATE_MX8_CUH

#include "common.cuh"

#ifndef KV_MX8
#define KV_MX8 0
#endif

constexpr bool kIsMx8 = KV_MX8;
constexpr int kMx8Group = 32;      /* values that share a scale */
constexpr int kMx8PartTokens = 16; /* of a part */
constexpr int kMx8LeastScale = 7, kMx8NanScale = 255;
constexpr int kMx8Bias = 133;      /* a scale of s stands for 2^(s - kMx8Bias) */

/* Bytes of a part, and from its start on to K's and V's numbers and scales. */
__host__ __device__ constexpr int mx8_part_bytes(int headDim) {
  return 2 * kMx8PartTokens * (headDim + headDim / kMx8Group);
}
__host__ __device__ constexpr int mx8_numbers_at(int headDim, bool isValue) {
  return isValue ? kMx8PartTokens * headDim : 0;
}
__host__ __device__ constexpr int mx8_scales_at(int headDim, bool isValue) {
  return kMx8PartTokens * (2 * headDim + (isValue ? headDim / kMx8Group : 0));
}

/* Index of the part of a head that has a token of a block. */
__device__ __forceinline__ int mx8_part_at(int block, int token, int kvHead, int kvHeads, int blockTokens) {
  return (block * kvHeads + kvHead) * (blockTokens / kMx8PartTokens) + token / kMx8PartTokens;
}

/*
 * A warp rounds one head of one token and stores it. `head`: its float32 values in shared memory, readable by all
 * lanes. The group of eight lanes that has 32 dimensions shares their scale.
 */
__device__ __forceinline__ void store_mx8(unsigned char *part, int token, const float *head, int headDim,
                                          bool isValue) {
  const int lane = threadIdx.x & 31, d = 4 * lane;
  float x[4] = {};
  uint32 greatest = 0;
  if (d < headDim) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x[i] = head[d + i];
      greatest = max(greatest, __float_as_uint(x[i]) & 0x7fffffffu);
    }
  }
#pragma unroll
  for (int step = 1; step < kMx8Group / 4; step <<= 1) {
    greatest = max(greatest, __shfl_xor_sync(kAllLanes, greatest, step));
  }
  if (d >= headDim) return;
  const int scale = max(int(greatest >> 23), kMx8LeastScale);
  const bool isNumber = scale != kMx8NanScale;
  /* 2^(kMx8Bias - scale): a product with a power of two is not rounded. */
  const float inverse = __uint_as_float(uint32(127 + kMx8Bias - scale) << 23);
  uint32 word = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int number = isNumber ? min(max(__float2int_rn(x[i] * inverse), -127), 127) : 0;
    word |= uint32(number & 255) << 8 * i;
  }
  *reinterpret_cast<uint32 *>(part + mx8_numbers_at(headDim, isValue) + token * headDim + d) = word;
  if (d % kMx8Group != 0) return;
  part[mx8_scales_at(headDim, isValue) + token * (headDim / kMx8Group) + d / kMx8Group] = static_cast<unsigned char>(scale);
}

/* What a scale stands for, as bf16 in both halves; 0 for those that are in memory that nobody has written. */
__device__ __forceinline__ uint32 mx8_power(uint32 scale) {
  if (scale == kMx8NanScale) return 0x7fc07fc0u;
  return scale < kMx8LeastScale ? 0 : (scale - (kMx8Bias - 127)) * 0x00800080u;
}

__device__ __forceinline__ uint32 fused_bf16x2(uint32 a, uint32 b, uint32 c) {
  uint32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/*
 * Two numbers of a word as bf16, times a power of two. 0x4300 with the seven low bits of a number in its fraction is 128
 * plus these bits, and with the number's sign bit it is 128 or 256: their difference is the number.
 */
__device__ __forceinline__ uint32 mx8_pair(uint32 word, bool isHigh, uint32 power) {
  const uint32 spread = __byte_perm(word, 0x43434343u, isHigh ? 0x4342 : 0x4140);
  const uint32 number = fused_bf16x2(spread & 0xff80ff80u, 0xbf80bf80u, spread & 0xff7fff7fu);
  return fused_bf16x2(number, power, 0x80008000u);
}

/* Eight numbers as bf16, times a power of two. */
__device__ __forceinline__ uint4 mx8_eight(uint32 first, uint32 second, uint32 power) {
  return make_uint4(mx8_pair(first, false, power), mx8_pair(first, true, power), mx8_pair(second, false, power),
                    mx8_pair(second, true, power));
}

#endif
