/* Products by vector instructions: some rows at a time, whose numbers are broadcast, share each load of weights. */
#ifndef SPANGATE_KERNELS_PRODUCTS_VECTOR_H
#define SPANGATE_KERNELS_PRODUCTS_VECTOR_H

#if !defined(__AMX_TILE__)

#include <immintrin.h>

#include "products_rows.h"

namespace {

/* Weights are read at most once for few rows, and nothing else gives memory time. */
constexpr int kAheadBytes = 4096;

/* Vectors of outputs that a micro kernel sums up, of the pair's 32: as many passes go over a pair. */
constexpr int kOutputVectors = 2;
constexpr int kPassOutputs = kOutputVectors * kLanes, kPasses = spg::kPairOutputs / kPassOutputs;
/* Rows of the largest micro kernel. */
constexpr int kMostRows = kLanes == 16 ? 12 : 4;

#if defined(__AVX512F__)
/* The first, or the second, bfloat16 number of each pair as float32. */
inline Vec first_of_two(const unsigned char *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
inline Vec second_of_two(const unsigned char *p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-65536)));
}
#else
inline Vec first_of_two(const unsigned char *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)), 16));
}
inline Vec second_of_two(const unsigned char *p) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
  return _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)));
}
#endif

/* Two inputs of kPassOutputs weights, of which the parts lie 2,048 bytes apart. */
struct WeightVectors {
  Vec first[kOutputVectors], second[kOutputVectors];
};

inline WeightVectors widen_weights(const unsigned char *at, int parts) {
  /* The panels of a pair lie 1,024 bytes apart; one vector of AVX2 is half a panel's outputs. */
  constexpr int kStep = kLanes == 16 ? spg::kTileBytes : 32;
  WeightVectors out;
  for (int v = 0; v < kOutputVectors; v++) {
    out.first[v] = first_of_two(at + v * kStep);
    out.second[v] = second_of_two(at + v * kStep);
    for (int part = 1; part < parts; part++) {
      const unsigned char *more = at + v * kStep + static_cast<ptrdiff_t>(part) * 2 * spg::kTileBytes;
      out.first[v] = add(out.first[v], first_of_two(more));
      out.second[v] = add(out.second[v], second_of_two(more));
    }
  }
  return out;
}

/* sums [R][32], from output pass * kPassOutputs on. */
template <int R, bool kOnePart>
__attribute__((noinline)) void multiply_floats(const MatrixView &matrix, const float *rows, size_t stride,
                                               const unsigned char *weights, int pass, float *sums) {
  Vec total[R][kOutputVectors];
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < kOutputVectors; v++) total[r][v] = zero();
  }
  const int parts = kOnePart ? 1 : matrix.parts;
  const size_t tileBytes = static_cast<size_t>(2) * parts * spg::kTileBytes;
  weights += static_cast<size_t>(pass) * spg::kTileBytes;
  for (int tile = 0; tile < matrix.tiles; tile++, weights += tileBytes, rows += 32) {
    for (int two = 0; two < 16; two++) {
      const unsigned char *at = weights + two * 64;
      if (R == 1) __builtin_prefetch(at + kAheadBytes, 0, 3);
      if (R == 1 && kPasses == 1) __builtin_prefetch(at + kAheadBytes + spg::kTileBytes, 0, 3);
      const WeightVectors w = widen_weights(at, parts);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        const Vec x = broadcast(rows[r * stride + 2 * two]), y = broadcast(rows[r * stride + 2 * two + 1]);
        for (int v = 0; v < kOutputVectors; v++) {
          total[r][v] = fma(y, w.second[v], fma(x, w.first[v], total[r][v]));
        }
      }
    }
  }
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < kOutputVectors; v++) {
      store(sums + r * spg::kPairOutputs + pass * kPassOutputs + v * kLanes, total[r][v]);
    }
  }
}

