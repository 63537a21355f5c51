/*
 * Weights in E4M3 become the bfloat16 parts of their float32 values, a few pairs at a time: products are those of the
 * same weights in B16. The bits of a number, moved to where a float16 has its exponent and mantissa, are the number times
 * 2^-8.
 */
#ifndef SPANGATE_KERNELS_PRODUCTS_E4M3_H
#define SPANGATE_KERNELS_PRODUCTS_E4M3_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <string.h>

#include "products.h"

namespace {

/* Numbers of two inputs of 16 outputs. */
constexpr int kTogether = 2 * spg::kPanelOutputs;

#if defined(__AVX512F__)
/* bfloat16 in the upper halves, rounded to the nearest, ties to even. */
inline __m512i rounded_bits(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

#if defined(__AVX512BF16__)
/*
 * Writes the first part of 32 weights, and the second one where there is room for it. The instruction makes zeros of
 * numbers below bfloat16's normal ones, as AMX, the only one that multiplies them, does.
 */
inline void split_numbers(__m512 first, __m512 second, unsigned char *out, unsigned char *lower) {
  const __m512i upper = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  _mm512_storeu_si512(out, upper);
  if (!lower) return;
  const auto kept = [](__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  };
  first = _mm512_sub_ps(first, kept(_mm512_castsi512_si256(upper)));
  second = _mm512_sub_ps(second, kept(_mm512_extracti64x4_epi64(upper, 1)));
  _mm512_storeu_si512(lower, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}
#else
/* Writes the first part of 16 weights, and the second one where there is room for it. */
inline void split_half(__m512 values, unsigned char *out, unsigned char *lower) {
  const __m512i upper = rounded_bits(values);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(out), _mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16)));
  if (!lower) return;
  const __m512 kept = _mm512_castsi512_ps(_mm512_and_si512(upper, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  const __m512i rest = _mm512_srli_epi32(rounded_bits(_mm512_sub_ps(values, kept)), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(lower), _mm512_cvtepi32_epi16(rest));
}

inline void split_numbers(__m512 first, __m512 second, unsigned char *out, unsigned char *lower) {
  split_half(first, out, lower);
  split_half(second, out + 32, lower ? lower + 32 : nullptr);
}
#endif

inline void widen_e4m3_panel(const unsigned char *numbers, const float *scales, unsigned char *out,
                             unsigned char *lower) {
  const __m512 all = _mm512_mul_ps(_mm512_loadu_ps(scales), _mm512_set1_ps(256));
  const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512 scale[2] = {_mm512_permutexvar_ps(first, all),
                           _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(8)), all)};
  for (int two = 0; two < 16; two++, numbers += kTogether, out += 2 * kTogether) {
    const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(numbers)));
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(bytes, 8), _mm512_set1_epi16(static_cast<short>(0x8000)));
    const __m512i size = _mm512_and_si512(_mm512_slli_epi16(bytes, 7), _mm512_set1_epi16(0x3f80));
    const __m512i halves = _mm512_or_si512(sign, size);
    const __m512 values[2] = {_mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
                              _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))};
    split_numbers(_mm512_mul_ps(values[0], scale[0]), _mm512_mul_ps(values[1], scale[1]), out, lower);
    if (lower) lower += 2 * kTogether;
  }
}
#elif defined(__AVX2__)
inline __m256i rounded_bits(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

inline void store_upper(__m256i bits, unsigned char *out) {
  const __m256i halves = _mm256_srli_epi32(bits, 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(out), packed);
}

/* Eight weights. */
inline void split_numbers(__m256 values, unsigned char *out, unsigned char *lower) {
  const __m256i upper = rounded_bits(values);
  store_upper(upper, out);
  if (!lower) return;
  const __m256 kept = _mm256_castsi256_ps(_mm256_and_si256(upper, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  store_upper(rounded_bits(_mm256_sub_ps(values, kept)), lower);
}

inline void widen_e4m3_panel(const unsigned char *numbers, const float *scales, unsigned char *out,
                             unsigned char *lower) {
  float twice[kTogether];
  for (int i = 0; i < kTogether; i++) twice[i] = scales[i / 2] * 256;
  for (int two = 0; two < 16; two++) {
    for (int i = 0; i < kTogether; i += 8, numbers += 8, out += 16) {
      const __m128i bytes = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(numbers)));
      const __m128i sign = _mm_and_si128(_mm_slli_epi16(bytes, 8), _mm_set1_epi16(static_cast<short>(0x8000)));
      const __m128i size = _mm_and_si128(_mm_slli_epi16(bytes, 7), _mm_set1_epi16(0x3f80));
      const __m256 values = _mm256_cvtph_ps(_mm_or_si128(sign, size));
      split_numbers(_mm256_mul_ps(values, _mm256_loadu_ps(twice + i)), out, lower);
      if (lower) lower += 16;
    }
  }
}
#else
/* The bits of a float32 to the nearest bfloat16, ties to even. */
inline uint16_t rounded_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline void widen_e4m3_panel(const unsigned char *numbers, const float *scales, unsigned char *out,
                             unsigned char *lower) {
  for (int i = 0; i < spg::kE4m3TileBytes; i++, out += 2) {
    /* Moved to where a float32 has them, the bits are the number times 2^-120. */
    const uint32_t bits = (numbers[i] & 0x80u) << 24 | (numbers[i] & 0x7fu) << 20;
    float value;
    memcpy(&value, &bits, sizeof value);
    value = value * 0x1p120f * scales[i % kTogether / 2];
    const uint16_t upper = rounded_half(value);
    memcpy(out, &upper, sizeof upper);
    if (!lower) continue;
    const uint32_t kept = static_cast<uint32_t>(upper) << 16;
    float first;
    memcpy(&first, &kept, sizeof first);
    const uint16_t rest = rounded_half(value - first);
    memcpy(lower, &rest, sizeof rest);
    lower += 2;
  }
}
#endif

inline void widen_e4m3_pairs(const spg::MatrixView &matrix, int firstPair, int endPair, unsigned char *out) {
  for (int pair = firstPair; pair < endPair; pair++) {
    const unsigned char *numbers = spg::pair_data(matrix, pair);
    const float *scales = matrix.scales + static_cast<size_t>(pair) * matrix.tiles * spg::kPairOutputs;
    for (int tile = 0; tile < matrix.tiles; tile++, out += 2 * matrix.parts * spg::kTileBytes) {
      for (int panel = 0; panel < 2; panel++, numbers += spg::kE4m3TileBytes, scales += spg::kPanelOutputs) {
        unsigned char *upper = out + panel * spg::kTileBytes;
        widen_e4m3_panel(numbers, scales, upper, matrix.parts == 1 ? nullptr : upper + 2 * spg::kTileBytes);
      }
    }
  }
}

}

#endif
