/* Products by AMX. An instruction multiplies 16 rows by 16 outputs; two panels of rows and a pair share their loads. */
#ifndef SPANGATE_KERNELS_PRODUCTS_AMX_H
#define SPANGATE_KERNELS_PRODUCTS_AMX_H

#if defined(__AMX_TILE__)

#include <immintrin.h>

#include "products_rows.h"

namespace {

/* Tiles 0 and 1 sum up for the first panel of rows, 2 and 3 for the second; 4 and 5 are rows, 6 and 7 weights. */
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
    const int first = count < 16 ? count : 16, second = count > 16 ? count - 16 : 1;
    const int rows[8] = {first, first, second, second, first, second, 16, 16};
    TileShapes shapes;
    for (int i = 0; i < 8; i++) shapes.rows[i] = static_cast<uint8_t>(rows[i]);
    asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
  }

 private:
  int shaped_ = 0;
};

/*
 * How far ahead weights are fetched into the first cache when one panel of rows reads them but once. What two panels
 * read comes fast enough by itself: fetching it only takes time (measured on an Intel Xeon with AMX).
 */
constexpr int kAheadBytes = 8192;
/*
 * Bytes of a pair's weights that stay in the first cache, beside as many of rows, while all rows of a task pass by
 * (measured there: 8 KiB, 16 KiB and 32 KiB give 60, 75 and 62 % of AMX's peak).
 */
constexpr int kStretchBytes = 16 * 1024;
/* Panels of rows whose sums are kept from one stretch to the next. */
constexpr int kMostPanels = 16;

inline void fetch_ahead(const unsigned char *weights) {
#pragma GCC unroll 32
  for (int i = 0; i < 2 * spg::kTileBytes; i += 64) __builtin_prefetch(weights + kAheadBytes + i, 0, 3);
}

/* One or two panels of 16 rows. */
struct RowTiles {
  const unsigned char *first, *second;
  int rows;
};

/* Tiles, or in int8 groups, [from, end) along the inputs. Only the first stretch begins with sums of zero. */
struct Stretch {
  int from, end;
};

template <bool kTwo>
inline void load_sums(const Stretch &stretch, const float *sums) {
  if (stretch.from > 0) {
    _tile_loadd(0, sums, 128);
    _tile_loadd(1, sums + 16, 128);
    if (kTwo) _tile_loadd(2, sums + 16 * 32, 128);
    if (kTwo) _tile_loadd(3, sums + 16 * 32 + 16, 128);
    return;
  }
  _tile_zero(0);
  _tile_zero(1);
  if (kTwo) _tile_zero(2);
  if (kTwo) _tile_zero(3);
}

template <bool kTwo>
inline void store_sums(void *to) {
  float *sums = static_cast<float *>(to);
  _tile_stored(0, sums, 128);
  _tile_stored(1, sums + 16, 128);
  if (kTwo) _tile_stored(2, sums + 16 * 32, 128);
  if (kTwo) _tile_stored(3, sums + 16 * 32 + 16, 128);
}