/* Whole numbers: registers of 64 bytes where they can be multiplied in one instruction, else of 32. */
#if defined(__AVX512VNNI__)
constexpr int kWholeLanes = 16;
typedef __m512i Whole;
inline Whole whole_zero() { return _mm512_setzero_si512(); }
inline Whole load_whole(const void *p) { return _mm512_loadu_si512(p); }
inline Whole four_of(const unsigned char *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}
inline Whole add_products(Whole sum, Whole four, Whole weights) { return _mm512_dpbusd_epi32(sum, four, weights); }
#else
constexpr int kWholeLanes = 8;
typedef __m256i Whole;
inline Whole whole_zero() { return _mm256_setzero_si256(); }
inline Whole load_whole(const void *p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }
inline Whole four_of(const unsigned char *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return _mm256_set1_epi32(four);
}
#if defined(__AVXVNNI__)
inline Whole add_products(Whole sum, Whole four, Whole weights) {
  return _mm256_dpbusd_avx_epi32(sum, four, weights);
}
#else
/* No number is -128, so two products add up to 32,258 at most, which 16 bits hold. */
inline Whole add_products(Whole sum, Whole four, Whole weights) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(four, weights));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
#endif

constexpr int kWholeVectors = 2, kWholePassOutputs = kWholeVectors * kWholeLanes;
constexpr int kWholePasses = spg::kPairOutputs / kWholePassOutputs;
/* Rows of the largest micro kernel. */
constexpr int kMostWholeRows = kWholeLanes == 16 ? 8 : 4;

inline Vec floats_of(const int32_t *p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_loadu_si512(p));
#else
  return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
#endif
}

/* Some rows and one group of a pair's weights; rows: the first row's bytes in the group's first tile. */
struct GroupCall {
  const unsigned char *rows, *weights;
  /* Scales of the rows and of the pair's outputs; 128 times the sums of the weights. */
  const float *rowScales, *weightScales;
  const int32_t *sums;
  int tiles;
};

/* Adds the whole numbers of one row, times both scales, to its sums. */
inline void add_whole(int32_t *numbers, const GroupCall &call, int from, float rowScale, float *sums) {
  for (int i = 0; kAdds128 && i < kWholePassOutputs; i++) numbers[i] -= call.sums[from + i];
  for (int i = 0; i < kWholePassOutputs; i += kLanes) {
    const Vec scale = mul(broadcast(rowScale), load(call.weightScales + from + i));
    store(sums + i, fma(floats_of(numbers + i), scale, load(sums + i)));
  }
}

/* Adds the products of a group to sums [R][32]. */
template <int R>
__attribute__((noinline)) void multiply_group(const GroupCall &call, int pass, float *sums) {
  constexpr int kStep = kWholeLanes == 16 ? spg::kTileBytes : 32;
  Whole total[R][kWholeVectors];
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < kWholeVectors; v++) total[r][v] = whole_zero();
  }
  const unsigned char *rows = call.rows, *weights = call.weights + static_cast<size_t>(pass) * spg::kTileBytes;
  for (int tile = 0; tile < call.tiles; tile++, rows += spg::kTileBytes, weights += 2 * spg::kTileBytes) {
    for (int four = 0; four < 16; four++) {
      const unsigned char *at = weights + four * 64;
      if (R == 1) __builtin_prefetch(at + kAheadBytes, 0, 3);
      if (R == 1 && kWholePasses == 1) __builtin_prefetch(at + kAheadBytes + spg::kTileBytes, 0, 3);
      Whole w[kWholeVectors];
      for (int v = 0; v < kWholeVectors; v++) w[v] = load_whole(at + v * kStep);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const Whole x = four_of(rows + r * 64 + four * 4);
        for (int v = 0; v < kWholeVectors; v++) total[r][v] = add_products(total[r][v], x, w[v]);
      }
    }
  }
  alignas(64) int32_t numbers[kWholePassOutputs];
  const int from = pass * kWholePassOutputs;
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < kWholeVectors; v++) memcpy(numbers + v * kWholeLanes, &total[r][v], sizeof(Whole));
    add_whole(numbers, call, from, call.rowScales[r], sums + r * spg::kPairOutputs + from);
  }
}

