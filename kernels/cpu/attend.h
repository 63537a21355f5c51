/*
 * Attention of some rows over one section of K and V of one KV head.
 *
 * Shapes: there are rowCount * group queries; query i is row i / group, head i % group. A section is up to 256 tokens
 * in panels of 16. Scratch of one thread, in floats: see Scratch. Scores are in log2 units: q is already multiplied by
 * softmaxScale * log2(e). Oracle: reference::attend.
 */
#ifndef SPANGATE_KERNELS_ATTEND_H
#define SPANGATE_KERNELS_ATTEND_H

#include <math.h>

#include "heads.h"
#include "internal.h"
#include "micro.h"
#include "panels.h"
#include "vector.h"

namespace {

using spg::Item;
using spg::Tile;

constexpr int kScoreStride = spg::kScoreStride;

/* A partial or running softmax: maximum (log2 units), sum of 2^(score - maximum), weighted sum of V. */
struct Softmax {
  float *maximum, *sum, *values;
};

struct Scratch {
  float *bare, *rotated;   /* [queries][headDim]: q normalised and scaled, and the same rotated */
  float *scores;          /* [queries][kScoreStride]: scores, then weights */
  Softmax section, running; /* [queries], [queries], [queries][paddedDim] */
  float *keys, *values;   /* [panel][headDim][16] and [panel][16][headDim]: staged section */
  float *tiles;           /* what attend_tiles.h keeps of a section */
};

Scratch lay_out(const PoolView &pool, float *memory) {
  const size_t queries = spg::tile_queries(pool), padded = spg::padded_dim(pool);
  Scratch s;
  auto take = [&memory](size_t floats) {
    float *start = memory;
    memory += (floats + 15) / 16 * 16;
    return start;
  };
  s.bare = take(queries * pool.headDim);
  s.rotated = take(queries * pool.headDim);
  s.scores = take(queries * kScoreStride);
  s.section = {take(queries), take(queries), take(queries * padded)};
  s.running = {take(queries), take(queries), take(queries * padded)};
  s.keys = take(static_cast<size_t>(kSectionTokens) * pool.headDim);
  s.values = take(static_cast<size_t>(kSectionTokens) * pool.headDim + 16);
  s.tiles = memory;
  return s;
}

/* The part of a section that queries of `rowCount` rows see. */
struct Window {
  int firstToken, firstPanel; /* of what any row sees */
  int endToken; /* end of what the last row sees */
  int causal;   /* 1: each row before the last sees one token fewer */
  int rowCount, group;
  /* Where rows see parts of their own: [rowCount] their positions, and of whom; else null. */
  const int32_t *positions;
  const StepView *step;
  const Section *section;
};

/* rowCount: of a tile, or of all tiles of a pack, which see all of the section. */
inline Window window_of(const PoolView &pool, const StepView &step, const Section &section, const Tile &tile,
                        int rowCount) {
  const int end = section.endToken - (section.causal ? tile.rowsAfter : 0);
  const int first = spg::first_token_seen(step, section, tile.leastPosition);
  const bool parts = spg::first_token_seen(step, section, tile.greatestPosition) > section.firstToken;
  const int32_t *positions = parts ? step.positions + tile.firstRow : nullptr;
  return {first, first / kPanelTokens, end, section.causal, rowCount, pool.group, positions, &step, &section};
}

/* The first token that query i sees. */
inline int query_first(const Window &window, int i) {
  if (!window.positions) return window.firstToken;
  return spg::first_token_seen(*window.step, *window.section, window.positions[i / window.group]);
}

/* The end of the tokens that query i sees. */
inline int query_end(const Window &window, int i) {
  const int end = window.endToken - (window.causal ? window.rowCount - 1 - i / window.group : 0);
  return end < kSectionTokens ? end : kSectionTokens;
}

inline int query_count(const Window &window) {
  return window.rowCount * window.group;
}

inline int end_panel(const Window &window) {
  return panels_of(query_end(window, query_count(window) - 1));
}

/* Converts `count` elements to float32. */
template <class T>
inline void widen(const T *from, size_t count, float *to) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; i++) to[i] = to_float(from[i]);
}

