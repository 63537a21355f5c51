/* What products and attention share of AMX: this thread's tiles, and float32 numbers as sums of bfloat16 numbers. */
#ifndef SPANGATE_KERNELS_TILES_H
#define SPANGATE_KERNELS_TILES_H

#if defined(__AMX_TILE__)

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vector.h"

namespace {

/*
 * Tiles 0 to 3 sum up, 4 and 5 are rows, 6 and 7 what they are multiplied by. Of two panels of rows the second has tiles
 * 2, 3 and 5.
 */
struct TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t rowBytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

/* This thread's tiles, from its first `shape` on while it lives. */
class Tiles {
 public:
  Tiles() = default;
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles &) = delete;
  Tiles &operator=(const Tiles &) = delete;

  /* For so many rows, up to 32. */
  void shape(int count) {
    if (count == shaped_) return;
    shaped_ = count;
    const int first = count < 16 ? count : 16, second = count > 16 ? count - 16 : count;
    const int rows[8] = {first, first, second, second, first, second, 16, 16};
    TileShapes shapes;
    for (int i = 0; i < 8; i++) shapes.rows[i] = static_cast<uint8_t>(rows[i]);
    asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
  }

 private:
  int shaped_ = 0;
};

/* The first bfloat16 number of each of 32, then those of what is left. */
inline void split(Vec low, Vec high, int parts, size_t partBytes, unsigned char *out) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int part = 0; part < parts; part++, out += partBytes) {
    __m512i both;
    const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
    memcpy(&both, &rounded, sizeof both);
    _mm512_storeu_si512(out, both);
    if (part + 1 == parts) return;
    const __m512i first = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(both)), 16);
    const __m512i second = _mm512_and_si512(
        upper, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1)), 16));
    low = sub(low, _mm512_castsi512_ps(first));
    high = sub(high, _mm512_castsi512_ps(second));
  }
}

}

#endif
#endif
