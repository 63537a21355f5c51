/*
 * What blending needs: copying single tokens within the pool, and measuring how far stored KV is from the exact KV. Copies
 * are what sparse decoding fills its buffers with, too.
 */
#ifndef SPANGATE_KERNELS_BLEND_H
#define SPANGATE_KERNELS_BLEND_H

#include <string.h>

#include "heads.h"
#include "internal.h"
#include "vector.h"

namespace {

using spg::TokenCopies;

/* Copies a token's K and V as they are. */
template <class T>
void copy_plain(const PoolView &pool, const unsigned char *from, int fromOffset, unsigned char *to, int toOffset) {
  const size_t dim = pool.headDim, stride = pool.blockTokens;
  const T *fromKeys = reinterpret_cast<const T *>(from) + fromOffset;
  T *toKeys = reinterpret_cast<T *>(to) + toOffset;
  for (size_t d = 0; d < dim; d++) toKeys[d * stride] = fromKeys[d * stride];
  memcpy(reinterpret_cast<T *>(to) + dim * (stride + toOffset),
         reinterpret_cast<const T *>(from) + dim * (stride + fromOffset), dim * sizeof(T));
}

template <class T>
void copy_head(const PoolView &pool, const unsigned char *from, int fromOffset, const float *rotation,
               unsigned char *to,
               int toOffset) {
  const T *fromKeys = reinterpret_cast<const T *>(from) + fromOffset;
  T *toKeys = reinterpret_cast<T *>(to) + toOffset;
  float column[spg::kMaxHeadDim];
  for (int d = 0; d < pool.headDim; d++) column[d] = to_float(fromKeys[static_cast<size_t>(d) * pool.blockTokens]);
  rotate_head(pool, column, rotation, column);
  for (int d = 0; d < pool.headDim; d++) put(toKeys + static_cast<size_t>(d) * pool.blockTokens, column[d]);
  if (toKeys == fromKeys) return;
  const size_t dim = pool.headDim;
  memcpy(reinterpret_cast<T *>(to) + dim * (pool.blockTokens + toOffset),
         reinterpret_cast<const T *>(from) + dim * (pool.blockTokens + fromOffset), dim * sizeof(T));
}

/* The same in mx8: scales go with their numbers, and K that is rotated is rounded anew. */
void copy_mx8(const PoolView &pool, const unsigned char *from, int fromOffset, const float *rotation,
              unsigned char *to, int toOffset) {
  const int groups = pool.headDim / kMx8Group;
  copy_plain<Mx8>(pool, from, fromOffset, to, toOffset);
  memcpy(to + spg::value_scales_at(pool, toOffset), from + spg::value_scales_at(pool, fromOffset), groups);
  const unsigned char *fromScales = from + spg::key_scales_at(pool, fromOffset);
  unsigned char *toScales = to + spg::key_scales_at(pool, toOffset);
  const size_t stride = pool.blockTokens;
  if (!rotation) {
    for (int g = 0; g < groups; g++) toScales[g * stride] = fromScales[g * stride];
    return;
  }
  float column[spg::kMaxHeadDim];
  uint8_t scales[spg::kMaxHeadDim / kMx8Group];
  Mx8 numbers[spg::kMaxHeadDim];
  for (int d = 0; d < pool.headDim; d++) {
    const Mx8 number = static_cast<Mx8>(from[d * stride + fromOffset]);
    column[d] = number * kScales.power[fromScales[d / kMx8Group * stride]];
  }
  rotate_head(pool, column, rotation, column);
  encode(column, pool.headDim, numbers, scales);
  for (int d = 0; d < pool.headDim; d++) to[d * stride + toOffset] = static_cast<unsigned char>(numbers[d]);
  for (int g = 0; g < groups; g++) toScales[g * stride] = scales[g];
}

/* Brings a token's K and V into the cache. Its K is spread over all of the block's, which no other read announces. */
inline void look_at(const PoolView &pool, int layer, int kvHead, int slot) {
  const unsigned char *head = spg::head_data(pool, layer, slot / pool.blockTokens, kvHead);
  const size_t offset = slot % pool.blockTokens, bytes = pool.elementBytes, dim = pool.headDim;
  const size_t keys = dim * pool.blockTokens * bytes, row = pool.blockTokens * bytes;
  auto look = [&](size_t at) { _mm_prefetch(reinterpret_cast<const char *>(head + at), _MM_HINT_T0); };
  for (size_t at = offset * bytes; at < keys; at += row > 64 ? row : 64) look(at);
  for (size_t at = 0; at < dim * bytes; at += 64) look(keys + offset * dim * bytes + at);
}

void copy_tokens(const PoolView &pool, const TokenCopies &copies, const float *const *rotations, int layer,
                 int kvHead) {
  for (int i = 0; i < copies.count; i++) {
    const int source = copies.sourceSlots[i], target = copies.targetSlots[i];
    if (i + 1 < copies.count) look_at(pool, layer, kvHead, copies.sourceSlots[i + 1]);
    const float *rotation = spg::rotates(pool, layer) && copies.deltas[i] != 0 ? rotations[i] : nullptr;
    const unsigned char *from = spg::head_data(pool, layer, source / pool.blockTokens, kvHead);
    unsigned char *to = spg::head_data(pool, layer, target / pool.blockTokens, kvHead);
    const int fromOffset = source % pool.blockTokens, toOffset = target % pool.blockTokens;
    if (spg::is_mx8(pool)) {
      copy_mx8(pool, from, fromOffset, rotation, to, toOffset);
    } else if (!rotation) {
      if (source == target) continue;
      pool.elementBytes == 4 ? copy_plain<float>(pool, from, fromOffset, to, toOffset)
                             : copy_plain<Half>(pool, from, fromOffset, to, toOffset);
    } else if (pool.elementBytes == 4) {
      copy_head<float>(pool, from, fromOffset, rotation, to, toOffset);
    } else {
      copy_head<Half>(pool, from, fromOffset, rotation, to, toOffset);
    }
  }
}

/* Squared distance of one head's k (rotated) and v from what the slot holds. */
template <class T>
float head_deviation(const PoolView &pool, const float *k, const float *v, const unsigned char *head, int offset) {
  const T *keys = reinterpret_cast<const T *>(head) + offset;
  const T *values = reinterpret_cast<const T *>(head) + static_cast<size_t>(pool.headDim) * (pool.blockTokens + offset);
  float sum = 0;
  for (int d = 0; d < pool.headDim; d++) {
    const float inKey = k[d] - to_float(keys[static_cast<size_t>(d) * pool.blockTokens]);
    const float inValue = v[d] - to_float(values[d]);
    sum = __builtin_fmaf(inKey, inKey, sum);
    sum = __builtin_fmaf(inValue, inValue, sum);
  }
  return sum;
}

void deviate_rows(const PoolView &pool, const StepView &step, const LayerCall &call, int firstRow, int endRow) {
  float rotated[spg::kMaxHeadDim];
  for (int row = firstRow; row < endRow; row++) {
    float sum = 0;
    const int block = step.slots[row] / pool.blockTokens, offset = step.slots[row] % pool.blockTokens;
    for (int kvHead = 0; kvHead < pool.kvHeads; kvHead++) {
      const float *k = call.qkv + row * call.qkvStride + static_cast<size_t>(pool.queryHeads + kvHead) * pool.headDim;
      const float *v = k + static_cast<size_t>(pool.kvHeads) * pool.headDim;
      scale_head(k, call.kNorm, pool.headDim, pool.normEps, 1.0f, rotated);
      rotate_head(pool, rotated, rope_row(pool, call.layer, step.positions[row]), rotated);
      const unsigned char *head = spg::head_data(pool, call.layer, block, kvHead);
      sum += pool.elementBytes == 4 ? head_deviation<float>(pool, rotated, v, head, offset)
                                    : head_deviation<Half>(pool, rotated, v, head, offset);
    }
    call.out[row] = sum;
  }
}

}

#endif