/*
 * Copies a section into float32 panels: needed for blocks below 16 tokens, and faster for float16 and mx8 that many
 * queries share.
 */
template <class T>
void stage(const PoolView &pool, const StepView &step, const Section &section, int layer, int kvHead, int endToken,
           const Scratch &scratch, Panels<float> &panels) {
  const int run = pool.blockTokens < kPanelTokens ? pool.blockTokens : kPanelTokens;
  panels.keyStride = kPanelTokens;
  for (int token = 0; token < endToken; token += run) {
    const int panel = token / kPanelTokens, column = token % kPanelTokens, inBlock = token % pool.blockTokens;
    const int block = step.blockIds[section.blockStart + token / pool.blockTokens];
    const T *head = reinterpret_cast<const T *>(spg::head_data(pool, layer, block, kvHead));
    float *keys = scratch.keys + static_cast<size_t>(panel) * pool.headDim * kPanelTokens;
    float *values = scratch.values + static_cast<size_t>(panel) * pool.headDim * kPanelTokens;
    panels.keys[panel] = keys;
    panels.values[panel] = values;
    values += static_cast<size_t>(column) * pool.headDim;
    if constexpr (sizeof(T) == sizeof(Mx8)) {
      decode_keys(pool, head, inBlock, run, keys + column);
      decode_values(pool, head, inBlock, run, values);
    } else {
      for (int d = 0; d < pool.headDim; d++) {
        widen(head + static_cast<size_t>(d) * pool.blockTokens + inBlock, run, keys + d * kPanelTokens + column);
      }
      widen(head + static_cast<size_t>(pool.headDim) * (pool.blockTokens + inBlock),
            static_cast<size_t>(run) * pool.headDim, values);
    }
  }
}

/* Scores, in log2 units, none of which is beyond the cap then. */
inline void cap_scores(float *start, float *stop, float cap) {
  const Vec size = broadcast(cap * 1.44269504088896340736f), inverse = broadcast(0.69314718055994530942f / cap);
  for (float *s = start; s < stop; s += kLanes) store(s, mul(size, tanh_of(mul(load(s), inverse))));
}

/* Turns one query's scores over [firstPanel, endPanel) into weights; tokens outside [first, end) weigh 0. */
inline void soften(float *scores, int firstPanel, int endPanel, int first, int end, float *maximum, float *sum) {
  float *start = scores + firstPanel * kPanelTokens, *stop = scores + endPanel * kPanelTokens;
  if (end <= first) {
    for (float *s = start; s < stop; s++) *s = 0;
    return;
  }
  for (float *s = start; s < scores + first; s++) *s = -INFINITY;
  for (float *s = scores + end; s < stop; s++) *s = -INFINITY;
  Vec greatest = load(start);
  for (const float *s = start + kLanes; s < stop; s += kLanes) greatest = max(greatest, load(s));
  const float top = reduce<true>(greatest);
  *maximum = top;
  Vec total = zero();
  for (float *s = start; s < stop; s += kLanes) {
    const Vec weight = exp2_nonpositive(sub(load(s), broadcast(top)));
    total = add(total, weight);
    store(s, weight);
  }
  *sum = reduce<false>(total);
}

/*
 * Writes scores, softmax and weighted values of one section into scratch.section. Micro panels of queries read it one
 * after the other. With kStages the first leaves `panels` as float32 for the others, none of which sees more tokens
 * than it does.
 */
