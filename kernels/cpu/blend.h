/* What blending asks: how far stored KV is from the exact KV. */
#ifndef SPANGATE_KERNELS_BLEND_H
#define SPANGATE_KERNELS_BLEND_H

#include <string.h>

#include "heads.h"
#include "internal.h"
#include "vector.h"

namespace {

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
