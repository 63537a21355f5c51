/* What happens to one head before attention: RMSNorm, rotation, and the write of k and v into the pool. */
#ifndef SPANGATE_KERNELS_HEADS_H
#define SPANGATE_KERNELS_HEADS_H

#include <string.h>

#include "internal.h"
#include "mx8.h"
#include "vector.h"

namespace {

using spg::LayerCall;
using spg::PoolView;
using spg::rope_row;
using spg::StepView;

inline float to_float(float x) { return x; }
inline float to_float(Half x) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x))); }
inline void put(float *p, float x) { *p = x; }
inline void put(Half *p, float x) {
  x = x > spg::kMaxHalf ? spg::kMaxHalf : x < -spg::kMaxHalf ? -spg::kMaxHalf : x;
  *p = static_cast<Half>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT), 0));
}

/* out = x * factor, or with weights x / rms(x) * weight * factor. */
inline void scale_head(const float *x, const float *weight, int headDim, float eps, float factor, float *out) {
  int i = 0;
  if (weight) {
    Vec squares = zero();
    for (; i + kLanes <= headDim; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
    float sum = reduce<false>(squares);
    for (; i < headDim; i++) sum = __builtin_fmaf(x[i], x[i], sum);
    factor *= 1.0f / __builtin_sqrtf(sum / headDim + eps);
  }
  const Vec factors = broadcast(factor);
  for (i = 0; i + kLanes <= headDim; i += kLanes) {
    const Vec scaled = mul(load(x + i), factors);
    store(out + i, weight ? mul(scaled, load(weight + i)) : scaled);
  }
  for (; i < headDim; i++) out[i] = weight ? x[i] * factor * weight[i] : x[i] * factor;
}

/* out = x rotated to the position whose table row is `row`; out may be x. A null row means no rotation. */
inline void rotate_head(const PoolView &pool, const float *x, const float *row, float *out) {
  if (!row) {
    if (out != x) memcpy(out, x, pool.headDim * sizeof(float));
    return;
  }
  const int half = pool.rotaryDim / 2;
  const float *cosines = row, *sines = row + half;
  int i = 0;
  if (!pool.interleaved) {
    for (; i + kLanes <= half; i += kLanes) {
      const Vec a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
      store(out + i, sub(mul(a, c), mul(b, s)));
      store(out + half + i, add(mul(b, c), mul(a, s)));
    }
  }
  for (; i < half; i++) {
    const int ia = pool.interleaved ? 2 * i : i, ib = pool.interleaved ? 2 * i + 1 : half + i;
    const float a = x[ia], b = x[ib];
    out[ia] = a * cosines[i] - b * sines[i];
    out[ib] = b * cosines[i] + a * sines[i];
  }
  if (out != x) memcpy(out + pool.rotaryDim, x + pool.rotaryDim, (pool.headDim - pool.rotaryDim) * sizeof(float));
}

/* Numbers as the pool holds them. */
template <class T>
inline void put_all(const float *x, int count, T *out) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, load(x + i));
  for (; i < count; i++) put(out + i, x[i]);
}

template <class T>
void write_head(const PoolView &pool, const float *k, const float *v, unsigned char *head, int offset) {
  T converted[spg::kMaxHeadDim];
  put_all(k, pool.headDim, converted);
  T *keys = reinterpret_cast<T *>(head) + offset;
  for (int d = 0; d < pool.headDim; d++, keys += pool.blockTokens) *keys = converted[d];
  put_all(v, pool.headDim, reinterpret_cast<T *>(head) + static_cast<size_t>(pool.headDim) * (pool.blockTokens + offset));
}

/* Writes K and V of rows [firstRow, endRow) into their slots. */
void write_rows(const PoolView &pool, const StepView &step, const LayerCall &call, int firstRow, int endRow) {
  float rotated[spg::kMaxHeadDim];
  for (int kvHead = 0; kvHead < pool.kvHeads; kvHead++) {
    for (int row = firstRow; row < endRow; row++) {
      const float *k = call.qkv + row * call.qkvStride + static_cast<size_t>(pool.queryHeads + kvHead) * pool.headDim;
      const float *v = k + static_cast<size_t>(pool.kvHeads) * pool.headDim;
      scale_head(k, call.kNorm, pool.headDim, pool.normEps, 1.0f, rotated);
      rotate_head(pool, rotated, rope_row(pool, call.layer, step.positions[row]), rotated);
      const int block = step.slots[row] / pool.blockTokens, offset = step.slots[row] % pool.blockTokens;
      unsigned char *head = spg::head_data(pool, call.layer, block, kvHead);
      switch (pool.elementBytes) {
        case 4: write_head<float>(pool, rotated, v, head, offset); break;
        case 2: write_head<Half>(pool, rotated, v, head, offset); break;
        default: encode_head(pool, rotated, v, head, offset);
      }
    }
  }
}

}

#endif