template <class How, class T>
void attend_section(const PoolView &pool, const Window &window, const Panels<T> &panels, const Scratch &scratch) {
  typedef Reading<How::kAhead, How::kAlternates, false> Plain;
  const int queries = query_count(window), endPanel = end_panel(window), padded = spg::padded_dim(pool);
  const int micros = (queries + kMicroQueries - 1) / kMicroQueries;
  const float *stagedKeys[kSectionPanels], *stagedValues[kSectionPanels];
  for (int p = window.firstPanel; How::kStages && p < endPanel; p++) {
    stagedKeys[p] = scratch.keys + static_cast<size_t>(p) * pool.headDim * kPanelTokens;
    stagedValues[p] = scratch.values + static_cast<size_t>(p) * pool.headDim * kPanelTokens;
  }
  auto micro_rows = [&](int m) {
    const int left = queries - m * kMicroQueries;
    return left < kMicroQueries ? left : kMicroQueries;
  };
  auto micro_end = [&](int m) { return query_end(window, m * kMicroQueries + micro_rows(m) - 1); };
  auto score = [&](auto how, int m, int p, const auto &keys) {
    const int i = m * kMicroQueries, end = panels_of(micro_end(m));
    with_rows(micro_rows(m), [&](auto rows) {
      score_rows<decltype(how), rows.count>(scratch.rotated + i * pool.headDim, keys, p, end < p + 4 ? end : p + 4,
                                            scratch.scores + i * kScoreStride, kScoreStride);
    });
  };
  auto weigh = [&](auto how, int m, const auto &values) {
    const int i = m * kMicroQueries;
    with_rows(micro_rows(m), [&](auto rows) {
      value_rows<decltype(how), rows.count>(scratch.scores + i * kScoreStride, kScoreStride, values, window.firstToken,
                                            micro_end(m), padded,
                                            scratch.section.values + static_cast<size_t>(i) * padded, padded);
    });
  };
  for (int p = window.firstPanel; p < endPanel; p += 4) {
    for (int m = 0; m < micros; m++) {
      const Ahead ahead{panels.keysAhead, m, micros};
      if (m == 0 || !How::kStages) {
        score(How(), m, p, KeyPanels<T>{panels.keys, ahead, panels.keyStride, pool.headDim, scratch.keys});
      } else {
        score(Plain(), m, p, KeyPanels<float>{stagedKeys, ahead, kPanelTokens, pool.headDim, nullptr});
      }
    }
  }
  for (int m = 0; m < micros; m++) {
    const int end = micro_end(m), first = m * kMicroQueries;
    if (end <= window.firstToken) continue;
    for (int r = first; r < first + micro_rows(m); r++) {
      float *scores = scratch.scores + r * kScoreStride;
      if (pool.scoreCap > 0) {
        cap_scores(scores + window.firstPanel * kPanelTokens, scores + panels_of(end) * kPanelTokens, pool.scoreCap);
      }
      soften(scores, window.firstPanel, panels_of(end), query_first(window, r),
             query_end(window, r), scratch.section.maximum + r, scratch.section.sum + r);
    }
    const Ahead ahead{panels.valuesAhead, m, micros};
    if (m == 0 || !How::kStages) {
      weigh(How(), m, ValuePanels<T>{panels.values, panels.valueScales, ahead, pool.headDim, scratch.values});
    } else {
      weigh(Plain(), m, ValuePanels<float>{stagedValues, nullptr, ahead, pool.headDim, nullptr});
    }
  }
}

/* Merges `from`, which saw at least one token, into `into`. */
inline void merge(const Softmax &into, const Softmax &from, int paddedDim) {
  const float top = *into.maximum > *from.maximum ? *into.maximum : *from.maximum;
  const float a = exp2_nonpositive(*into.maximum - top), b = exp2_nonpositive(*from.maximum - top);
  *into.sum = __builtin_fmaf(*into.sum, a, *from.sum * b);
  for (int d = 0; d < paddedDim; d += kLanes) {
    store(into.values + d, fma(load(into.values + d), broadcast(a), mul(load(from.values + d), broadcast(b))));
  }
  *into.maximum = top;
}

inline Softmax query_at(const Softmax &all, int query, int paddedDim) {
  return {all.maximum + query, all.sum + query, all.values + static_cast<size_t>(query) * paddedDim};
}

inline void clear(const Softmax &all, int queries, int paddedDim) {
  for (int i = 0; i < queries; i++) {
    all.maximum[i] = -INFINITY;
    all.sum[i] = 0;
  }
  memset(all.values, 0, static_cast<size_t>(queries) * paddedDim * sizeof(float));
}

}

#endif
