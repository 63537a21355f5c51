/* What blending needs: copying single tokens within the pool, and measuring how far stored KV is from the exact KV. */
#ifndef SPANGATE_KERNELS_BLEND_H
#define SPANGATE_KERNELS_BLEND_H

#include <string.h>

#include "heads.h"
#include "internal.h"
#include "vector.h"

namespace {

using spg::TokenCopies;

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

void copy_tokens(const PoolView &pool, const TokenCopies &copies, const float *const *rotations, int layer,
                 int kvHead) {
  for (int i = 0; i < copies.count; i++) {
    const int source = copies.sourceSlots[i], target = copies.targetSlots[i];
    const float *rotation = spg::rotates(pool, layer) ? rotations[i] : nullptr;
    const unsigned char *from = spg::head_data(pool, layer, source / pool.blockTokens, kvHead);
    unsigned char *to = spg::head_data(pool, layer, target / pool.blockTokens, kvHead);
    const int fromOffset = source % pool.blockTokens, toOffset = target % pool.blockTokens;
    if (pool.elementBytes == 4) {
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
