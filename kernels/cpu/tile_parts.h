/* Queries, K and V of one section as sums of two bfloat16 numbers, in the tiles that AMX multiplies. */
#ifndef SPANGATE_KERNELS_TILE_PARTS_H
#define SPANGATE_KERNELS_TILE_PARTS_H

#if defined(__AMX_TILE__)

#include "attend.h"
#include "tile_products.h"
#include "tiles.h"

namespace {

constexpr int kSectionChunks = kSectionTokens / kChunk;

inline int chunks_of(int numbers) {
  return (numbers + kChunk - 1) / kChunk;
}

/* Tiles of one section; each is followed by that of the second parts. */
struct SectionTiles {
  unsigned char *queries; /* [panel of 16 queries][chunk of dimensions] */
  unsigned char *keys;    /* [panel of 16 tokens][chunk of dimensions] */
  unsigned char *values;  /* [chunk of tokens][panel of 16 dimensions], an even number of them */
  unsigned char *weights; /* [2 panels of 16 queries][chunk of tokens] */
};

/* How much of Scratch::tiles the parts of SectionTiles take, in tiles of both parts. */
inline size_t query_tiles(const PoolView &pool) {
  return static_cast<size_t>((spg::tile_queries(pool) + kSide - 1) / kSide) * chunks_of(pool.headDim);
}
inline size_t key_tiles(const PoolView &pool) {
  return static_cast<size_t>(kSectionPanels) * chunks_of(pool.headDim);
}
inline size_t value_tiles(const PoolView &pool) {
  return static_cast<size_t>(kSectionChunks) * 2 * chunks_of(pool.headDim);
}

inline SectionTiles section_tiles(const PoolView &pool, const Scratch &scratch) {
  unsigned char *queries = reinterpret_cast<unsigned char *>(scratch.tiles);
  unsigned char *keys = queries + query_tiles(pool) * kBothParts;
  unsigned char *values = keys + key_tiles(pool) * kBothParts;
  return {queries, keys, values, values + value_tiles(pool) * kBothParts};
}

inline size_t tile_floats(const PoolView &pool) {
  const size_t tiles = query_tiles(pool) + key_tiles(pool) + value_tiles(pool) + 2 * kSectionChunks;
  return tiles * kBothParts / sizeof(float);
}

inline __m512i bits_of(Vec x) { return _mm512_castps_si512(x); }

/* Writes 32 numbers as a row of a tile: the upper half of each, and what is left of it. */
inline void put_numbers(Vec a, Vec b, unsigned char *row) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const Vec upperA = _mm512_castsi512_ps(_mm512_and_si512(bits_of(a), upper));
  const Vec upperB = _mm512_castsi512_ps(_mm512_and_si512(bits_of(b), upper));
  const __m512bh first = _mm512_cvtne2ps_pbh(upperB, upperA);
  const __m512bh rest = _mm512_cvtne2ps_pbh(sub(b, upperB), sub(a, upperA));
  memcpy(row, &first, sizeof first);
  memcpy(row + kTileBytes, &rest, sizeof rest);
}

/* Takes queries [first, first + count) of scratch.rotated apart. */
inline void pack_queries(const PoolView &pool, const Scratch &scratch, int first, int count) {
  const int chunks = chunks_of(pool.headDim);
  unsigned char *tiles = section_tiles(pool, scratch).queries;
  for (int i = first; i < first + count; i++) {
    const float *query = scratch.rotated + i * pool.headDim;
    unsigned char *row = tiles + static_cast<size_t>(i / kSide) * chunks * kBothParts + i % kSide * 64;
    for (int d = 0; d < pool.headDim; d += kChunk, row += kBothParts) {
      const int left = pool.headDim - d;
      const uint32_t has = left < kChunk ? (1u << left) - 1 : 0xffffffffu;
      split(_mm512_maskz_loadu_ps(static_cast<__mmask16>(has), query + d),
            _mm512_maskz_loadu_ps(static_cast<__mmask16>(has >> kSide), query + d + kSide), 2, kTileBytes, row);
    }
  }
}

