/* KV in mx8 (abi.h): rounding a token's K and V, and reading them as float32. */
#ifndef SPANGATE_KERNELS_MX8_H
#define SPANGATE_KERNELS_MX8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "internal.h"
#include "vector.h"

namespace {

using spg::kMx8Group;
using spg::PoolView;

/* The float32 whose exponent has these bits. */
inline float power_of(int exponentBits) {
  const int32_t bits = static_cast<int32_t>(exponentBits) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return power;
}

/*
 * What a scale stands for; 0 for those below kMx8LeastScale, which are in memory that nobody has written. The compiler
 * makes the table: code that makes it when the library is opened would be for a CPU that may not be this one.
 */
struct ScaleTable {
  float power[256];

  constexpr ScaleTable() : power{} {
    float next = 0x1p-126f;
    for (int s = spg::kMx8LeastScale; s < spg::kMx8NanScale; s++, next *= 2) power[s] = next;
    power[spg::kMx8NanScale] = NAN;
  }
};

constexpr ScaleTable kScales;

/* Rounds headDim values; `scales` gets one for each group. */
inline void encode(const float *values, int headDim, Mx8 *out, uint8_t *scales) {
  for (int d = 0; d < headDim; d += kMx8Group) {
    Bits magnitudes = magnitude_bits(load(values + d));
    for (int i = kLanes; i < kMx8Group; i += kLanes) magnitudes = max(magnitudes, magnitude_bits(load(values + d + i)));
    const int exponent = greatest_bits(magnitudes) >> 23;
    const int scale = exponent > spg::kMx8LeastScale ? exponent : spg::kMx8LeastScale;
    scales[d / kMx8Group] = static_cast<uint8_t>(scale);
    if (scale == spg::kMx8NanScale) {
      memset(out + d, 0, kMx8Group);
      continue;
    }
    /* 2^(kMx8Bias - scale): multiplying by a power of two does not round. */
    const Vec inverse = broadcast(power_of(127 + spg::kMx8Bias - scale));
    for (int i = 0; i < kMx8Group; i += kLanes) store(out + d + i, mul(load(values + d + i), inverse));
  }
}

inline void encode_head(const PoolView &pool, const float *k, const float *v, unsigned char *head, int offset) {
  Mx8 column[spg::kMaxHeadDim];
  uint8_t scales[spg::kMaxHeadDim / kMx8Group];
  encode(k, pool.headDim, column, scales);
  for (int d = 0; d < pool.headDim; d++) head[static_cast<size_t>(d) * pool.blockTokens + offset] = column[d];
  unsigned char *keyScales = head + spg::key_scales_at(pool, offset);
  for (int g = 0; g < pool.headDim / kMx8Group; g++) keyScales[static_cast<size_t>(g) * pool.blockTokens] = scales[g];
  Mx8 *values = reinterpret_cast<Mx8 *>(head) + static_cast<size_t>(pool.headDim) * (pool.blockTokens + offset);
  encode(v, pool.headDim, values, head + spg::value_scales_at(pool, offset));
}

/* Writes K of `run` tokens from `offset` on, dimension d at keys[16 d]. */
inline void decode_keys(const PoolView &pool, const Mx8 *head, int offset, int run, float *keys) {
  const uint8_t *scales = reinterpret_cast<const uint8_t *>(head) + spg::key_scales_at(pool, offset);
  int t = 0;
  for (; t + kLanes <= run; t += kLanes) {
    Vec scale = zero();
    for (int d = 0; d < pool.headDim; d++) {
      if (d % kMx8Group == 0) scale = load_scales(scales + static_cast<size_t>(d / kMx8Group) * pool.blockTokens + t);
      const Mx8 *row = head + static_cast<size_t>(d) * pool.blockTokens + offset;
      store(keys + d * spg::kPanelTokens + t, mul(load(row + t), scale));
    }
  }
  for (; t < run; t++) {
    for (int d = 0; d < pool.headDim; d++) {
      const uint8_t scale = scales[static_cast<size_t>(d / kMx8Group) * pool.blockTokens + t];
      const Mx8 key = head[static_cast<size_t>(d) * pool.blockTokens + offset + t];
      keys[d * spg::kPanelTokens + t] = key * kScales.power[scale];
    }
  }
}

/* Writes V of `run` tokens from `offset` on, one after the other. */
inline void decode_values(const PoolView &pool, const Mx8 *head, int offset, int run, float *values) {
  const uint8_t *scales = reinterpret_cast<const uint8_t *>(head) + spg::value_scales_at(pool, offset);
  const Mx8 *from = head + static_cast<size_t>(pool.headDim) * (pool.blockTokens + offset);
  for (int i = 0; i < run * pool.headDim; i += kMx8Group) {
    const Vec scale = broadcast(kScales.power[scales[i / kMx8Group]]);
    for (int lane = i; lane < i + kMx8Group; lane += kLanes) store(values + lane, mul(load(from + lane), scale));
  }
}

/* What multiplies the keys of some vectors of tokens, dimension after dimension; nothing but in mx8. */
template <class T, int kVectors>
struct KeyScales {
  void ready(const T *const *, int, int, size_t) {}
  static Vec apply(int, Vec key) { return key; }
};

template <int kVectors>
struct KeyScales<Mx8, kVectors> {
  Vec scale[kVectors];

  /* Loads the scales of dimension d where its group begins. The pool has them in rows behind those of K and V. */
  void ready(const Mx8 *const *panel, int rowsBefore, int d, size_t stride) {
    if (d % kMx8Group != 0) return;
    for (int v = 0; v < kVectors; v++) {
      const Mx8 *row = panel[v / kPanelVectors] + (rowsBefore + d / kMx8Group) * stride;
      scale[v] = load_scales(reinterpret_cast<const uint8_t *>(row) + (v % kPanelVectors) * kLanes);
    }
  }
  Vec apply(int v, Vec key) const { return mul(key, scale[v]); }
};

/* What multiplies the values of a panel's tokens, token after token, from dimension `dim` on; nothing but in mx8. */
template <class T>
struct ValueScales {
  ValueScales(const uint8_t *const *, int, int, int, int) {}
  static Vec apply(int, Vec value) { return value; }
  void next() {}
};

template <>
struct ValueScales<Mx8> {
  ValueScales(const uint8_t *const *panels, int panel, int token, int dim, int headDim)
      : groups_(headDim / kMx8Group), first_(dim), row_(panels[panel] + token * groups_) {}
  Vec apply(int dim, Vec value) const { return mul(value, broadcast(kScales.power[row_[(first_ + dim) / kMx8Group]])); }
  void next() { row_ += groups_; }

 private:
  int groups_, first_;
  const uint8_t *row_;
};

}

#endif