/* weights: the pair's; sums: [32][32]. */
template <bool kTwo>
void multiply_b16(const MatrixView &matrix, const RowTiles &rows, int rowParts, const Stretch &stretch,
                  const unsigned char *weights, float *sums) {
  load_sums<kTwo>(stretch, sums);
  weights += static_cast<size_t>(stretch.from) * matrix.parts * 2 * spg::kTileBytes;
  for (int tile = stretch.from; tile < stretch.end; tile++) {
    const size_t at = static_cast<size_t>(tile) * rowParts * spg::kTileBytes;
    for (int part = 0; part < matrix.parts; part++, weights += 2 * spg::kTileBytes) {
      _tile_loadd(6, weights, 64);
      _tile_loadd(7, weights + spg::kTileBytes, 64);
      if (!kTwo) fetch_ahead(weights);
      /* A product of the parts i and j is as small as one of the parts 0 and i + j. */
      for (int i = 0; i + part < rowParts; i++) {
        const size_t from = at + i * spg::kTileBytes;
        _tile_loadd(4, rows.first + from, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (kTwo) _tile_loadd(5, rows.second + from, 64);
        if (kTwo) _tile_dpbf16ps(2, 5, 6);
        if (kTwo) _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  store_sums<kTwo>(sums);
}

/* Adds the whole numbers of a group, times both scales, to the sums of rows [from, end). */
inline void add_group(const float *rowScales, const float *weightScales, const int32_t *whole, int from, int end,
                      float *sums) {
  const Vec first = load(weightScales), second = load(weightScales + 16);
  for (int r = from; r < end; r++) {
    const Vec scale = broadcast(rowScales[r]);
    const __m512i *numbers = reinterpret_cast<const __m512i *>(whole + r * 32);
    float *sum = sums + r * 32;
    store(sum, fma(_mm512_cvtepi32_ps(numbers[0]), mul(scale, first), load(sum)));
    store(sum + 16, fma(_mm512_cvtepi32_ps(numbers[1]), mul(scale, second), load(sum + 16)));
  }
}

struct Int8Scales {
  /* [group][16] of each row panel; [group][32]. */
  const float *first, *second, *weights;
};

/* Adds rows [from, end) of group `group`; `end` may reach into the second panel. */
template <bool kTwo>
inline void add_rows(const Int8Scales &scales, int group, const int32_t *whole, int from, int end, float *sums) {
  const float *weights = scales.weights + group * spg::kPairOutputs;
  if (from < 16) add_group(scales.first + group * 16, weights, whole, from, end < 16 ? end : 16, sums);
  if (kTwo && end > 16) {
    const int start = from > 16 ? from - 16 : 0;
    add_group(scales.second + group * 16, weights, whole + 16 * 32, start, end - 16, sums + 16 * 32);
  }
}

/*
 * While AMX multiplies one group, the vector units add the numbers of the group before it to the sums: a part of the
 * rows after each step.
 */
template <bool kTwo>
void multiply_int8(const MatrixView &matrix, const RowTiles &rows, const Int8Scales &scales, const Stretch &stretch,
                   const unsigned char *weights, float *sums) {
  alignas(64) int32_t whole[32 * 32];
  int tile = spg::group_start(matrix, stretch.from);
  if (tile == 0) memset(sums, 0, 32 * 32 * sizeof(float));
  weights += static_cast<size_t>(tile) * 2 * spg::kTileBytes;
  for (int group = stretch.from; group < stretch.end; group++) {
    const int end = spg::group_start(matrix, group + 1), start = tile, steps = end - start;
    load_sums<kTwo>({0, 0}, nullptr);
    for (; tile < end; tile++, weights += 2 * spg::kTileBytes) {
      const size_t at = static_cast<size_t>(tile) * spg::kTileBytes;
      _tile_loadd(4, rows.first + at, 64);
      _tile_loadd(6, weights, 64);
      _tile_loadd(7, weights + spg::kTileBytes, 64);
      if (!kTwo) fetch_ahead(weights);
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      if (kTwo) _tile_loadd(5, rows.second + at, 64);
      if (kTwo) _tile_dpbssd(2, 5, 6);
      if (kTwo) _tile_dpbssd(3, 5, 7);
      if (group == stretch.from) continue;
      const int step = tile - start;
      add_rows<kTwo>(scales, group - 1, whole, rows.rows * step / steps, rows.rows * (step + 1) / steps, sums);
    }
    store_sums<kTwo>(whole);
  }
  add_rows<kTwo>(scales, stretch.end - 1, whole, 0, rows.rows, sums);
}

template <bool kTwo>
void multiply_tiles(const MatrixView &matrix, const PackedRows &packed, const RowTiles &rows, int panel, int pair,
                    const Stretch &stretch, float *sums) {
  const unsigned char *weights = matrix.data + pair * spg::pair_bytes(matrix);
  if (matrix.form == SPG_B16) return multiply_b16<kTwo>(matrix, rows, packed.parts, stretch, weights, sums);
  const size_t panelScales = static_cast<size_t>(matrix.groups) * spg::kPanelRows;
  const float *first = packed.scales + panel * panelScales;
  const float *weightScales = matrix.scales + static_cast<size_t>(pair) * matrix.groups * spg::kPairOutputs;
  multiply_int8<kTwo>(matrix, rows, {first, first + panelScales, weightScales}, stretch, weights, sums);
}

/* How many rows panels [panel, panel + 2) have, if there are so many before `endPanel`. */
inline int rows_of_panels(const PackedRows &packed, int panel, int endPanel) {
  const int most = panel + 1 < endPanel ? 2 * spg::kPanelRows : spg::kPanelRows;
  const int left = packed.rows - panel * spg::kPanelRows;
  return left < most ? left : most;
}

/* A pair for up to kMostPanels panels of rows; sums: [kMostPanels / 2][32][32]. */
void multiply_pair(const MatrixView &matrix, const PackedRows &packed, int firstPanel, int endPanel, int pair,
                   Tiles &tiles, float *sums) {
  const bool isB16 = matrix.form == SPG_B16;
  const int units = isB16 ? matrix.tiles : matrix.groups;
  const int unitBytes = 2 * spg::kTileBytes * (isB16 ? matrix.parts : spg::kGroupTiles);
  const int most = endPanel - firstPanel > 2 ? kStretchBytes / unitBytes : units;
  for (int from = 0; from < units; from += most) {
    const Stretch stretch{from, from + most < units ? from + most : units};
    for (int panel = firstPanel; panel < endPanel; panel += 2) {
      const unsigned char *first = packed.data + panel * packed.panelBytes;
      const RowTiles rows{first, first + packed.panelBytes, rows_of_panels(packed, panel, endPanel)};
      float *own = sums + (panel - firstPanel) / 2 * 32 * 32;
      tiles.shape(rows.rows);
      if (rows.rows > spg::kPanelRows) {
        multiply_tiles<true>(matrix, packed, rows, panel, pair, stretch, own);
      } else {
        multiply_tiles<false>(matrix, packed, rows, panel, pair, stretch, own);
      }
    }
  }
}

void multiply_by_tiles(const MatrixView &matrix, const PackedRows &packed, const ProductCall &call,
                       const ProductRange &range) {
  alignas(64) float sums[kMostPanels / 2 * 32 * 32];
  Tiles tiles;
  for (int first = range.firstPanel; first < range.endPanel; first += kMostPanels) {
    const int end = first + kMostPanels < range.endPanel ? first + kMostPanels : range.endPanel;
    for (int pair = range.firstPair; pair < range.endPair; pair++) {
      multiply_pair(matrix, packed, first, end, pair, tiles, sums);
      for (int panel = first; panel < end; panel += 2) {
        const float *own = sums + (panel - first) / 2 * 32 * 32;
        finish_rows(matrix, call, pair, panel * spg::kPanelRows, rows_of_panels(packed, panel, end), own);
      }
    }
  }
}

}

#endif
#endif
