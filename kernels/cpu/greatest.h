/* The greatest of a row of numbers. */
#ifndef SPANGATE_KERNELS_GREATEST_H
#define SPANGATE_KERNELS_GREATEST_H

#include "products.h"
#include "vector.h"

namespace {

using spg::Greatest;

#if defined(__AVX512F__)
typedef __mmask16 Lanes;
inline Lanes nan_lanes(Vec x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
inline Lanes equal_lanes(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
#else
typedef unsigned Lanes;
inline Lanes nan_lanes(Vec x) { return static_cast<Lanes>(_mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q))); }
inline Lanes equal_lanes(Vec a, Vec b) {
  return static_cast<Lanes>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)));
}
#endif

/* Numbers of a row between two looks for the greatest one's place: they are still in the first cache then. */
constexpr int kStride = 1024;

/* The greatest of whole vectors, count > 0; sets isNan if one of them is NaN. */
inline float greatest_value(const float *x, int count, bool &isNan) {
  Vec best[2] = {load(x), load(x)};
  Lanes nans = 0;
  for (int i = 0; i < count; i += 2 * kLanes) {
    /* The second vector of an odd number is the last one again. */
    const Vec first = load(x + i), second = load(x + (i + kLanes < count ? i + kLanes : i));
    nans |= nan_lanes(first) | nan_lanes(second);
    best[0] = max(best[0], first);
    best[1] = max(best[1], second);
  }
  isNan = isNan || nans != 0;
  return reduce<true>(max(best[0], best[1]));
}

/* Where `value` stands first. */
inline int place_of(const float *x, int count, float value) {
  for (int i = 0; i < count; i += kLanes) {
    const Lanes found = equal_lanes(load(x + i), broadcast(value));
    if (found) return i + __builtin_ctz(found);
  }
  return -1;
}

inline Greatest greatest(const float *x, int count) {
  Greatest best = {-1, -__builtin_inff(), false};
  const int whole = count / kLanes * kLanes;
  for (int i = 0; i < whole && !best.isNan; i += kStride) {
    const int end = i + kStride < whole ? i + kStride : whole;
    const float value = greatest_value(x + i, end - i, best.isNan);
    if (value > best.value) best = {i + place_of(x + i, end - i, value), value, best.isNan};
  }
  for (int i = whole; i < count; i++) {
    best.isNan = best.isNan || x[i] != x[i];
    if (x[i] > best.value) best = {i, x[i], best.isNan};
  }
  return best;
}

}

#endif
