/*
 * Shadows and scores by vector instructions, compiled once for each set (kernels/manifest.ts), under a name of its own each
 * time. A lane is a token: whatever the width of a vector, a token's numbers go through the same operations in the same
 * order, and products are whole numbers, so all sets give the same bits.
 */
#include "choose.h"

#include <math.h>
#include <string.h>

#include "heads.h"
#include "mx8.h"
#include "vector.h"

namespace {

using spg::kPanelTokens;
using spg::ScoreRows;
using spg::ShadowQuery;

/* Tokens of a block of a pool with choices are whole panels, so a panel's K stands together. */
template <class T>
void load_numbers(const PoolView &pool, const unsigned char *head, int token, float *keys) {
  const T *from = reinterpret_cast<const T *>(head) + token;
  for (int d = 0; d < pool.headDim; d++, from += pool.blockTokens) {
    for (int v = 0; v < kPanelVectors; v++) store(keys + d * kPanelTokens + v * kLanes, load(from + v * kLanes));
  }
}

void load_panel(const PoolView &pool, const unsigned char *head, int token, float *keys) {
  switch (pool.elementBytes) {
    case 4: return load_numbers<float>(pool, head, token, keys);
    case 2: return load_numbers<Half>(pool, head, token, keys);
    default: decode_keys(pool, reinterpret_cast<const Mx8 *>(head), token, kPanelTokens, keys);
  }
}

/* The Hadamard transform of each token, by power-of-two parts of the head, without its factor: the part's root. */
void transform(int headDim, float *keys) {
  for (int start = 0; start < headDim;) {
    const int part = spg::hadamard_part(headDim - start);
    for (int half = 1; half < part; half *= 2) {
      for (int d = start; d < start + part; d++) {
        if ((d - start) & half) continue;
        for (int lane = 0; lane < kPanelTokens; lane += kLanes) {
          float *a = keys + d * kPanelTokens + lane, *b = keys + (d + half) * kPanelTokens + lane;
          const Vec x = load(a), y = load(b);
          store(a, add(x, y));
          store(b, sub(x, y));
        }
      }
    }
    const Vec factor = broadcast(1.0f / __builtin_sqrtf(static_cast<float>(part)));
    for (int i = start * kPanelTokens; i < (start + part) * kPanelTokens; i += kLanes) {
      store(keys + i, mul(load(keys + i), factor));
    }
    start += part;
  }
}

/* Scales of the 16 tokens, and what their numbers are multiplied by. K that is not finite has a shadow of zeros. */
void find_scales(int headDim, const float *keys, Half *scales, float *inverses) {
  for (int lane = 0; lane < kPanelTokens; lane += kLanes) {
    Vec greatest = zero(), finite = zero();
    for (int d = 0; d < headDim; d++) {
      const Vec x = load(keys + d * kPanelTokens + lane);
      greatest = max(where_negative(x, sub(zero(), x), x), greatest);
      finite = fma(x, zero(), finite);
    }
    store(scales + lane, divide(greatest, broadcast(static_cast<float>(spg::kShadowLimit))));
    float zeros[kLanes];
    store(zeros, finite);
    for (int i = 0; i < kLanes; i++) {
      if (zeros[i] != 0) scales[lane + i] = 0;
      const float scale = to_float(scales[lane + i]);
      inverses[lane + i] = scale > 0 ? 1.0f / scale : 0;
    }
  }
}

inline int32_t code_of(float y, float inverse) {
  const float number = inverse > 0 ? __builtin_rintf(y * inverse) : 0;
  const float limit = spg::kShadowLimit;
  return static_cast<int32_t>(number > limit ? limit : number < -limit ? -limit : number) + spg::kShadowZero;
}

void write_shadows(int headDim, float *keys, int first, int end, unsigned char *panel) {
  Half scales[kPanelTokens];
  float inverses[kPanelTokens];
  transform(headDim, keys);
  find_scales(headDim, keys, scales, inverses);
  for (int group = 0; group < headDim / 8; group++) {
    int32_t words[kPanelTokens] = {};
    for (int i = 0; i < 4; i++) {
      const float *low = keys + (group * 4 + i) * kPanelTokens;
      const float *high = low + static_cast<ptrdiff_t>(headDim) / 2 * kPanelTokens;
      for (int t = 0; t < kPanelTokens; t++) {
        const uint32_t both = code_of(low[t], inverses[t]) | code_of(high[t], inverses[t]) << 4;
        words[t] |= static_cast<int32_t>(both << (8 * i));
      }
    }
    memcpy(panel + (static_cast<size_t>(group) * kPanelTokens + first) * 4, words + first, (end - first) * 4);
  }
  memcpy(panel + spg::shadow_code_bytes(headDim) + first * sizeof(Half), scales + first, (end - first) * sizeof(Half));
}

#if defined(__AVX512F__)

typedef __m512i Ints;
inline Ints no_ints() { return _mm512_setzero_si512(); }
inline Ints load_ints(const unsigned char *p) { return _mm512_loadu_si512(p); }
inline Ints lower_codes(Ints x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Ints upper_codes(Ints x) { return lower_codes(_mm512_srli_epi16(x, 4)); }
inline Vec to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints without(Ints x, int32_t y) { return _mm512_sub_epi32(x, _mm512_set1_epi32(y)); }
inline Ints add_products(Ints sum, Ints codes, int32_t four) {
  const Ints numbers = _mm512_set1_epi32(four);
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sum, codes, numbers);
#else
  const Ints pairs = _mm512_maddubs_epi16(codes, numbers);
  return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

#else

typedef __m256i Ints;
inline Ints no_ints() { return _mm256_setzero_si256(); }
inline Ints load_ints(const unsigned char *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
inline Ints lower_codes(Ints x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Ints upper_codes(Ints x) { return lower_codes(_mm256_srli_epi16(x, 4)); }
inline Vec to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints without(Ints x, int32_t y) { return _mm256_sub_epi32(x, _mm256_set1_epi32(y)); }
inline Ints add_products(Ints sum, Ints codes, int32_t four) {
  const Ints numbers = _mm256_set1_epi32(four);
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, codes, numbers);
#else
  /* Two products of at most 15 * 127 fit into 16 bits. */
  const Ints pairs = _mm256_maddubs_epi16(codes, numbers);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

#endif

/* Scores of one panel for kCount queries. */
template <int kCount>
void score_panel(const unsigned char *panel, int headDim, const ShadowQuery *queries, float *scores, size_t stride) {
  Ints sums[kCount][kPanelVectors];
  for (int q = 0; q < kCount; q++) {
    for (int v = 0; v < kPanelVectors; v++) sums[q][v] = no_ints();
  }
  for (int group = 0; group < headDim / 8; group++) {
    for (int v = 0; v < kPanelVectors; v++) {
      const Ints both = load_ints(panel + (static_cast<size_t>(group) * kPanelTokens + v * kLanes) * 4);
      const Ints low = lower_codes(both), high = upper_codes(both);
      for (int q = 0; q < kCount; q++) {
        int32_t first, second;
        memcpy(&first, queries[q].numbers + group * 4, 4);
        memcpy(&second, queries[q].numbers + headDim / 2 + group * 4, 4);
        sums[q][v] = add_products(add_products(sums[q][v], low, first), high, second);
      }
    }
  }
  const Half *scales = reinterpret_cast<const Half *>(panel + spg::shadow_code_bytes(headDim));
  for (int v = 0; v < kPanelVectors; v++) {
    const Vec scale = load(scales + v * kLanes);
    for (int q = 0; q < kCount; q++) {
      const Vec whole = to_floats(without(sums[q][v], queries[q].zero));
      store(scores + q * stride + v * kLanes, mul(mul(whole, scale), broadcast(queries[q].factor)));
    }
  }
}

/* Panels of a head lie a block apart, too far for the processor to see them coming. */
constexpr int kPanelsAhead = 4;

inline void look_ahead(const unsigned char *panel, int headDim) {
  const size_t bytes = spg::shadow_code_bytes(headDim) + kPanelTokens * sizeof(Half);
  for (size_t at = 0; at < bytes; at += 64) _mm_prefetch(reinterpret_cast<const char *>(panel + at), _MM_HINT_T0);
}

/* Queries that share a load of a panel: with their sums, codes and scales they fit into the registers. */
constexpr int kSharedQueries = 4;

void score(const unsigned char *const *panels, int count, int headDim, const ShadowQuery *queries,
           const ScoreRows &rows) {
  for (int first = 0; first < rows.count; first += kSharedQueries) {
    const ShadowQuery *own = queries + first;
    for (int p = 0; p < count; p++) {
      if (first == 0 && p + kPanelsAhead < count) look_ahead(panels[p + kPanelsAhead], headDim);
      float *scores = rows.scores + first * rows.stride + p * kPanelTokens;
      switch (rows.count - first) {
        case 1: score_panel<1>(panels[p], headDim, own, scores, rows.stride); break;
        case 2: score_panel<2>(panels[p], headDim, own, scores, rows.stride); break;
        case 3: score_panel<3>(panels[p], headDim, own, scores, rows.stride); break;
        default: score_panel<4>(panels[p], headDim, own, scores, rows.stride);
      }
    }
  }
}

/* log2 of the sum of 2^score: sixteen sums, of every sixteenth token each, and then their sum from the first on. */
float log_sum(const float *scores, int tokens) {
  Vec greatest = load(scores);
  for (int i = kLanes; i < tokens; i += kLanes) greatest = max(load(scores + i), greatest);
  const float top = reduce<true>(greatest);
  Vec sums[kPanelVectors];
  for (Vec &sum : sums) sum = zero();
  for (int i = 0; i < tokens; i += kPanelTokens) {
    for (int v = 0; v < kPanelVectors; v++) {
      sums[v] = add(sums[v], exp2_nonpositive(sub(load(scores + i + v * kLanes), broadcast(top))));
    }
  }
  float parts[kPanelTokens], total = 0;
  for (int v = 0; v < kPanelVectors; v++) store(parts + v * kLanes, sums[v]);
  for (float part : parts) total += part;
  return top + log2f(total);
}

void rank(const ScoreRows &rows, int tokens, float *best, uint16_t *ranks) {
  for (int q = 0; q < rows.count; q++) {
    const float *scores = rows.scores + q * rows.stride;
    const Vec own = broadcast(log_sum(scores, tokens));
    const bool isLast = q + 1 == rows.count;
    for (int i = 0; i < tokens; i += kLanes) {
      const Vec share = sub(load(scores + i), own), most = q == 0 ? share : max(share, load(best + i));
      if (isLast) store(ranks + i, most);
      else store(best + i, most);
    }
  }
}

/* One bit for each of `kLanesOfRanks` ranks that is in [low, end). */
#if defined(__AVX512F__)
constexpr int kLanesOfRanks = 32;
inline uint32_t ranks_within(const uint16_t *ranks, uint16_t low, uint16_t end) {
  const __m512i x = _mm512_and_si512(_mm512_loadu_si512(ranks), _mm512_set1_epi16(0x7fff));
  const __mmask32 isNotLess = _mm512_cmpge_epu16_mask(x, _mm512_set1_epi16(static_cast<short>(low)));
  return _mm512_mask_cmplt_epu16_mask(isNotLess, x, _mm512_set1_epi16(static_cast<short>(end)));
}
#else
constexpr int kLanesOfRanks = 16;
inline uint32_t ranks_within(const uint16_t *ranks, uint16_t low, uint16_t end) {
  const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(ranks));
  const __m256i x = _mm256_and_si256(all, _mm256_set1_epi16(0x7fff));
  /* Ranks have 15 bits, so signed comparisons do; `end` may be 2^15, and stands one lower here. */
  const __m256i isLess = _mm256_cmpgt_epi16(_mm256_set1_epi16(static_cast<short>(low)), x);
  const __m256i isMore = _mm256_cmpgt_epi16(x, _mm256_set1_epi16(static_cast<short>(end - 1)));
  const __m256i out = _mm256_or_si256(isLess, isMore);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
  return ~static_cast<uint32_t>(_mm_movemask_epi8(bytes)) & 0xffff;
}
#endif

void within(const uint16_t *ranks, int tokens, uint16_t low, uint16_t end, uint64_t *set) {
  for (int start = 0; start < tokens; start += 64) {
    uint64_t bits = 0;
    for (int i = 0; i < 64 && start + i < tokens; i += kLanesOfRanks) {
      bits |= static_cast<uint64_t>(ranks_within(ranks + start + i, low, end)) << i;
    }
    set[start / 64] = tokens - start < 64 ? bits & ((uint64_t(1) << (tokens - start)) - 1) : bits;
  }
}

}

namespace spg {

const ChooseTable *SPG_CHOOSE_TABLE() {
  static const ChooseTable table = {load_panel, write_shadows, score, rank, within};
  return &table;
}

}
