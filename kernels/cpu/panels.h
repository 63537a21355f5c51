/* Where the panels of a section of K and V lie, and what is fetched into the cache while they are read. */
#ifndef SPANGATE_KERNELS_PANELS_H
#define SPANGATE_KERNELS_PANELS_H

#include "internal.h"
#include "mx8.h"
#include "vector.h"

namespace {

using spg::Section;
using spg::kSectionPanels;
using spg::kSectionTokens;
using spg::kPanelTokens;
using spg::PoolView;
using spg::StepView;

inline int panels_of(int tokens) {
  return (tokens + kPanelTokens - 1) / kPanelTokens;
}

template <class T>
struct Panels {
  const T *keys[kSectionPanels], *values[kSectionPanels];
  /* mx8: the scales of the values; those of the keys are rows behind the keys (mx8.h). */
  const uint8_t *valueScales[kSectionPanels];
  /* What to fetch into the cache while a panel is read. */
  const char *keysAhead[kSectionPanels], *valuesAhead[kSectionPanels];
  size_t keyStride;
};

/* Measured: of 2, 4 and 8 panels, fetching 4 ahead read memory fastest. */
constexpr int kPanelsAhead = 4;

/* Panels as they lie in the pool; blockTokens must be a multiple of 16. */
template <class T>
void point_at_pool(const PoolView &pool, const StepView &step, const Section &section, int layer, int kvHead,
                   int endPanel,
                   Panels<T> &panels) {
  const int panelsPerBlock = pool.blockTokens / kPanelTokens;
  panels.keyStride = pool.blockTokens;
  for (int p = 0; p < endPanel; p++) {
    const int block = step.blockIds[section.blockStart + p / panelsPerBlock];
    const int token = p % panelsPerBlock * kPanelTokens;
    const T *head = reinterpret_cast<const T *>(spg::head_data(pool, layer, block, kvHead));
    panels.keys[p] = head + token;
    panels.values[p] = head + static_cast<size_t>(pool.headDim) * (pool.blockTokens + token);
    if (spg::is_mx8(pool)) {
      const uint8_t *bytes = reinterpret_cast<const uint8_t *>(head);
      panels.valueScales[p] = bytes + spg::value_scales_at(pool, token);
      /* The fetching ahead, below, knows of the numbers alone. */
      __builtin_prefetch(bytes + spg::key_scales_at(pool, token));
      __builtin_prefetch(panels.valueScales[p]);
    }
  }
}

template <class T>
inline const char *bytes_of(const T *p) {
  return reinterpret_cast<const char *>(p);
}

/* The keys (or values) of panel p of a section, in the pool. */
template <class T>
inline const char *panel_in_pool(const PoolView &pool, const StepView &step, const Section &section, int layer, int kvHead,
                                 int p, bool values) {
  const int panelsPerBlock = pool.blockTokens / kPanelTokens;
  const int block = step.blockIds[section.blockStart + p / panelsPerBlock], token = p % panelsPerBlock * kPanelTokens;
  const T *head = reinterpret_cast<const T *>(spg::head_data(pool, layer, block, kvHead));
  return bytes_of(values ? head + static_cast<size_t>(pool.headDim) * (pool.blockTokens + token) : head + token);
}

/*
 * With one micro panel of queries, reading is as slow as memory: so while a panel is read, the one some steps later is
 * fetched. The reading order is: keys of the section, its values, keys of the next section (`next`, or null at the
 * end).
 */
template <class T>
void look_ahead(const PoolView &pool, const StepView &step, const Section *next, int layer, int kvHead, int firstPanel,
                int endPanel, Panels<T> &panels) {
  const int count = endPanel - firstPanel;
  const int nextPanels = next ? panels_of(next->endToken) : 0;
  for (int p = firstPanel; p < endPanel; p++) {
    const int later = p + kPanelsAhead, wrapped = later - endPanel;
    const int value = firstPanel + (wrapped < count ? wrapped : count - 1);
    panels.keysAhead[p] = bytes_of(wrapped < 0 ? panels.keys[later] : panels.values[value]);
    if (wrapped < 0) {
      panels.valuesAhead[p] = bytes_of(panels.values[later]);
    } else if (wrapped < nextPanels) {
      panels.valuesAhead[p] = panel_in_pool<T>(pool, step, *next, layer, kvHead, wrapped, false);
    } else {
      panels.valuesAhead[p] = bytes_of(panels.values[p]);
    }
  }
}

/* With many queries computing takes longer than memory: while they read a section, the whole next one is fetched. */
template <class InPool, class T>
void look_to_next(const PoolView &pool, const StepView &step, const Section *next, int layer, int kvHead, int firstPanel,
                  int endPanel, Panels<T> &panels) {
  const int nextPanels = next ? panels_of(next->endToken < kSectionTokens ? next->endToken : kSectionTokens) : 0;
  for (int p = firstPanel; p < endPanel; p++) {
    const bool there = p < nextPanels;
    panels.keysAhead[p] = there ? panel_in_pool<InPool>(pool, step, *next, layer, kvHead, p, false)
                                : bytes_of(panels.keys[p]);
    panels.valuesAhead[p] = there ? panel_in_pool<InPool>(pool, step, *next, layer, kvHead, p, true)
                                  : bytes_of(panels.values[p]);
  }
}

}

#endif
