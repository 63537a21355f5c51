/* Weights in MXFP4 become bfloat16 numbers, a few pairs at a time, exactly: products are those of the same weights in B16. */
#ifndef SPANGATE_KERNELS_PRODUCTS_MX4_H
#define SPANGATE_KERNELS_PRODUCTS_MX4_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "products.h"

namespace {

/* Bits of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 in bfloat16; the fourth bit of a number is its sign. */
constexpr uint16_t kE2m1[16] = {0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

#if defined(__AVX512F__)
/* One panel of a tile: 256 bytes, byte [two][output] with inputs 2 two and 2 two + 1, to bfloat16 [two][output][2]. */
inline void widen_panel(const unsigned char *numbers, const unsigned char *scales, unsigned char *out) {
  const __m512i table =
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(kE2m1)));
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(scales)));
  /* A power of two adds to the exponent, which has 7 bits of fraction under it. Zeros stay zeros. */
  const __m512i shift = _mm512_slli_epi32(_mm512_sub_epi32(bytes, _mm512_set1_epi32(127)), 7);
  const __m512i both =
      _mm512_or_si512(_mm512_and_si512(shift, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(shift, 16));
  for (int two = 0; two < 16; two++) {
    const __m512i pairs =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(numbers + two * 16)));
    const __m512i first = _mm512_and_si512(pairs, _mm512_set1_epi32(15));
    const __m512i second = _mm512_and_si512(_mm512_slli_epi32(pairs, 12), _mm512_set1_epi32(15 << 16));
    const __m512i index = _mm512_or_si512(first, second);
    const __m512i value = _mm512_permutexvar_epi16(index, table);
    const __mmask32 isThere = _mm512_test_epi16_mask(index, _mm512_set1_epi16(7));
    _mm512_storeu_si512(out + two * 64, _mm512_mask_add_epi16(value, isThere, value, both));
  }
}
#else
/* Eight outputs' pairs of words, each scaled. */
inline void store_scaled(__m128i low, __m128i high, __m128i shifts, unsigned char *out) {
  const __m128i words[2] = {_mm_unpacklo_epi16(low, high), _mm_unpackhi_epi16(low, high)};
  const __m128i twice[2] = {_mm_unpacklo_epi16(shifts, shifts), _mm_unpackhi_epi16(shifts, shifts)};
  for (int i = 0; i < 2; i++) {
    const __m128i isZero = _mm_cmpeq_epi16(_mm_and_si128(words[i], _mm_set1_epi16(0x7fff)), _mm_setzero_si128());
    _mm_storeu_si128(reinterpret_cast<__m128i *>(out) + i, _mm_add_epi16(words[i], _mm_andnot_si128(isZero, twice[i])));
  }
}

inline void widen_panel(const unsigned char *numbers, const unsigned char *scales, unsigned char *out) {
  alignas(16) unsigned char lower[16], upper[16];
  for (int i = 0; i < 16; i++) {
    lower[i] = static_cast<unsigned char>(kE2m1[i]);
    upper[i] = static_cast<unsigned char>(kE2m1[i] >> 8);
  }
  const __m128i lowerTable = _mm_load_si128(reinterpret_cast<const __m128i *>(lower));
  const __m128i upperTable = _mm_load_si128(reinterpret_cast<const __m128i *>(upper));
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(scales)), zero = _mm_setzero_si128();
  __m128i shifts[2] = {_mm_unpacklo_epi8(bytes, zero), _mm_unpackhi_epi8(bytes, zero)};
  for (__m128i &shift : shifts) shift = _mm_slli_epi16(_mm_sub_epi16(shift, _mm_set1_epi16(127)), 7);
  for (int two = 0; two < 16; two++) {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i *>(numbers + two * 16));
    const __m128i first = _mm_and_si128(pairs, _mm_set1_epi8(15));
    const __m128i second = _mm_and_si128(_mm_srli_epi16(pairs, 4), _mm_set1_epi8(15));
    const __m128i bits[4] = {_mm_shuffle_epi8(lowerTable, first), _mm_shuffle_epi8(upperTable, first),
                             _mm_shuffle_epi8(lowerTable, second), _mm_shuffle_epi8(upperTable, second)};
    store_scaled(_mm_unpacklo_epi8(bits[0], bits[1]), _mm_unpacklo_epi8(bits[2], bits[3]), shifts[0], out + two * 64);
    store_scaled(_mm_unpackhi_epi8(bits[0], bits[1]), _mm_unpackhi_epi8(bits[2], bits[3]), shifts[1],
                 out + two * 64 + 32);
  }
}
#endif

void widen_mx4_pairs(const spg::MatrixView &matrix, int firstPair, int endPair, unsigned char *out) {
  const int panels = 2 * matrix.tiles;
  for (int pair = firstPair; pair < endPair; pair++) {
    const unsigned char *numbers = spg::pair_data(matrix, pair);
    const unsigned char *scales = matrix.blockScales + static_cast<size_t>(pair) * panels * spg::kPanelOutputs;
    for (int i = 0; i < panels; i++, out += spg::kTileBytes) {
      widen_panel(numbers + static_cast<size_t>(i) * spg::kMx4TileBytes, scales + i * spg::kPanelOutputs, out);
    }
  }
}

}

#endif
