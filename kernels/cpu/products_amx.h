/*
 * Products by AMX. An instruction multiplies 16 rows by 16 outputs; two panels of rows and a pair share their loads. A
 * block of pairs stays in the second cache while all rows of a task pass by, 32 at a time.
 *
 * The order of instructions is what it is because loads and stores of tiles share buffers with all others. Sums of four
 * tiles that are stored at once wait for AMX and hold up the loads behind them: a fifth of the time of int8's steps,
 * from the first cache, on an Intel Xeon with AMX. So each is stored when its tile is about to be multiplied for the next
 * sums, which takes a hundredth there; and what the next step needs is loaded as soon as this one is done with the tile.
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
 * are 1 to 4 % slower for 1,024 inputs and 5 % faster for 3,072; keeping the weights is slower, and so are all inputs).
 */
constexpr int kStretchBytes = 32 * 1024;
/*
 * Pairs of a block: their weights stay in the second cache while all rows of a task pass by (two are 2 to 7 % slower
 * there, and eight 1 to 4 %).
 */
constexpr int kMostPairs = 4;

/* A step is a tile of each panel of a pair. */
constexpr int kStepBytes = 2 * spg::kTileBytes;
/* Bytes of two panels of rows that a group of int8 has at most. */
constexpr int kGroupBytes = 2 * spg::kGroupTiles * spg::kTileBytes;
static_assert(kStretchBytes <= kMostGroups * kGroupBytes);

inline void fetch_step(const unsigned char *weights) {
#pragma GCC unroll 32
  for (int i = 0; i < kStepBytes; i += 64) __builtin_prefetch(weights + kAheadBytes + i, 0, 3);
}

/* Tiles, or in int8 groups, [from, end) along the inputs. */
struct Stretch {
  int from, end;
};

/*
 * Where tiles 0 to 3 store what they hold before they take up new sums, or null; and what those begin with, or null for
 * zero. Both are [32][32].
 */
struct Exchange {
  float *to;
  const float *begin;
};

/* A tile's number is part of the name of a register, so these cannot be functions. */
#define SPG_EXCHANGE(tile, exchange)                                                            \
  do {                                                                                          \
    constexpr int at = tile / 2 * spg::kPanelRows * spg::kPairOutputs + tile % 2 * 16;          \
    if (exchange.to) _tile_stored(tile, exchange.to + at, spg::kPairOutputs * sizeof(float));   \
    if (exchange.begin) {                                                                       \
      _tile_loadd(tile, exchange.begin + at, spg::kPairOutputs * sizeof(float));                \
    } else {                                                                                    \
      _tile_zero(tile);                                                                         \
    }                                                                                           \
  } while (false)
#define SPG_MULTIPLY(sums, rows, weights)                                                       \
  do {                                                                                          \
    if constexpr (kForm == SPG_INT8) {                                                          \
      _tile_dpbssd(sums, rows, weights);                                                        \
    } else {                                                                                    \
      _tile_dpbf16ps(sums, rows, weights);                                                      \
    }                                                                                           \
  } while (false)

/* What is loaded for the next step; null: tiles stay as they are. */
struct Ahead {
  const unsigned char *rows, *weights;
};

/*
 * Two panels of rows: those of the first and the weights are loaded. Weights are gone from the first cache before they
 * are read again, so they are loaded as what is not kept. kExchanges: the tiles take up new sums.
 */
