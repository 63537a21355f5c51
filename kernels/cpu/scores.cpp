#include "scores.h"

#include <math.h>
#include <string.h>

#include <algorithm>

#include "pool.h"

namespace spg {
namespace {

constexpr float kLog2e = 1.44269504088896340736f;
/* Panels that are scored in one call. */
constexpr int kRunPanels = 64;

void rotate(const PoolView &pool, const float *x, const float *row, float *out) {
  memcpy(out, x, pool.headDim * sizeof(float));
  if (!row) return;
  const int half = pool.rotaryDim / 2;
  for (int i = 0; i < half; i++) {
    const int a = pool.interleaved ? 2 * i : i, b = pool.interleaved ? 2 * i + 1 : half + i;
    const float first = x[a], second = x[b], c = row[i], s = row[half + i];
    out[a] = first * c - second * s;
    out[b] = second * c + first * s;
  }
}

void transform(float *x, int dim) {
  for (int start = 0; start < dim;) {
    const int part = hadamard_part(dim - start);
    float *own = x + start;
    for (int half = 1; half < part; half *= 2) {
      for (int first = 0; first < part; first += 2 * half) {
        for (int i = first; i < first + half; i++) {
          const float a = own[i], b = own[i + half];
          own[i] = a + b;
          own[i + half] = a - b;
        }
      }
    }
    const float factor = 1.0f / sqrtf(static_cast<float>(part));
    for (int i = 0; i < part; i++) own[i] *= factor;
    start += part;
  }
}

/* Rounds a transformed query to 8 bits. One that is not finite scores every token 0. */
void round_query(const PoolView &pool, const float *x, ShadowQuery &query) {
  float greatest = 0;
  bool isFinite = true;
  for (int d = 0; d < pool.headDim; d++) {
    greatest = std::max(greatest, fabsf(x[d]));
    isFinite = isFinite && isfinite(x[d]);
  }
  const float inverse = isFinite && greatest > 0 ? kQueryLimit / greatest : 0;
  const bool isZero = !(inverse > 0) || !isfinite(inverse);
  int32_t sum = 0;
  for (int d = 0; d < pool.headDim; d++) {
    query.numbers[d] = isZero ? 0 : static_cast<int8_t>(rintf(x[d] * inverse));
    sum += query.numbers[d];
  }
  query.zero = kShadowZero * sum;
  query.factor = isZero ? 0 : greatest / kQueryLimit * (pool.softmaxScale * kLog2e);
}

int position_of(const HeadChoice &head) {
  return head.pool.step.view.positions[head.choice.firstRow];
}

/* scratch.queries = the queries rotated to where the row stands as seen from a segment. */
void rotate_queries(const HeadChoice &head, BareQueries bare, int position) {
  const PoolView &view = head.pool.view;
  const float *row = rope_row(view, head.layer, position);
  for (int g = 0; g < view.group; g++) {
    rotate(view, bare + g * view.headDim, row, head.scratch.queries.data() + g * view.headDim);
  }
}

/* Calls body for each panel that a run of tokens touches, rising. Blocks are whole panels. */
template <class Body>
void each_panel(const PoolView &view, const int32_t *blockIds, const ChoiceSegment &segment, Body body) {
  const int32_t *block = blockIds + segment.firstToken / view.blockTokens;
  int inBlock = segment.firstToken % view.blockTokens;
  for (int done = 0; done < segment.tokenCount;) {
    const int inPanel = inBlock % kPanelTokens, end = std::min(kPanelTokens, inPanel + segment.tokenCount - done);
    body(PanelPart{&segment, *block, inBlock / kPanelTokens, inPanel, end, segment.number + done});
    done += end - inPanel;
    inBlock += end - inPanel;
    if (inBlock < view.blockTokens) continue;
    inBlock = 0;
    block++;
  }
}

template <class Body>
void each_panel_of(const HeadChoice &head, const ChoiceSegment &segment, Body body) {
  each_panel(head.pool.view, head.pool.sparse->blockIds.data() + segment.blockStart, segment, body);
}

void load_keys(const HeadChoice &head, const PanelPart &part, float *keys) {
  const unsigned char *data = head_data(head.pool.view, head.layer, part.block, head.kvHead);
  head.pool.sparse->table->loadPanel(head.pool.view, data, part.panel * kPanelTokens, keys);
}

/* Scores of 16 tokens by their K: a sum over rising dimensions for each. */
void multiply_keys(const PoolView &view, const float *query, const float *keys, float *scores) {
  float sums[kPanelTokens] = {};
  for (int d = 0; d < view.headDim; d++) {
    for (int t = 0; t < kPanelTokens; t++) sums[t] += query[d] * keys[d * kPanelTokens + t];
  }
  for (int t = 0; t < kPanelTokens; t++) scores[t] = sums[t] * (view.softmaxScale * kLog2e);
}

/* The greatest product that a vector within the bounds of tokens [first, end) could have, for each of them. */
void multiply_bounds(const PoolView &view, const PanelPart &part, const float *query, const float *keys,
                     float *scores) {
  float sum = 0;
  for (int d = 0; d < view.headDim; d++) {
    const float *own = keys + d * kPanelTokens;
    const auto bounds = std::minmax_element(own + part.first, own + part.end);
    sum += std::max(query[d] * *bounds.first, query[d] * *bounds.second);
  }
  std::fill(scores, scores + kPanelTokens, sum * (view.softmaxScale * kLog2e));
}

/* Scores the tokens of one segment by what `multiply` makes of a query and a panel's K. */
template <class Multiply>
void score_segment(const HeadChoice &head, const int32_t *blockIds, const ChoiceSegment &segment, BareQueries bare,
                   Multiply multiply) {
  const PoolView &view = head.pool.view;
  rotate_queries(head, bare, position_of(head) - segment.offset);
  each_panel(view, blockIds, segment, [&](const PanelPart &part) {
    float scores[kPanelTokens];
    load_keys(head, part, head.scratch.panel.data());
    for (int g = 0; g < view.group; g++) {
      multiply(part, head.scratch.queries.data() + g * view.headDim, head.scratch.panel.data(), scores);
      float *out = head.scratch.scores.data() + g * score_stride(head) + part.number;
      std::copy(scores + part.first, scores + part.end, out);
    }
  });
}

void fill_up(const HeadChoice &head, int tokens) {
  for (int g = 0; g < head.pool.view.group; g++) {
    float *row = head.scratch.scores.data() + g * score_stride(head);
    std::fill(row + tokens, row + padded_tokens(tokens), -INFINITY);
  }
}

template <class Multiply>
void score_all(const HeadChoice &head, BareQueries bare, Multiply multiply) {
  const SparseState &sparse = *head.pool.sparse;
  for (int s = head.choice.firstSegment; s < head.choice.endSegment; s++) {
    const ChoiceSegment &segment = sparse.segments[s];
    score_segment(head, sparse.blockIds.data() + segment.blockStart, segment, bare, multiply);
  }
  fill_up(head, head.choice.candidates);
}

/* Whole panels of a segment, whose scores are written where they belong; a part of one goes by a detour. */
class ShadowRun {
 public:
  explicit ShadowRun(const HeadChoice &head) : head_(head) {}

