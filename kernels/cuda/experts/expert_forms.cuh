/*
 * The forms of experts' weights, and their products. A unit is what 16 bytes hold of an output, all of one scale:
 *   b16   8 bfloat16 numbers
 *   e4m3  16 8-bit floats (NaN counts as 480), with scales as matvec_e4m3.cu has them, of 64 inputs at least
 *   mx4   32 numbers of 4 bits, a block of MXFP4; scales [experts][outputs][in / 32] bytes s for 2^(s - 127), s at
 *         most 128, so that a factor of 2^(s - 1) is a bfloat16 number
 * kUnits: a lane's loads of weights that are in flight together, for each of its two outputs; kBlocks: thread blocks that
 * a multiprocessor has to hold at a time, so that a row's launch is one wave on an H200 (expert_rows.cuh).
 * multiply adds 16 outputs of a warp, of whom a lane has units w[0] and w[1], times 8 rows, of whom it has the inputs
 * x of the unit, to sum (expert_rows.cuh). e4m3 and mx4 are widened to bf16 exactly.
 */
#ifndef SPANGATE_EXPERT_FORMS_CUH
#define SPANGATE_EXPERT_FORMS_CUH

#include "mma.cuh"

/* What the weights of all experts of a layer are; fields that a form does not have are not read. */
struct ExpertMatrix {
  const uint4 *weights;
  const void *scales;
  int scaleStride, rowShift, inShift, in;
};

struct B16 {
  static constexpr int kWeights = 8, kUnits = 4, kBlocks = 6;
  struct Scale {};
  static __device__ __forceinline__ Scale scale(const ExpertMatrix &, int, int) { return {}; }

  static __device__ __forceinline__ void multiply(const uint4 (&w)[2], const Scale (&)[2], const uint4 *x,
                                                  float (&sum)[4]) {
    const uint4 row = *x;
    multiply_add(sum, {w[0].x, w[1].x, w[0].y, w[1].y}, row.x, row.y);
    multiply_add(sum, {w[0].z, w[1].z, w[0].w, w[1].w}, row.z, row.w);
  }
};

/* Products of pairs of bf16, rounded to nearest. */
__device__ __forceinline__ uint32 multiply_pairs(uint32 a, uint32 b) {
  uint32 c;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(0x80008000u));
  return c;
}
/* The low halves of two words, and their high halves. */
__device__ __forceinline__ uint32 low_halves(uint32 a, uint32 b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ uint32 high_halves(uint32 a, uint32 b) { return __byte_perm(a, b, 0x7632); }

struct E4m3 {
  static constexpr int kWeights = 16, kUnits = 2, kBlocks = 6;
  using Scale = float;
  static __device__ __forceinline__ Scale scale(const ExpertMatrix &m, int row, int unit) {
    return __ldg(static_cast<const float *>(m.scales) + size_t(row >> m.rowShift) * m.scaleStride +
                 (unit >> m.inShift));
  }

  /* Bytes 0 and 2 of a word, and bytes 1 and 3: their bits stand in bf16 for 2^-120 times the number. */
  static __device__ __forceinline__ uint32 even(uint32 w) {
    return multiply_pairs((w << 4 & 0x07f007f0u) | (w << 8 & 0x80008000u), 0x7b807b80u);
  }
  static __device__ __forceinline__ uint32 odd(uint32 w) {
    return multiply_pairs((w >> 4 & 0x07f007f0u) | (w & 0x80008000u), 0x7b807b80u);
  }

  static __device__ __forceinline__ void multiply(const uint4 (&w)[2], const Scale (&scale)[2], const uint4 *x,
                                                  float (&sum)[4]) {
    float part[4] = {};
    const uint32 first[4] = {w[0].x, w[0].y, w[0].z, w[0].w}, second[4] = {w[1].x, w[1].y, w[1].z, w[1].w};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint4 row = x[half];
      const uint32 pairs[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32 a = first[2 * half + i], b = second[2 * half + i];
        multiply_add(part, {even(a), even(b), odd(a), odd(b)}, low_halves(pairs[2 * i], pairs[2 * i + 1]),
                     high_halves(pairs[2 * i], pairs[2 * i + 1]));
      }
    }
    sum[0] = fmaf(part[0], scale[0], sum[0]), sum[1] = fmaf(part[1], scale[0], sum[1]);
    sum[2] = fmaf(part[2], scale[1], sum[2]), sum[3] = fmaf(part[3], scale[1], sum[3]);
  }
};

struct Mx4 {
  static constexpr int kWeights = 32, kUnits = 2, kBlocks = 6;
  using Scale = uint32; /* a pair of bf16 factors */
  static __device__ __forceinline__ Scale scale(const ExpertMatrix &m, int row, int unit) {
    const uint32 s = __ldg(static_cast<const unsigned char *>(m.scales) + size_t(row) * (m.in / 32) + unit);
    return (s + 126) * 0x00800080u;
  }

  /* Numbers i and i + 4 of a word: their bits stand in bf16 for 2^-126 times the number. */
  template <int i>
  static __device__ __forceinline__ uint32 pair(uint32 w, Scale factor) {
    constexpr int kUp = 6 - 4 * i;
    const uint32 size = (kUp > 0 ? w << (kUp > 0 ? kUp : 0) : w >> (kUp > 0 ? 0 : -kUp)) & 0x01c001c0u;
    return multiply_pairs(size | (w << (12 - 4 * i) & 0x80008000u), factor);
  }

  static __device__ __forceinline__ void multiply(const uint4 (&w)[2], const Scale (&scale)[2], const uint4 *x,
                                                  float (&sum)[4]) {
    const uint32 first[4] = {w[0].x, w[0].y, w[0].z, w[0].w}, second[4] = {w[1].x, w[1].y, w[1].z, w[1].w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint4 row = x[j];
      const uint32 a = first[j], b = second[j];
      multiply_add(sum, {pair<0>(a, scale[0]), pair<0>(b, scale[1]), pair<1>(a, scale[0]), pair<1>(b, scale[1])},
                   low_halves(row.x, row.z), high_halves(row.x, row.z));
      multiply_add(sum, {pair<2>(a, scale[0]), pair<2>(b, scale[1]), pair<3>(a, scale[0]), pair<3>(b, scale[1])},
                   low_halves(row.y, row.w), high_halves(row.y, row.w));
    }
  }
};

#endif