using FloatKernel = void (*)(const MatrixView &, const float *, size_t, const unsigned char *, int, float *);
using GroupKernel = void (*)(const GroupCall &, int, float *);

/* The most rows, of 12 at most, that one call of a micro kernel takes of `left`. */
inline int rows_at_once(int left, int most) {
  if (left >= 12 && most >= 12) return 12;
  if (left >= 8 && most >= 8) return 8;
  return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

template <bool kOnePart>
FloatKernel float_kernel(int rows) {
  switch (rows) {
    case 1: return multiply_floats<1, kOnePart>;
    case 2: return multiply_floats<2, kOnePart>;
    case 4: return multiply_floats<4, kOnePart>;
#if defined(__AVX512F__)
    case 8: return multiply_floats<8, kOnePart>;
    case 12: return multiply_floats<12, kOnePart>;
#endif
  }
  return nullptr;
}

inline GroupKernel group_kernel(int rows) {
  switch (rows) {
    case 1: return multiply_group<1>;
    case 2: return multiply_group<2>;
    case 4: return multiply_group<4>;
#if defined(__AVX512VNNI__)
    case 8: return multiply_group<8>;
#endif
  }
  return nullptr;
}

inline void multiply_float_rows(const MatrixView &matrix, const PackedRows &packed, int pair, int row, int count,
                                float *sums) {
  const size_t stride = static_cast<size_t>(matrix.tiles) * 32;
  const float *rows = reinterpret_cast<const float *>(packed.data) + row * stride;
  const FloatKernel kernel = matrix.parts == 1 ? float_kernel<true>(count) : float_kernel<false>(count);
  for (int pass = 0; pass < kPasses; pass++) {
    kernel(matrix, rows, stride, spg::pair_data(matrix, pair), pass, sums);
  }
}

inline void multiply_int8_rows(const MatrixView &matrix, const PackedRows &packed, int pair, int row, int count,
                               float *sums) {
  const int panel = row / spg::kPanelRows, at = row % spg::kPanelRows;
  const unsigned char *rows = packed.data + panel * packed.panelBytes + at * 64;
  const unsigned char *weights = spg::pair_data(matrix, pair);
  memset(sums, 0, count * spg::kPairOutputs * sizeof(float));
  const GroupKernel kernel = group_kernel(count);
  for (int group = 0; group < matrix.groups; group++) {
    const int first = spg::group_start(matrix, group);
    const size_t row_scales = (static_cast<size_t>(panel) * matrix.groups + group) * spg::kPanelRows + at;
    const size_t scales = (static_cast<size_t>(pair) * matrix.groups + group) * spg::kPairOutputs;
    const GroupCall call{rows + static_cast<size_t>(first) * spg::kTileBytes,
                         weights + static_cast<size_t>(first) * 2 * spg::kTileBytes,
                         packed.scales + row_scales,
                         matrix.scales + scales,
                         matrix.sums + scales,
                         spg::group_start(matrix, group + 1) - first};
    for (int pass = 0; pass < kWholePasses; pass++) kernel(call, pass, sums);
  }
}

void multiply_by_vectors(const MatrixView &matrix, const PackedRows &packed, const ProductCall &call,
                         const ProductRange &range) {
  alignas(64) float sums[12 * spg::kPairOutputs];
  const int end = range.endPanel * spg::kPanelRows < packed.rows ? range.endPanel * spg::kPanelRows : packed.rows;
  for (int pair = range.firstPair; pair < range.endPair; pair++) {
    int row = range.firstPanel * spg::kPanelRows;
    while (row < end) {
      int count;
      if (matrix.form == SPG_B16) {
        count = rows_at_once(end - row, kMostRows);
        multiply_float_rows(matrix, packed, pair, row, count, sums);
      } else {
        const int panelEnd = (row / spg::kPanelRows + 1) * spg::kPanelRows;
        count = rows_at_once((panelEnd < end ? panelEnd : end) - row, kMostWholeRows);
        multiply_int8_rows(matrix, packed, pair, row, count, sums);
      }
      finish_rows(matrix, call, pair, row, count, sums);
      row += count;
    }
  }
}

}

#endif
#endif
