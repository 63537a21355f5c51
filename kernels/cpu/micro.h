/*
 * The two inner products of attention as register tiles.
 *
 *   scores  S[R][16 P] = Q[R][headDim] K[headDim][16 P]     Q broadcast, K panels loaded once for R queries
 *   values  O[R][N vec] = W[R][tokens] V[tokens][N vec]     W broadcast, V rows loaded once for R queries
 *
 * R <= 6 query vectors. Every element is one chain of fused multiply-adds in ascending order from zero, whatever R, P
 * and N are; thus a row's bits do not depend on its neighbours in the tile.
 */
#ifndef SPANGATE_KERNELS_MICRO_H
#define SPANGATE_KERNELS_MICRO_H

#include <stddef.h>

#include "internal.h"
#include "mx8.h"
#include "vector.h"

namespace {

constexpr int kMicroQueries = 6;

/*
 * How panels are read. While panel p is read, Ahead::panels[p], with elements of kAhead bytes, is fetched into the
 * cache (with kAhead 0 nothing is). kAlternates: `readers` readers read the same panels; each fetches every
 * `readers`-th row of them, from row `reader` on, since all at once would wait for memory. kStages: the reader stores
 * what it reads as float32 for others.
 */
template <int aheadBytes, bool alternates, bool stages>
struct Reading {
  static constexpr int kAhead = aheadBytes;
  static constexpr bool kAlternates = alternates, kStages = stages;
};

struct Ahead {
  const char *const *panels;
  int reader, readers;
};

/* Panel p holds token t of dimension d at panels[p][d * stride + t]. */
template <class T>
struct KeyPanels {
  const T *const *panels;
  Ahead ahead;
  size_t stride;
  int headDim;
  float *staged; /* [panel][headDim][16] */
};

/* Token t of panel p begins at panels[p] + t * headDim. */
template <class T>
struct ValuePanels {
  const T *const *panels;
  /* mx8: the scales of a panel's tokens, [16][headDim / 32]. */
  const uint8_t *const *scales;
  Ahead ahead;
  int headDim;
  float *staged; /* [token][headDim] */
};

constexpr int kLineBytes = 64;

/* Fetches the cache lines of `kBytes` bytes from p on into the second-level cache (the first is too small for them). */
template <int kBytes>
inline void fetch(const char *p) {
  for (int i = 0; i < kBytes; i += kLineBytes) __builtin_prefetch(p + i, 0, 2);
}

template <class How, int R, int P, class T>
__attribute__((noinline)) void score_panels(const float *q, const KeyPanels<T> &k, int firstPanel, float *scores,
                                            size_t scoreStride) {
  constexpr int kVectors = P * kPanelVectors;
  const int headDim = k.headDim;
  const size_t stride = k.stride;
  constexpr int kRowBytes = spg::kPanelTokens * How::kAhead;
  const T *panel[P];
  const char *ahead[P];
  for (int p = 0; p < P; p++) {
    panel[p] = k.panels[firstPanel + p];
    ahead[p] = How::kAhead ? k.ahead.panels[firstPanel + p] : nullptr;
  }
  Vec sum[R][kVectors];
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < kVectors; v++) sum[r][v] = zero();
  }
  KeyScales<T, kVectors> scales;
  int wait = k.ahead.reader;
  for (int d = 0; d < headDim; d++) {
    scales.ready(panel, 2 * headDim, d, stride);
    if (How::kAhead && d * kRowBytes % kLineBytes == 0 && (!How::kAlternates || wait-- == 0)) {
      for (int p = 0; p < P; p++) fetch<kLineBytes>(ahead[p] + d * kRowBytes);
      wait = k.ahead.readers - 1;
    }
    Vec key[kVectors];
    for (int v = 0; v < kVectors; v++) {
      key[v] = scales.apply(v, load(panel[v / kPanelVectors] + d * stride + (v % kPanelVectors) * kLanes));
      if (How::kStages) {
        const size_t at = static_cast<size_t>(firstPanel + v / kPanelVectors) * headDim + d;
        store(k.staged + at * spg::kPanelTokens + (v % kPanelVectors) * kLanes, key[v]);
      }
    }
    for (int r = 0; r < R; r++) {
      const Vec x = broadcast(q[r * headDim + d]);
      for (int v = 0; v < kVectors; v++) sum[r][v] = fma(x, key[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < kVectors; v++) {
      store(scores + r * scoreStride + firstPanel * spg::kPanelTokens + v * kLanes, sum[r][v]);
    }
  }
}

/* Scores of R queries against panels [firstPanel, endPanel). */
template <class How, int R, class T>
void score_rows(const float *q, const KeyPanels<T> &k, int firstPanel, int endPanel, float *scores,
                size_t scoreStride) {
  int p = firstPanel;
  if constexpr (R * 4 * kPanelVectors <= kAccumulators) {
    for (; p + 4 <= endPanel; p += 4) score_panels<How, R, 4>(q, k, p, scores, scoreStride);
  }
  if constexpr (R * 2 * kPanelVectors <= kAccumulators) {
    for (; p + 2 <= endPanel; p += 2) score_panels<How, R, 2>(q, k, p, scores, scoreStride);
  }
  for (; p < endPanel; p++) score_panels<How, R, 1>(q, k, p, scores, scoreStride);
}

template <class How, int R, int N, class T>
__attribute__((noinline)) void value_vectors(const float *weights, size_t weightStride, const ValuePanels<T> &v,
                                             int firstToken, int endToken, int dim, float *out, size_t outStride) {
  const size_t headDim = v.headDim;
  Vec sum[R][N];
  for (int r = 0; r < R; r++) {
    for (int n = 0; n < N; n++) sum[r][n] = zero();
  }
  int t = firstToken, wait = v.ahead.reader;
  while (t < endToken) {
    const int panel = t / spg::kPanelTokens;
    const int panelEnd = (panel + 1) * spg::kPanelTokens;
    const int stop = panelEnd < endToken ? panelEnd : endToken;
    const size_t skipped = (t % spg::kPanelTokens) * headDim + dim;
    const T *row = v.panels[panel] + skipped;
    const char *ahead = How::kAhead ? v.ahead.panels[panel] + skipped * How::kAhead : nullptr;
    ValueScales<T> scales(v.scales, panel, t % spg::kPanelTokens, dim, v.headDim);
    for (; t < stop; t++, row += headDim, ahead += headDim * How::kAhead, scales.next()) {
      if (How::kAhead && (!How::kAlternates || wait-- == 0)) {
        fetch<N * kLanes * How::kAhead>(ahead);
        wait = v.ahead.readers - 1;
      }
      Vec value[N];
      for (int n = 0; n < N; n++) {
        value[n] = scales.apply(n * kLanes, load(row + n * kLanes));
        if (How::kStages) store(v.staged + t * headDim + dim + n * kLanes, value[n]);
      }
      for (int r = 0; r < R; r++) {
        const Vec x = broadcast(weights[r * weightStride + t]);
        for (int n = 0; n < N; n++) sum[r][n] = fma(x, value[n], sum[r][n]);
      }
    }
  }
  for (int r = 0; r < R; r++) {
    for (int n = 0; n < N; n++) store(out + r * outStride + dim + n * kLanes, sum[r][n]);
  }
}

/* out[R][paddedDim] of R queries over tokens [firstToken, endToken). */
template <class How, int R, class T>
void value_rows(const float *weights, size_t weightStride, const ValuePanels<T> &v, int firstToken, int endToken,
                int paddedDim, float *out, size_t outStride) {
  int dim = 0;
  if constexpr (R * 8 <= kAccumulators) {
    for (; dim + 8 * kLanes <= paddedDim; dim += 8 * kLanes) {
      value_vectors<How, R, 8>(weights, weightStride, v, firstToken, endToken, dim, out, outStride);
    }
  }
  if constexpr (R * 4 <= kAccumulators) {
    for (; dim + 4 * kLanes <= paddedDim; dim += 4 * kLanes) {
      value_vectors<How, R, 4>(weights, weightStride, v, firstToken, endToken, dim, out, outStride);
    }
  }
  for (; dim + 2 * kLanes <= paddedDim; dim += 2 * kLanes) {
    value_vectors<How, R, 2>(weights, weightStride, v, firstToken, endToken, dim, out, outStride);
  }
  for (; dim < paddedDim; dim += kLanes) {
    value_vectors<How, R, 1>(weights, weightStride, v, firstToken, endToken, dim, out, outStride);
  }
}

/* A row count as a type, so that it is a constant at compile time. */
template <int R>
struct Rows {
  static constexpr int count = R;
};

/* Calls body(Rows<rows>()), 1 <= rows <= kMicroQueries. */
template <class Body>
inline void with_rows(int rows, Body body) {
  switch (rows) {
    case 1: return body(Rows<1>());
    case 2: return body(Rows<2>());
    case 3: return body(Rows<3>());
    case 4: return body(Rows<4>());
    case 5: return body(Rows<5>());
    default: return body(Rows<6>());
  }
}

}

#endif