template <int kForm, bool kExchanges>
inline void multiply_two(const unsigned char *second, const Ahead &ahead, const Exchange &exchange) {
  _tile_loadd(5, second, 64);
  if constexpr (kExchanges) SPG_EXCHANGE(0, exchange);
  SPG_MULTIPLY(0, 4, 6);
  if constexpr (kExchanges) SPG_EXCHANGE(1, exchange);
  SPG_MULTIPLY(1, 4, 7);
  if (ahead.rows) _tile_loadd(4, ahead.rows, 64);
  if constexpr (kExchanges) SPG_EXCHANGE(2, exchange);
  SPG_MULTIPLY(2, 5, 6);
  if (ahead.weights) _tile_stream_loadd(6, ahead.weights, 64);
  if constexpr (kExchanges) SPG_EXCHANGE(3, exchange);
  SPG_MULTIPLY(3, 5, 7);
  if (ahead.weights) _tile_stream_loadd(7, ahead.weights + spg::kTileBytes, 64);
}

/* One panel of rows. weights: null where they are loaded. */
template <int kForm, bool kExchanges>
inline void multiply_one(const unsigned char *rows, const unsigned char *weights, const Exchange &exchange) {
  _tile_loadd(4, rows, 64);
  if (weights) {
    _tile_loadd(6, weights, 64);
    _tile_loadd(7, weights + spg::kTileBytes, 64);
    fetch_step(weights);
  }
  if constexpr (kExchanges) SPG_EXCHANGE(0, exchange);
  SPG_MULTIPLY(0, 4, 6);
  if constexpr (kExchanges) SPG_EXCHANGE(1, exchange);
  SPG_MULTIPLY(1, 4, 7);
}

/* Two panels of rows, or one, by a block of pairs, in stretches along the inputs. */
struct Block {
  int panel, rows, firstPair, endPair, stretches;
};

/* A stretch of one pair. */
struct Part {
  Stretch stretch;
  int panel, pair;
  const unsigned char *weights;
  /* [32][32]: sums from stretch to stretch. */
  float *sums;
};

/* Tiles, or in int8 groups, along the inputs. */
inline int units_of(const MatrixView &matrix) {
  return matrix.form == SPG_B16 ? matrix.tiles : matrix.groups;
}

/* Steps before a unit. */
inline int steps_before(const MatrixView &matrix, int unit) {
  return matrix.form == SPG_B16 ? unit * matrix.parts : spg::group_start(matrix, unit);
}

/*
 * In so many stretches two panels of rows stay in the first cache. Few rows read weights but once, as they lie in memory,
 * and have one, in int8 one for as many groups as may be stored.
 */