/* mx8 has 7 bits: the first part is all of it. */
template <class T>
constexpr int kParts = sizeof(T) == sizeof(Mx8) ? 1 : 2;

/* The upper halves of a's and b's numbers, in turn. */
inline __m512i upper_halves(Vec a, Vec b) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(bits_of(a), 16), bits_of(b));
}

/* Writes the row of a tile where the numbers of a and b alternate, and the row of their second parts. */
template <class T>
inline void put_pair(Vec a, Vec b, unsigned char *row) {
  _mm512_storeu_si512(row, upper_halves(a, b));
  if (kParts<T> == 1) return;
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  Vec restA = sub(a, _mm512_castsi512_ps(_mm512_and_si512(bits_of(a), upper)));
  Vec restB = sub(b, _mm512_castsi512_ps(_mm512_and_si512(bits_of(b), upper)));
  /* What is left of float16 has 3 bits; of float32 it has 16, and is rounded. */
  if (sizeof(T) == sizeof(float)) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    restA = _mm512_castsi512_ps(_mm512_add_epi32(bits_of(restA), half));
    restB = _mm512_castsi512_ps(_mm512_add_epi32(bits_of(restB), half));
  }
  _mm512_storeu_si512(row + kTileBytes, upper_halves(restA, restB));
}

/* Taking apart calls `tick` whenever it has written so many rows of tiles: then what is read later is fetched. */
constexpr int kTickRows = 4;

/* Takes panel p of the keys apart: a row of a tile is two dimensions of 16 tokens. */
template <class T, class Tick>
inline void pack_keys(const Panels<T> &panels, int headDim, int p, unsigned char *row, Tick tick) {
  const T *const panel[1] = {panels.keys[p]};
  KeyScales<T, 1> scales;
  for (int d = 0; d < headDim; d += 2, row += 64) {
    if (d % kChunk == 0 && d > 0) row += kBothParts - kTileBytes;
    scales.ready(panel, 2 * headDim, d, panels.keyStride);
    const T *key = panel[0] + d * panels.keyStride;
    put_pair<T>(scales.apply(0, load(key)), scales.apply(0, load(key + panels.keyStride)), row);
    if (d / 2 % kTickRows == kTickRows - 1) tick();
  }
  for (int d = headDim; d % kChunk != 0; d += 2, row += 64) {
    _mm512_storeu_si512(row, _mm512_setzero_si512());
    _mm512_storeu_si512(row + kTileBytes, _mm512_setzero_si512());
  }
}

/*
 * Takes dimensions [dim, dim + 32) of a chunk of the values apart: a row of a tile is two tokens of 16 dimensions. Tokens
 * outside [first, end) are 0.
 */
template <class T, class Tick>
inline void pack_values(const Panels<T> &panels, int headDim, int dim, int chunk, int first, int end, unsigned char *row,
                        Tick tick) {
  const int sides = headDim - dim > kSide ? 2 : 1;
  for (int i = 0; i < kChunk; i += 2, row += 64) {
    const int t = chunk * kChunk + i, panel = t / kPanelTokens, inPanel = t % kPanelTokens;
    const bool sees = t >= first && t < end, seesNext = t + 1 >= first && t + 1 < end;
    const size_t at = static_cast<size_t>(inPanel) * headDim + dim;
    const T *value = sees || seesNext ? panels.values[panel] + at : nullptr;
    ValueScales<T> scales(panels.valueScales, panel, inPanel, dim, headDim);
    ValueScales<T> nextScales(panels.valueScales, panel, inPanel + 1, dim, headDim);
    for (int side = 0; side < sides; side++) {
      const Vec a = sees ? scales.apply(side * kSide, load(value + side * kSide)) : zero();
      const Vec b = seesNext ? nextScales.apply(side * kSide, load(value + headDim + side * kSide)) : zero();
      put_pair<T>(a, b, row + side * kBothParts);
    }
    if (i / 2 % kTickRows == kTickRows - 1) tick();
  }
}

}

#endif
#endif
