/*
 * The few vector operations the kernels use, for AVX-512 and AVX2. kernels.cpp is compiled once with each; the
 * names live in an unnamed namespace, so the two copies never meet at link time.
 */
#ifndef SPANGATE_KERNELS_VECTOR_H
#define SPANGATE_KERNELS_VECTOR_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "internal.h"

namespace {

typedef uint16_t Half;
/* A number of mx8, without its scale. */
typedef int8_t Mx8;
/* A float32 whose exponent has the bits s - kMx8Shift is 2^(s - kMx8Bias). */
constexpr int kMx8Shift = spg::kMx8Bias - 127;

#if defined(__AVX512F__)

constexpr int kLanes = 16;
/* Accumulators that a micro kernel may hold; the other 8 of the 32 registers serve loads and broadcasts. */
constexpr int kAccumulators = 24;
typedef __m512 Vec;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float *p) { return _mm512_loadu_ps(p); }
inline Vec load(const Half *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
inline Vec load(const Mx8 *p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
}
/* Powers of two of as many scales: their exponent is put where a float32 has it. */
inline Vec load_scales(const uint8_t *p) {
  const __m512i scales = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
  const __m512i shifted = _mm512_sub_epi32(scales, _mm512_set1_epi32(kMx8Shift));
  const __m512i exponents = _mm512_max_epi32(shifted, _mm512_setzero_si512());
  const __mmask16 isNan = _mm512_cmpeq_epi32_mask(scales, _mm512_set1_epi32(spg::kMx8NanScale));
  return _mm512_mask_mov_ps(_mm512_castsi512_ps(_mm512_slli_epi32(exponents, 23)), isNan, _mm512_set1_ps(NAN));
}
/* The bits of absolute values. An infinity has more than all numbers, NaN more still. */
typedef __m512i Bits;
inline Bits magnitude_bits(Vec x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
inline Bits max(Bits a, Bits b) { return _mm512_max_epi32(a, b); }
inline int32_t greatest_bits(Bits x) { return _mm512_reduce_max_epi32(x); }
/* Rounds to nearest, ties to even, within +-127. */
inline void store(Mx8 *p, Vec x) {
  const __m512i limit = _mm512_set1_epi32(127);
  const __m512i rounded = _mm512_max_epi32(_mm512_set1_epi32(-127), _mm512_min_epi32(limit, _mm512_cvtps_epi32(x)));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtepi32_epi8(rounded));
}
inline void store(float *p, Vec x) { _mm512_storeu_ps(p, x); }
inline void store(Half *p, Vec x) {
  const Vec limit = _mm512_set1_ps(spg::kMaxHalf);
  const Vec clamped = _mm512_max_ps(_mm512_set1_ps(-spg::kMaxHalf), _mm512_min_ps(limit, x));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec divide(Vec a, Vec b) { return _mm512_div_ps(a, b); }
/* b where the sign bit of x is set, else a. */
inline Vec where_negative(Vec x, Vec b, Vec a) {
  return _mm512_mask_mov_ps(a, _mm512_movepi32_mask(_mm512_castps_si512(x)), b);
}
/*
 * Where either is NaN the result is the second operand, as in the instruction (store, above, keeps NaN thanks to this).
 */
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec round_nearest(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* x * 2^n for whole n in [-127, 127]; 0 for n = -127. */
inline Vec scale_by_power(Vec x, Vec n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_mul_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23)));
}
inline float first_lane(Vec x) { return _mm512_cvtss_f32(x); }
/* Reduces 16 lanes to 8: the maximum, or the sum, of each lane and the lane 8 above it. */
inline __m256 fold(Vec x, bool maximum) {
  const __m256 low = _mm512_castps512_ps256(x);
  const __m256 high = _mm512_extractf32x8_ps(x, 1);
  return maximum ? _mm256_max_ps(low, high) : _mm256_add_ps(low, high);
}
inline Vec from_bfloat16(const uint16_t *p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

#elif defined(__AVX2__)

constexpr int kLanes = 8;
constexpr int kAccumulators = 12;
typedef __m256 Vec;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float *p) { return _mm256_loadu_ps(p); }
inline Vec load(const Half *p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
inline Vec load(const Mx8 *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
}
inline Vec load_scales(const uint8_t *p) {
  const __m256i scales = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
  const __m256i shifted = _mm256_sub_epi32(scales, _mm256_set1_epi32(kMx8Shift));
  const __m256i exponents = _mm256_max_epi32(shifted, _mm256_setzero_si256());
  const __m256 isNan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(scales, _mm256_set1_epi32(spg::kMx8NanScale)));
  return _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_slli_epi32(exponents, 23)), _mm256_set1_ps(NAN), isNan);
}
typedef __m256i Bits;
inline Bits magnitude_bits(Vec x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }
inline Bits max(Bits a, Bits b) { return _mm256_max_epi32(a, b); }
inline int32_t greatest_bits(Bits eight) {
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
inline void store(Mx8 *p, Vec x) {
  const __m256i limit = _mm256_set1_epi32(127);
  const __m256i rounded = _mm256_max_epi32(_mm256_set1_epi32(-127), _mm256_min_epi32(limit, _mm256_cvtps_epi32(x)));
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i *>(p), _mm_packs_epi16(words, words));
}
inline void store(float *p, Vec x) { _mm256_storeu_ps(p, x); }
inline void store(Half *p, Vec x) {
  const Vec limit = _mm256_set1_ps(spg::kMaxHalf);
  const Vec clamped = _mm256_max_ps(_mm256_set1_ps(-spg::kMaxHalf), _mm256_min_ps(limit, x));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec divide(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec where_negative(Vec x, Vec b, Vec a) { return _mm256_blendv_ps(a, b, x); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec round_nearest(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec scale_by_power(Vec x, Vec n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
}
inline float first_lane(Vec x) { return _mm256_cvtss_f32(x); }
inline __m256 fold(Vec x, bool) { return x; }
inline Vec from_bfloat16(const uint16_t *p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

#else
#error "kernels.cpp needs AVX2 or AVX-512; other machines run reference.cpp"
#endif

/* Vectors in one panel of 16 tokens. */
constexpr int kPanelVectors = 16 / kLanes;

/* Sum or maximum over the lanes, always in the same order. */
template <bool kMaximum>
inline float reduce(Vec x) {
  const __m256 eight = fold(x, kMaximum);
  const __m128 low = _mm256_castps256_ps128(eight), high = _mm256_extractf128_ps(eight, 1);
  __m128 four = kMaximum ? _mm_max_ps(low, high) : _mm_add_ps(low, high);
  const __m128 swapped = _mm_movehl_ps(four, four);
  four = kMaximum ? _mm_max_ps(four, swapped) : _mm_add_ps(four, swapped);
  const __m128 second = _mm_shuffle_ps(four, four, 1);
  return _mm_cvtss_f32(kMaximum ? _mm_max_ss(four, second) : _mm_add_ss(four, second));
}

/*
 * 2^x for x <= 0, relative error below 1e-7; exactly 1 at 0, 0 below -126.5 (and for -infinity), NaN for NaN.
 * 2^x = 2^n * 2^f with n the nearest integer; the polynomial is the minimax fit of 2^f on [-1/2, 1/2] with
 * constant term 1.
 */
inline Vec exp2_nonpositive(Vec x) {
  const Vec clamped = max(broadcast(-127.0f), x);
  const Vec n = round_nearest(clamped);
  const Vec f = sub(clamped, n);
  Vec p = fma(broadcast(0.00015353361959569156f), f, broadcast(0.0013398873852565885f));
  p = fma(p, f, broadcast(0.00961843691766262f));
  p = fma(p, f, broadcast(0.055503323674201965f));
  p = fma(p, f, broadcast(0.24022647738456726f));
  p = fma(p, f, broadcast(0.6931471824645996f));
  p = fma(p, f, broadcast(1.0f));
  return scale_by_power(p, n);
}

inline float exp2_nonpositive(float x) {
  return first_lane(exp2_nonpositive(broadcast(x)));
}

/* tanh(x), off by 2^-23 at most, by e^(-2 |x|), which does not overflow. */
inline Vec tanh_of(Vec x) {
  const Vec negative = where_negative(x, x, sub(zero(), x));
  const Vec e = exp2_nonpositive(mul(negative, broadcast(2.88539008177792681472f)));
  const Vec one = broadcast(1.0f), size = divide(sub(one, e), add(one, e));
  return where_negative(x, sub(zero(), size), size);
}

}

#endif