  void add(const PanelPart &part) {
    const SparseState &sparse = *head_.pool.sparse;
    const unsigned char *data = shadow_head(sparse.shadows, head_.layer, part.block, head_.kvHead) +
                                part.panel * sparse.shadows.panelBytes;
    if (part.first == 0 && part.end == kPanelTokens) {
      if (count_ == 0) number_ = part.number;
      panels_[count_++] = data;
      if (count_ == kRunPanels) flush();
      return;
    }
    flush();
    const int group = head_.pool.view.group;
    for (int g = 0; g < group; g++) {
      float scores[kPanelTokens];
      score(&data, 1, g, 1, scores);
      std::copy(scores + part.first, scores + part.end, row(g) + part.number);
    }
  }

  void flush() {
    if (count_ > 0) score(panels_, count_, 0, head_.pool.view.group, row(0) + number_);
    count_ = 0;
  }

 private:
  float *row(int query) const { return head_.scratch.scores.data() + query * score_stride(head_); }
  void score(const unsigned char *const *panels, int count, int first, int queries, float *out) const {
    const ShadowQuery *own = head_.scratch.shadowQueries.data() + first;
    head_.pool.sparse->table->score(panels, count, head_.pool.view.headDim, own, {out, score_stride(head_), queries});
  }

  const HeadChoice &head_;
  const unsigned char *panels_[kRunPanels];
  int count_ = 0, number_ = 0;
};

}

int padded_tokens(int tokens) {
  return (tokens + kPanelTokens - 1) / kPanelTokens * kPanelTokens;
}

size_t score_stride(const HeadChoice &head) {
  return head.scratch.best.size();
}

void bare_query(const spg_pool &pool, const LayerCall &call, int row, int queryHead, float *out) {
  const PoolView &view = pool.view;
  const float *q = call.qkv + row * call.qkvStride + static_cast<size_t>(queryHead) * view.headDim;
  double squares = 0;
  for (int d = 0; d < view.headDim; d++) squares += static_cast<double>(q[d]) * q[d];
  const double factor = call.qNorm ? 1 / sqrt(squares / view.headDim + view.normEps) : 1;
  for (int d = 0; d < view.headDim; d++) {
    out[d] = static_cast<float>(q[d] * factor * (call.qNorm ? call.qNorm[d] : 1));
  }
}

void score_shadows(const HeadChoice &head, BareQueries bare) {
  const PoolView &view = head.pool.view;
  int offset = 0;
  for (int s = head.choice.firstSegment; s < head.choice.endSegment; s++) {
    const ChoiceSegment &segment = head.pool.sparse->segments[s];
    if (s == head.choice.firstSegment || segment.offset != offset) {
      offset = segment.offset;
      rotate_queries(head, bare, position_of(head) - offset);
      for (int g = 0; g < view.group; g++) {
        float *query = head.scratch.queries.data() + g * view.headDim;
        transform(query, view.headDim);
        round_query(view, query, head.scratch.shadowQueries[g]);
      }
    }
    ShadowRun run(head);
    each_panel_of(head, segment, [&](const PanelPart &part) { run.add(part); });
    run.flush();
  }
  fill_up(head, head.choice.candidates);
}

void score_keys(const HeadChoice &head, BareQueries bare) {
  const PoolView &view = head.pool.view;
  score_all(head, bare, [&](const PanelPart &, const float *query, const float *keys, float *scores) {
    multiply_keys(view, query, keys, scores);
  });
}

void score_bounds(const HeadChoice &head, BareQueries bare) {
  const PoolView &view = head.pool.view;
  score_all(head, bare, [&](const PanelPart &part, const float *query, const float *keys, float *scores) {
    multiply_bounds(view, part, query, keys, scores);
  });
}

int score_tail(const HeadChoice &head, BareQueries bare, int row) {
  const StepView &step = head.pool.step.view;
  const int s = head.choice.tailSegment, after = head.choice.endRow - 1 - row;
  const ChoiceSegment tail{step.segmentBlockStarts[s], step.segmentFirstTokens[s], step.segmentTokenCounts[s] - after,
                           step.segmentOffsets[s],     0,                          head.choice.candidates,
                           {nullptr, nullptr}};
  const PoolView &view = head.pool.view;
  score_segment(head, step.blockIds + tail.blockStart, tail, bare,
                [&](const PanelPart &, const float *query, const float *keys, float *scores) {
                  multiply_keys(view, query, keys, scores);
                });
  fill_up(head, head.choice.candidates + tail.tokenCount);
  return tail.tokenCount;
}

}