inline int stretches_of(const MatrixView &matrix, const PackedRows &packed, bool few) {
  const int units = units_of(matrix);
  if (few && matrix.form == SPG_B16) return 1;
  const int unitBytes = matrix.form == SPG_B16 ? 2 * spg::kTileBytes * packed.parts : kGroupBytes;
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

/* The product of one task, block by block. The last sums of a block are stored and taken while the next is multiplied. */
class TileProduct {
 public:
  TileProduct(const MatrixView &matrix, const PackedRows &packed, const ProductCall &call)
      : matrix_(matrix), packed_(packed), waiting_(matrix, call) {}
  ~TileProduct() { finish(); }
  TileProduct(const TileProduct &) = delete;
  TileProduct &operator=(const TileProduct &) = delete;

  void multiply(const Block &block, const NextWeights &next) {
    if (block.rows != rows_) finish();
    rows_ = block.rows;
    tiles_.shape(block.rows);
    next_ = next;
    const int units = units_of(matrix_);
    for (int i = 0; i < block.stretches; i++) {
      const Stretch stretch{units * i / block.stretches, units * (i + 1) / block.stretches};
      const size_t before = static_cast<size_t>(steps_before(matrix_, stretch.from)) * kStepBytes;
      for (int pair = block.firstPair; pair < block.endPair; pair++) {
        const Part part{stretch, block.panel, pair, spg::pair_data(matrix_, pair) + before, sums_[pair - block.firstPair]};
        block.rows > spg::kPanelRows ? multiply_part<true>(part) : multiply_part<false>(part);
      }
    }
  }

 private:
  template <bool kTwo>
  void multiply_part(const Part &part) {
    matrix_.form == SPG_INT8 ? multiply_int8<kTwo>(part) : multiply_b16<kTwo>(part);
  }

  /* Not inlined: beside their callers', what each step needs leaves registers. */
  template <bool kTwo>
  [[gnu::noinline]] void multiply_b16(const Part &part);
  template <bool kTwo>
  [[gnu::noinline]] void multiply_int8(const Part &part);

  const unsigned char *rows_of(int panel) const { return packed_.data + panel * packed_.panelBytes; }

  /* Loads what multiply_two expects of its first step. */
  void begin(const unsigned char *rows, const unsigned char *weights) {
    _tile_loadd(4, rows, 64);
    _tile_stream_loadd(6, weights, 64);
    _tile_stream_loadd(7, weights + spg::kTileBytes, 64);
  }

  void finish() {
    if (!held_) return;
    const Exchange last{held_, nullptr};
    SPG_EXCHANGE(0, last);
    SPG_EXCHANGE(1, last);
    if (rows_ > spg::kPanelRows) {
      SPG_EXCHANGE(2, last);
      SPG_EXCHANGE(3, last);
    }
    held_ = nullptr;
    waiting_.finish();
  }

  alignas(64) float sums_[kMostPairs][2 * spg::kPanelRows * spg::kPairOutputs];
  const MatrixView &matrix_;
  const PackedRows &packed_;
  NextWeights next_;
  WaitingSums waiting_;
  Tiles tiles_;
  /* Rows of the block that is multiplied; where the sums go that the tiles hold, null for none. */
  int rows_ = 0;
  float *held_ = nullptr;
};

template <bool kTwo>
void TileProduct::multiply_b16(const Part &part) {
  constexpr int kForm = SPG_B16;
  const int rowParts = packed_.parts, parts = matrix_.parts;
  const size_t tileBytes = static_cast<size_t>(rowParts) * spg::kTileBytes;
  const unsigned char *rows = rows_of(part.panel) + part.stretch.from * tileBytes, *weights = part.weights;
  const unsigned char *lastRows = rows + (part.stretch.end - part.stretch.from - 1) * tileBytes;
  const Exchange exchange{held_, part.stretch.from > 0 ? part.sums : nullptr};
  const int steps = (part.stretch.end - part.stretch.from) * parts, perStep = (rows_ + steps - 1) / steps;
  bool isFirst = true;
  if (kTwo) begin(rows, weights);
  for (; rows <= lastRows; rows += tileBytes) {
    for (int ofWeight = 0; ofWeight < parts; ofWeight++, weights += kStepBytes) {
      if (kTwo) next_.fetch();
      /* A product of the parts i and j is as small as one of the parts 0 and i + j. */
      for (int i = 0; i + ofWeight < rowParts; i++, isFirst = false) {
        const unsigned char *own = rows + i * spg::kTileBytes;
        if constexpr (kTwo) {
          const bool sameWeights = i + 1 + ofWeight < rowParts, sameRows = ofWeight + 1 < parts;
          const unsigned char *next = sameWeights ? own + spg::kTileBytes : sameRows ? rows : rows + tileBytes;
          const bool isEnd = !sameWeights && next > lastRows;
          const Ahead ahead{isEnd ? nullptr : next, isEnd || sameWeights ? nullptr : weights + kStepBytes};
          const unsigned char *second = own + packed_.panelBytes;
          isFirst ? multiply_two<kForm, true>(second, ahead, exchange) : multiply_two<kForm, false>(second, ahead, exchange);
        } else if (isFirst) {
          multiply_one<kForm, true>(own, weights, exchange);
        } else {
          multiply_one<kForm, false>(own, i == 0 ? weights : nullptr, exchange);
        }
      }
      waiting_.take(perStep);
    }
  }
  waiting_.finish();
  held_ = part.sums;
  if (part.stretch.end < matrix_.tiles) return;
  held_ = waiting_.stored(0);
  waiting_.wait({part.pair, part.panel * spg::kPanelRows, rows_, {}, 0, nullptr, true, true});
}

template <bool kTwo>
void TileProduct::multiply_int8(const Part &part) {
  constexpr int kForm = SPG_INT8;
  const auto [from, end] = part.stretch;
  const int firstTile = spg::group_start(matrix_, from), endTile = spg::group_start(matrix_, end);
  const unsigned char *rows = rows_of(part.panel) + static_cast<size_t>(firstTile) * spg::kTileBytes;
  const unsigned char *weights = part.weights, *lastWeights = weights + (endTile - firstTile - 1) * kStepBytes;
  if (kTwo) begin(rows, weights);
  for (int group = from; group < end; group++) {
    const Exchange exchange{held_, nullptr};
    const int tiles = spg::group_start(matrix_, group + 1) - spg::group_start(matrix_, group);
    for (int tile = 0; tile < tiles; tile++, rows += spg::kTileBytes, weights += kStepBytes) {
      const bool isFirst = tile == 0;
      if constexpr (kTwo) {
        next_.fetch();
        const bool isEnd = weights == lastWeights;
        const Ahead ahead{isEnd ? nullptr : rows + spg::kTileBytes, isEnd ? nullptr : weights + kStepBytes};
        const unsigned char *second = rows + packed_.panelBytes;
        isFirst ? multiply_two<kForm, true>(second, ahead, exchange) : multiply_two<kForm, false>(second, ahead, exchange);
      } else {
        isFirst ? multiply_one<kForm, true>(rows, weights, exchange) : multiply_one<kForm, false>(rows, weights, exchange);
      }
      /* All at once: between the steps of many groups there is no room for it. */
      waiting_.finish();
    }
    held_ = waiting_.stored(group - from);
  }
  const size_t panelScales = static_cast<size_t>(matrix_.groups) * spg::kPanelRows;
  const float *rowScales = packed_.scales + part.panel * panelScales + from * spg::kPanelRows;
  const size_t before = static_cast<size_t>(part.pair) * matrix_.groups + from;
  const GroupScales scales{rowScales, rowScales + panelScales, matrix_.scales + before * spg::kPairOutputs};
  const bool isLast = end == matrix_.groups;
  waiting_.wait({part.pair, part.panel * spg::kPanelRows, rows_, scales, end - from, part.sums, from == 0, isLast});
}

#undef SPG_EXCHANGE
#undef SPG_MULTIPLY

/* How many rows panels [panel, panel + 2) have, if there are so many before `endPanel`. */
inline int rows_of_panels(const PackedRows &packed, int panel, int endPanel) {
  const int most = panel + 1 < endPanel ? 2 * spg::kPanelRows : spg::kPanelRows;
  const int left = packed.rows - panel * spg::kPanelRows;
  return left < most ? left : most;
}

void multiply_by_tiles(const MatrixView &matrix, const PackedRows &packed, const ProductCall &call,
                       const ProductRange &range) {
  TileProduct product(matrix, packed, call);
  /* Few rows take a pair at a time, as it lies in memory. */
  const int panels = range.endPanel - range.firstPanel, most = panels <= 2 ? 1 : kMostPairs;
  const int stretches = stretches_of(matrix, packed, panels <= 2);
  for (int pair = range.firstPair; pair < range.endPair; pair += most) {
    const int endPair = pair + most < range.endPair ? pair + most : range.endPair;
    for (int panel = range.firstPanel; panel < range.endPanel; panel += 2) {
      const Block block{panel, rows_of_panels(packed, panel, range.endPanel), pair, endPair, stretches};
      const int turn = (panel - range.firstPanel) / 2, turns = (panels + 1) / 2;
      const bool isLast = turns == 1 || endPair == range.endPair;
      product.multiply(block, isLast ? NextWeights() : share_of_next(matrix, block, turn, turns));
    }
  }
}

}

#endif
#endif
