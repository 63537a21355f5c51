/*
 * Copies of single tokens within the pool: of rows that are blended, and of what a row of sparse decoding chose.
 *
 * K stands transposed, so that a token's is spread over all cache lines of its head in a block: 4 KiB of which it has
 * 256 bytes, at 128 dimensions in float16. Copies of the same block are made together, a line of the target at a time from
 * the lines of up to four sources: a line's loads then wait for memory beside those of other blocks.
 */
#ifndef SPANGATE_KERNELS_COPIES_H
#define SPANGATE_KERNELS_COPIES_H

#include <string.h>

#include "heads.h"
#include "internal.h"
#include "micro.h"
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

#if defined(__AVX512BW__)

/* Tokens of a block whose lines hold 16 of a dimension and 16 of the next. */
constexpr int kGroupedBlockTokens = 16;

/* One token's column in the lines of two blocks. */
struct ColumnCopy {
  const unsigned char *from;
  int fromOffset, toOffset;
};

/* Copies columns of float16 K into a block, `bytes` of lines. Those of the sources that are not copied are not written. */
template <int kCount>
void copy_columns(const ColumnCopy *copies, unsigned char *to, size_t bytes) {
  __m512i columns[kCount];
  __mmask32 targets[kCount];
  const __m512i secondRow = _mm512_maskz_set1_epi16(0xffff0000u, kGroupedBlockTokens);
  for (int i = 0; i < kCount; i++) {
    columns[i] = _mm512_add_epi16(secondRow, _mm512_set1_epi16(static_cast<short>(copies[i].fromOffset)));
    targets[i] = 0x10001u << copies[i].toOffset;
  }
  for (size_t at = 0; at < bytes; at += kLineBytes) {
    __m512i line = _mm512_loadu_si512(to + at);
    for (int i = 0; i < kCount; i++) {
      const __m512i source = _mm512_loadu_si512(copies[i].from + at);
      line = _mm512_mask_permutexvar_epi16(line, targets[i], columns[i], source);
    }
    _mm512_storeu_si512(to + at, line);
  }
}

/*
 * Makes the copies from `first` on that go into one block from others, none of them rotated. Returns how many; 0: the
 * first is none of these, or the pool's blocks are not of this form.
 */
int copy_group(const PoolView &pool, const TokenCopies &copies, bool rotates, int first, int layer, int kvHead) {
  const size_t keyBytes = static_cast<size_t>(pool.headDim) * kGroupedBlockTokens * sizeof(Half);
  if (pool.elementBytes != sizeof(Half) || pool.blockTokens != kGroupedBlockTokens || keyBytes % kLineBytes) return 0;
  ColumnCopy columns[kGroupedBlockTokens];
  const int block = copies.targetSlots[first] / kGroupedBlockTokens, dim = pool.headDim;
  int count = 0;
  for (int i = first; i < copies.count && count < kGroupedBlockTokens; i++, count++) {
    const int source = copies.sourceSlots[i], target = copies.targetSlots[i];
    const int sourceBlock = source / kGroupedBlockTokens;
    if (target / kGroupedBlockTokens != block || sourceBlock == block || (rotates && copies.deltas[i] != 0)) break;
    const unsigned char *from = spg::head_data(pool, layer, sourceBlock, kvHead);
    columns[count] = {from, source % kGroupedBlockTokens, target % kGroupedBlockTokens};
    /* Its V comes while columns are copied. */
    const unsigned char *values = from + keyBytes + columns[count].fromOffset * dim * sizeof(Half);
    for (size_t at = 0; at < dim * sizeof(Half); at += kLineBytes) {
      _mm_prefetch(reinterpret_cast<const char *>(values + at), _MM_HINT_T0);
    }
  }
  unsigned char *to = spg::head_data(pool, layer, block, kvHead);
  for (int i = 0; i < count;) {
    const int left = count - i, together = left < 4 ? left : 4;
    switch (together) {
      case 1: copy_columns<1>(columns + i, to, keyBytes); break;
      case 2: copy_columns<2>(columns + i, to, keyBytes); break;
      case 3: copy_columns<3>(columns + i, to, keyBytes); break;
      default: copy_columns<4>(columns + i, to, keyBytes);
    }
    i += together;
  }
  for (int i = 0; i < count; i++) {
    const Half *values = reinterpret_cast<const Half *>(columns[i].from + keyBytes) + columns[i].fromOffset * dim;
    memcpy(reinterpret_cast<Half *>(to + keyBytes) + columns[i].toOffset * dim, values, dim * sizeof(Half));
  }
  return count;
}

#else

int copy_group(const PoolView &, const TokenCopies &, bool, int, int, int) {
  return 0;
}

#endif

void copy_tokens(const PoolView &pool, const TokenCopies &copies, const float *const *rotations, int layer,
                 int kvHead) {
  for (int i = 0; i < copies.count; i++) {
    if (const int count = copy_group(pool, copies, spg::rotates(pool, layer), i, layer, kvHead)) {
      i += count - 1;
      continue;
    }
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

}

#endif
