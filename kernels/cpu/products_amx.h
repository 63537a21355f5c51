/*
 * Products by AMX. An instruction multiplies 16 rows by 16 outputs; two panels of rows and a pair share their loads. A
 * block of pairs stays in the second cache while all rows of a task pass by, 32 at a time.
 */
#ifndef SPANGATE_KERNELS_PRODUCTS_AMX_H
#define SPANGATE_KERNELS_PRODUCTS_AMX_H

#if defined(__AMX_TILE__)

#include <immintrin.h>

#include "products_waiting.h"
#include "tiles.h"

namespace {

/*
 * How far ahead weights are fetched into the first cache when one panel of rows reads them but once. What two panels
 * read comes fast enough by itself: fetching it only takes time (measured on an Intel Xeon with AMX; 8 and 16 KiB ahead
 * are 3 and 6 % slower, fetching into the second cache alone 12 %).
 */
constexpr int kAheadBytes = 4096;
/*
 * Bytes of two panels of rows that stay in the first cache while the weights of a block pass by: a stretch of inputs.
 * The weights pass by without a place of their own there, so the rows may fill two thirds of it (measured there: 16 KiB
 * are a tenth slower, and so is keeping the weights, or all inputs at once).
 */
constexpr int kStretchBytes = 32 * 1024;
/*
 * Pairs of a block: their weights stay in the second cache while all rows of a task pass by, the sums in the first (one
 * pair is up to a fifth slower there, three and four 3 to 8 %, eight a tenth).
 */
constexpr int kMostPairs = 2;

/* A step is a tile of each panel of a pair. */
constexpr int kStepBytes = 2 * spg::kTileBytes;

inline void fetch_step(const unsigned char *weights) {
#pragma GCC unroll 32
  for (int i = 0; i < kStepBytes; i += 64) __builtin_prefetch(weights + kAheadBytes + i, 0, 3);
}

/* Weights of a step. Those that two panels of rows read are gone from the first cache before they are read again. */
template <bool kTwo>
inline void load_weights(const unsigned char *weights) {
  if (kTwo) {
    _tile_stream_loadd(6, weights, 64);
    _tile_stream_loadd(7, weights + spg::kTileBytes, 64);
  } else {
    _tile_loadd(6, weights, 64);
    _tile_loadd(7, weights + spg::kTileBytes, 64);
    fetch_step(weights);
  }
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

/* sums: [32][32]. Not inlined, and neither is multiply_int8: beside its caller's, what each step needs leaves registers. */
template <bool kTwo, bool kGates>
[[gnu::noinline]] void multiply_b16(const MatrixView &matrix, const RowTiles &rows, int rowParts, const Stretch &stretch,
                                    const unsigned char *weights, Meanwhile &meanwhile, float *sums) {
  load_sums<kTwo>(stretch, sums);
  for (int tile = stretch.from; tile < stretch.end; tile++) {
    const size_t at = static_cast<size_t>(tile) * rowParts * spg::kTileBytes;
    for (int part = 0; part < matrix.parts; part++, weights += kStepBytes) {
      load_weights<kTwo>(weights);
      if (kTwo) meanwhile.next.fetch();
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
      if (kGates) meanwhile.gates.finish_some();
    }
  }
  store_sums<kTwo>(sums);
}

struct Int8Scales {
  /* [group][16] of each row panel; [group][32]. */
  const float *first, *second, *weights;
};

template <bool kTwo>
[[gnu::noinline]] void multiply_int8(const MatrixView &matrix, const RowTiles &rows, const Int8Scales &scales,
                                     const Stretch &stretch, const unsigned char *weights, Meanwhile &meanwhile,
                                     float *sums) {
  WaitingGroup &waiting = meanwhile.group;
  int tile = spg::group_start(matrix, stretch.from);
  for (int group = stretch.from; group < stretch.end; group++) {
    const int end = spg::group_start(matrix, group + 1);
    load_sums<kTwo>({0, 0}, nullptr);
    for (; tile < end; tile++, weights += kStepBytes) {
      const size_t at = static_cast<size_t>(tile) * spg::kTileBytes;
      _tile_loadd(4, rows.first + at, 64);
      load_weights<kTwo>(weights);
      if (kTwo) meanwhile.next.fetch();
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      if (kTwo) _tile_loadd(5, rows.second + at, 64);
      if (kTwo) _tile_dpbssd(2, 5, 6);
      if (kTwo) _tile_dpbssd(3, 5, 7);
      waiting.add();
    }
    waiting.finish();
    store_sums<kTwo>(waiting.whole());
    const float *first = scales.first + group * 16, *second = scales.second + group * 16;
    waiting.wait({first, second, scales.weights + group * spg::kPairOutputs, sums, rows.rows, group == 0});
  }
}

/* How many rows panels [panel, panel + 2) have, if there are so many before `endPanel`. */
inline int rows_of_panels(const PackedRows &packed, int panel, int endPanel) {
  const int most = panel + 1 < endPanel ? 2 * spg::kPanelRows : spg::kPanelRows;
  const int left = packed.rows - panel * spg::kPanelRows;
  return left < most ? left : most;
}

/* What is multiplied at a time: the stretch `index` of a pair. */
struct Part {
  int pair, index;
};

/* Tiles, or in int8 groups, along the inputs. */
inline int units_of(const MatrixView &matrix) {
  return matrix.form == SPG_B16 ? matrix.tiles : matrix.groups;
}

inline Stretch stretch_of(const MatrixView &matrix, const Block &block, int index) {
  const int units = units_of(matrix);
  return {units * index / block.stretches, units * (index + 1) / block.stretches};
}

/* Steps before a unit. */
inline int steps_before(const MatrixView &matrix, int unit) {
  return matrix.form == SPG_B16 ? unit * matrix.parts : spg::group_start(matrix, unit);
}

template <bool kTwo, bool kGates>
void multiply_part(const MatrixView &matrix, const PackedRows &packed, const Block &block, const Part &part,
                   Meanwhile &meanwhile, float *sums) {
  const Stretch stretch = stretch_of(matrix, block, part.index);
  const size_t before = static_cast<size_t>(steps_before(matrix, stretch.from)) * kStepBytes;
  const unsigned char *weights = spg::pair_data(matrix, part.pair) + before;
  const unsigned char *first = packed.data + block.panel * packed.panelBytes;
  const RowTiles rows{first, first + packed.panelBytes, block.rows};
  if (matrix.form == SPG_B16) {
    return multiply_b16<kTwo, kGates>(matrix, rows, packed.parts, stretch, weights, meanwhile, sums);
  }
  const size_t panelScales = static_cast<size_t>(matrix.groups) * spg::kPanelRows;
  const float *rowScales = packed.scales + block.panel * panelScales;
  const float *weightScales = matrix.scales + static_cast<size_t>(part.pair) * matrix.groups * spg::kPairOutputs;
  const Int8Scales scales{rowScales, rowScales + panelScales, weightScales};
  multiply_int8<kTwo>(matrix, rows, scales, stretch, weights, meanwhile, sums);
}

/* sums: [kMostPairs][32][32]. */
template <bool kTwo, bool kGates>
void multiply_block(const MatrixView &matrix, const PackedRows &packed, const Block &block, Meanwhile &meanwhile,
                    float *sums) {
  for (int i = 0; i < block.stretches; i++) {
    for (int pair = block.firstPair; pair < block.endPair; pair++) {
      float *own = sums + (pair - block.firstPair) * 32 * 32;
      multiply_part<kTwo, kGates>(matrix, packed, block, {pair, i}, meanwhile, own);
    }
  }
}

/* Whether sums go to where they belong as they are, or are added to what is there. */
inline bool is_plain(const MatrixView &matrix, const ProductCall &call, const Block &block) {
  return call.finish <= SPG_ADD && call.factor == 1.0f && !call.bias && !call.rowFactors &&
         block.endPair * spg::kPairOutputs <= matrix.outputs;
}

inline void finish_plain(const ProductCall &call, const Block &block, const float *sums) {
  const int numbers = (block.endPair - block.firstPair) * spg::kPairOutputs;
  for (int r = 0; r < block.rows; r++, sums += spg::kPairOutputs) {
    const float *own = sums;
    float *out = out_row(call, block.panel * spg::kPanelRows + r) + block.firstPair * spg::kPairOutputs;
    for (float *end = out + numbers; out < end; own += 32 * 32, out += spg::kPairOutputs) {
      Vec first = load(own), second = load(own + kLanes);
      if (call.finish == SPG_ADD) {
        first = add(load(out), first);
        second = add(load(out + kLanes), second);
      }
      store(out, first);
      store(out + kLanes, second);
    }
  }
}

/* Row by row, so that what lies together is written together. */
inline void finish_block(const MatrixView &matrix, const ProductCall &call, const Block &block, const float *sums) {
  if (is_plain(matrix, call, block)) return finish_plain(call, block, sums);
  for (int row = 0; row < block.rows; row++, sums += spg::kPairOutputs) {
    const float *own = sums;
    for (int pair = block.firstPair; pair < block.endPair; pair++, own += 32 * 32) {
      finish_rows(matrix, call, pair, block.panel * spg::kPanelRows + row, 1, own);
    }
  }
}

/* In so many stretches two panels of rows stay in the first cache. */
inline int stretches_of(const MatrixView &matrix, const PackedRows &packed) {
  const int units = units_of(matrix);
  const int unitBytes = 2 * spg::kTileBytes * (matrix.form == SPG_B16 ? packed.parts : spg::kGroupTiles);
  const int wanted = (units * unitBytes + kStretchBytes - 1) / kStretchBytes;
  return wanted < units ? wanted : units;
}

/* What two panels of rows fetch of the block that follows: `turn` of `turns` shares. */
inline NextWeights share_of_next(const MatrixView &matrix, const Block &block, int turn, int turns) {
  const int steps = (block.endPair - block.firstPair) * steps_before(matrix, units_of(matrix));
  const int lines = (kStepBytes / 64 + turns - 1) / turns;
  const unsigned char *next = spg::pair_data(matrix, block.endPair);
  const size_t bytes = static_cast<size_t>(steps) * kStepBytes, done = static_cast<size_t>(turn) * steps * lines * 64;
  return done < bytes ? NextWeights(next + done, lines) : NextWeights();
}

void multiply_by_tiles(const MatrixView &matrix, const PackedRows &packed, const ProductCall &call,
                       const ProductRange &range) {
  /* Of one block, and where gates wait of the one before it: what is not needed stays out of the first cache. */
  alignas(64) float sums[2][kMostPairs * 32 * 32];
  const bool gatesWait = gates_wait(matrix, call);
  Meanwhile meanwhile{{}, {}, WaitingGates(call)};
  Tiles tiles;
  /* Few rows read weights but once, so they take a pair at a time, as it lies in memory. */
  const int panels = range.endPanel - range.firstPanel;
  const int most = panels <= 2 ? 1 : kMostPairs, stretches = panels <= 2 ? 1 : stretches_of(matrix, packed);
  int blocks = 0;
  for (int pair = range.firstPair; pair < range.endPair; pair += most) {
    const int endPair = pair + most < range.endPair ? pair + most : range.endPair;
    const int steps = (endPair - pair) * steps_before(matrix, units_of(matrix));
    for (int panel = range.firstPanel; panel < range.endPanel; panel += 2) {
      const Block block{panel, rows_of_panels(packed, panel, range.endPanel), pair, endPair, stretches};
      const int turn = (panel - range.firstPanel) / 2, turns = (panels + 1) / 2;
      const bool isLast = turns == 1 || endPair == range.endPair;
      meanwhile.next = isLast ? NextWeights() : share_of_next(matrix, block, turn, turns);
      tiles.shape(block.rows);
      float *own = sums[gatesWait ? blocks++ % 2 : 0];
      if (block.rows <= spg::kPanelRows) {
        multiply_block<false, false>(matrix, packed, block, meanwhile, own);
      } else if (gatesWait) {
        multiply_block<true, true>(matrix, packed, block, meanwhile, own);
      } else {
        multiply_block<true, false>(matrix, packed, block, meanwhile, own);
      }
      if (gatesWait) {
        meanwhile.gates.wait(block, steps, own);
      } else {
        meanwhile.group.finish();
        finish_block(matrix, call, block, own);
      }
    }
  }
  meanwhile.gates.finish();
}

}

#endif
#endif
