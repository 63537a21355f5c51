/* One layer's choices: which query chooses, what it chooses, and the copies that bring it into the buffer. */
#include <math.h>
#include <string.h>

#include <algorithm>

#include "pool.h"
#include "predict.h"
#include "scores.h"
#include "select.h"

namespace spg {
namespace {

/* A measurement is due every so many steps of a seat, in one layer in turn. */
constexpr uint32_t kStepsPerMeasure = 64;
constexpr double kLn2 = 0.69314718055994530942;

/* Candidates of all heads below which waking a thread costs more than it gains. */
constexpr int64_t kSerialCandidates = 8192;

struct ChooseJob {
  spg_pool &pool;
  const LayerCall &call;
};

SeatLayer &seat_layer(const spg_pool &pool, const Choice &choice, int layer) {
  return pool.sparse->seatLayers[static_cast<size_t>(choice.seat) * pool.view.layers + layer];
}

size_t seat_head(const HeadChoice &head, int heads, int index) {
  return (static_cast<size_t>(head.choice.seat) * head.pool.view.layers + head.layer) * heads + index;
}

int32_t *list_of(const HeadChoice &head) {
  return head.pool.sparse->lists + seat_head(head, head.pool.view.kvHeads, head.kvHead) * head.pool.sparse->listTokens;
}

/* The query of a seat's ring at a position. */
float *ring_query(const HeadChoice &head, int queryHead, int position) {
  const size_t slot = seat_head(head, kRingQueries, position % kRingQueries);
  return head.pool.sparse->ring + (slot * head.pool.view.queryHeads + queryHead) * head.pool.view.headDim;
}

float *ref_of(const HeadChoice &head, int queryHead) {
  return head.pool.sparse->refs + seat_head(head, head.pool.view.queryHeads, queryHead) * head.pool.view.headDim;
}

/* How many queries that follow each other the ring has before a position. */
int known_before(const SeatLayer &seat, int position) {
  int known = 0;
  while (known < kMostKnown && position - 1 - known >= 0 &&
         seat.ringPositions[(position - 1 - known) % kRingQueries] == position - 1 - known) {
    known++;
  }
  return known;
}

/* scratch.window = the query for this position by those before it, for each head of the group. False: there are none. */
bool predict(const HeadChoice &head, const SeatLayer &seat, int position) {
  const PoolView &view = head.pool.view;
  const int known = known_before(seat, position);
  if (known == 0) return false;
  const float *newest[kMostKnown];
  for (int g = 0; g < view.group; g++) {
    for (int i = 0; i < known; i++) newest[i] = ring_query(head, head.kvHead * view.group + g, position - 1 - i);
    float *out = head.scratch.window.data() + g * view.headDim;
    switch (head.choice.mode) {
      case SPG_CHOOSE_LAST: std::copy(newest[0], newest[0] + view.headDim, out); break;
      case SPG_CHOOSE_LISTING: predict_by_listing(newest, known, view.headDim, out); break;
      default: predict_query(newest, known, view.headDim, out);
    }
  }
  return true;
}

/* Whether every head's query points where the other does, as far as the entry asks. */
bool is_close(const HeadChoice &head, const float *bare, const float *other, size_t otherStride) {
  const int dim = head.pool.view.headDim;
  for (int g = 0; g < head.pool.view.group && head.choice.leastCosine > -1; g++) {
    double both = 0, own = 0, others = 0;
    for (int d = 0; d < dim; d++) {
      const double a = bare[g * dim + d], b = other[g * otherStride + d];
      both += a * b, own += a * a, others += b * b;
    }
    if (!(both >= head.choice.leastCosine * sqrt(own * others))) return false;
  }
  return true;
}

void keep_ref(const HeadChoice &head, const float *query) {
  const PoolView &view = head.pool.view;
  const size_t floats = static_cast<size_t>(view.group) * view.headDim;
  memcpy(ref_of(head, head.kvHead * view.group), query, floats * sizeof(float));
}

bool follows_ring(int mode) {
  return mode == SPG_CHOOSE_AHEAD || mode == SPG_CHOOSE_LAST || mode == SPG_CHOOSE_LISTING;
}

/*
 * The query that chooses in this step, or null: the lists stay. By the ring it is due every so many steps, seats in turn,
 * and wherever tokens have left the tail.
 */
const float *choosing_query(const HeadChoice &head, const SeatLayer &seat, int position, HeadCounts &counts) {
  const Choice &choice = head.choice;
  const float *bare = head.scratch.bare.data();
  const PoolView &view = head.pool.view;
  if (!follows_ring(choice.mode)) return bare;
  const bool isEmpty = seat.listTokens != choice.bufferTokens;
  const bool isDue = isEmpty || seat.candidates != choice.candidates ||
                     (seat.steps + static_cast<uint32_t>(choice.seat)) % choice.refreshSteps == 0;
  const float *query = nullptr;
  if (isDue && predict(head, seat, position)) query = head.scratch.window.data();
  if (isDue && !query) query = bare;
  const float *other = query ? query : ref_of(head, head.kvHead * view.group);
  if (query != bare && choice.mode != SPG_CHOOSE_LAST && !is_close(head, bare, other, view.headDim)) {
    query = bare;
    counts.chosenAgain = 1;
  }
  if (query) keep_ref(head, query);
  return query;
}

/* Tokens that the seat's lists no longer have are gone for TOVA: their scores become the least. */
void drop_evicted(const HeadChoice &head, const SeatLayer &seat) {
  if (seat.listTokens == 0) return;
  ChooseScratch &scratch = head.scratch;
  const int32_t *list = list_of(head);
  std::fill(scratch.exact.begin(), scratch.exact.end(), 0);
  for (int slot = 0; slot < seat.listTokens; slot++) add_token(scratch.exact.data(), list[slot]);
  for (int i = 0; i < seat.candidates; i++) {
    if (has_token(scratch.exact.data(), i)) continue;
    for (int g = 0; g < head.pool.view.group; g++) scratch.scores[g * score_stride(head) + i] = -INFINITY;
  }
}

void rank_scores(const HeadChoice &head) {
  ChooseScratch &scratch = head.scratch;
  const ScoreRows rows{scratch.scores.data(), score_stride(head), head.pool.view.group};
  const int tokens = padded_tokens(head.choice.candidates);
  head.pool.sparse->table->rank(rows, tokens, scratch.best.data(), scratch.ranks.data());
}

void rank_tokens(const HeadChoice &head, const SeatLayer &seat, const float *query) {
  switch (head.choice.mode) {
    case SPG_CHOOSE_EXACT: score_keys(head, query); break;
    case SPG_CHOOSE_QUEST: score_bounds(head, query); break;
    case SPG_CHOOSE_TOVA:
      score_keys(head, query);
      drop_evicted(head, seat);
      break;
    default: score_shadows(head, query);
  }
  rank_scores(head);
}

/* Calls body(number) for each forced token, rising. */
template <class Body>
void each_forced(const HeadChoice &head, Body body) {
  for (int s = head.choice.firstSegment; s < head.choice.endSegment; s++) {
    const ChoiceSegment &segment = head.pool.sparse->segments[s];
    for (int i = 0; i < segment.forced; i++) body(segment.number + i);
  }
}

void choose_by_rank(const HeadChoice &head, std::vector<uint64_t> &chosen) {
  std::fill(chosen.begin(), chosen.end(), 0);
  each_forced(head, [&](int number) { add_token(chosen.data(), number); });
  const int take = head.choice.bufferTokens - head.choice.forced;
  ChooseScratch &scratch = head.scratch;
  const ChooseTable &table = *head.pool.sparse->table;
  choose_best(table, scratch.ranks.data(), head.choice.candidates, take, chosen.data(), scratch.set.data());
}

/* Copies the tokens of scratch.numbers, rising slots of the list, from where they are stored into the buffer. */
void gather(const HeadChoice &head, const int32_t *list, int count) {
  const spg_pool &pool = head.pool;
  const PoolView &view = pool.view;
  const SparseState &sparse = *pool.sparse;
  ChooseScratch &scratch = head.scratch;
  const int32_t *buffer = pool.step.view.blockIds + head.choice.bufferStart;
  int s = head.choice.firstSegment;
  for (int i = 0; i < count; i++) {
    const int slot = scratch.numbers[i], number = list[slot];
    if (number < sparse.segments[s].number) s = head.choice.firstSegment;
    while (number >= sparse.segments[s].number + sparse.segments[s].tokenCount) s++;
    const ChoiceSegment &segment = sparse.segments[s];
    const int token = segment.firstToken + number - segment.number;
    const int block = sparse.blockIds[segment.blockStart + token / view.blockTokens];
    scratch.sources[i] = block * view.blockTokens + token % view.blockTokens;
    scratch.targets[i] = buffer[slot / view.blockTokens] * view.blockTokens + slot % view.blockTokens;
    scratch.deltas[i] = segment.offset;
    scratch.rotations[i] = segment.rotations[rope_table(view, head.layer)];
  }
  const TokenCopies copies{scratch.sources.data(), scratch.targets.data(), scratch.deltas.data(), count};
  if (!pool.kernels) return reference::copy_head(view, copies, head.layer, head.kvHead);
  pool.kernels->copyTokens(view, copies, scratch.rotations.data(), head.layer, head.kvHead);
}

/* Brings the list to what scratch.chosen has. Returns how many tokens were copied, forced ones left out. */
int follow_choice(const HeadChoice &head, const SeatLayer &seat) {
  ChooseScratch &scratch = head.scratch;
  const Choice &choice = head.choice;
  int32_t *list = list_of(head);
  for (int slot = seat.listTokens; slot < choice.bufferTokens; slot++) list[slot] = -1;
  if (seat.listTokens == 0) {
    int copied = 0;
    each_forced(head, [&](int number) {
      list[copied] = number;
      scratch.numbers[copied] = copied;
      copied++;
    });
    gather(head, list, copied);
  }
  each_forced(head, [&](int number) { scratch.chosen[number / 64] &= ~(uint64_t(1) << (number % 64)); });
  const int taken = fill_slots(list, choice.forced, choice.bufferTokens, scratch.chosen.data(), choice.candidates,
                               scratch.numbers.data());
  gather(head, list, taken);
  return taken;
}

/*
 * Adds what the row's attention weights have in the buffer and the tail, and how much of the exact choice is in the list.
 */
void measure(const HeadChoice &head, int row, HeadCounts &counts) {
  const PoolView &view = head.pool.view;
  const Choice &choice = head.choice;
  ChooseScratch &scratch = head.scratch;
  const int32_t *list = list_of(head);
  score_keys(head, scratch.bare.data());
  rank_scores(head);
  choose_by_rank(head, scratch.exact);
  int common = 0;
  for (int slot = choice.forced; slot < choice.bufferTokens; slot++) common += has_token(scratch.exact.data(), list[slot]);
  const int wanted = choice.bufferTokens - choice.forced;
  counts.overlap = wanted > 0 ? static_cast<double>(common) / wanted : 1;
  const int tokens = choice.candidates + score_tail(head, scratch.bare.data(), row);
  for (int g = 0; g < view.group; g++) {
    const float *scores = scratch.scores.data() + g * score_stride(head);
    const double top = *std::max_element(scores, scores + tokens);
    double all = 0, read = 0;
    auto weight = [&](int i) { return exp((scores[i] - top) * kLn2); };
    for (int i = 0; i < tokens; i++) all += weight(i);
    for (int slot = 0; slot < choice.bufferTokens; slot++) read += weight(list[slot]);
    for (int i = choice.candidates; i < tokens; i++) read += weight(i);
    counts.mass += read / all / view.group;
  }
}

bool is_measured(const SeatLayer &seat, int layer, int layers) {
  const uint32_t turn = seat.steps / kStepsPerMeasure;
  return seat.steps % kStepsPerMeasure == 0 && turn % static_cast<uint32_t>(layers) == static_cast<uint32_t>(layer);
}

/* The first of a piece's rows whose query the ring takes. */
int first_ring_row(const Choice &choice) {
  return std::max(choice.firstRow, choice.endRow - kMostKnown);
}

void fill_ring(const HeadChoice &head, const LayerCall &call) {
  const PoolView &view = head.pool.view;
  for (int row = first_ring_row(head.choice); row < head.choice.endRow; row++) {
    for (int g = 0; g < view.group; g++) {
      const int queryHead = head.kvHead * view.group + g;
      bare_query(head.pool, call, row, queryHead, ring_query(head, queryHead, head.pool.step.view.positions[row]));
    }
  }
}

/* task = entry * kvHeads + kvHead */
void choose_task(void *argument, int task, int thread) {
  ChooseJob &job = *static_cast<ChooseJob *>(argument);
  const PoolView &view = job.pool.view;
  SparseState &sparse = *job.pool.sparse;
  const Choice &choice = sparse.choices[task / view.kvHeads];
  const HeadChoice head{job.pool, choice, job.call.layer, task % view.kvHeads, sparse.scratch[thread]};
  HeadCounts &counts = sparse.headCounts[task];
  counts = HeadCounts{};
  if (!(choice.flags & SPG_WATCH)) {
    const SeatLayer &seat = seat_layer(job.pool, choice, job.call.layer);
    for (int g = 0; g < view.group; g++) {
      float *bare = head.scratch.bare.data() + g * view.headDim;
      bare_query(job.pool, job.call, choice.firstRow, head.kvHead * view.group + g, bare);
    }
    const int position = job.pool.step.view.positions[choice.firstRow];
    if (const float *query = choosing_query(head, seat, position, counts)) {
      counts.chosen = 1;
      const bool takesAll = choice.bufferTokens == choice.candidates;
      if (!takesAll) rank_tokens(head, seat, query);
      choose_by_rank(head, head.scratch.chosen);
      counts.changed = follow_choice(head, seat);
    }
    if (is_measured(seat, job.call.layer, view.layers)) measure(head, choice.firstRow, counts);
  }
  if (sparse.rings) fill_ring(head, job.call);
}

/* After the tasks. */
void settle(const spg_pool &pool, int layer, const Choice &choice, const HeadCounts *heads) {
  const PoolView &view = pool.view;
  SeatLayer &seat = seat_layer(pool, choice, layer);
  for (int row = first_ring_row(choice); row < choice.endRow; row++) {
    const int position = pool.step.view.positions[row];
    seat.ringPositions[position % kRingQueries] = position;
  }
  if (choice.flags & SPG_WATCH) return;
  const bool isMeasured = is_measured(seat, layer, view.layers);
  for (int h = 0; h < view.kvHeads; h++) {
    seat.counts[SPG_COUNT_LISTS] += 1;
    seat.counts[SPG_COUNT_CHOSEN] += heads[h].chosen;
    seat.counts[SPG_COUNT_CHOSEN_AGAIN] += heads[h].chosenAgain;
    seat.counts[SPG_COUNT_CHANGED] += heads[h].changed;
    seat.counts[SPG_COUNT_MASS] += heads[h].mass / view.kvHeads;
    seat.counts[SPG_COUNT_OVERLAP] += heads[h].overlap / view.kvHeads;
  }
  seat.counts[SPG_COUNT_MEASURED] += isMeasured;
  seat.listTokens = choice.bufferTokens;
  seat.candidates = choice.candidates;
  seat.steps++;
}

}

void run_choices(spg_pool &pool, const LayerCall &call) {
  if (!pool.sparse || pool.sparse->choices.empty()) return;
  const std::vector<Choice> &choices = pool.sparse->choices;
  const int kvHeads = pool.view.kvHeads, tasks = static_cast<int>(choices.size()) * kvHeads;
  int64_t candidates = 0;
  for (const Choice &choice : choices) candidates += static_cast<int64_t>(choice.candidates) * kvHeads;
  ChooseJob job{pool, call};
  if (candidates < kSerialCandidates) {
    for (int task = 0; task < tasks; task++) choose_task(&job, task, 0);
  } else {
    pool.context->threads->run(tasks, choose_task, &job);
  }
  for (size_t e = 0; e < choices.size(); e++) {
    settle(pool, call.layer, choices[e], pool.sparse->headCounts.data() + e * kvHeads);
  }
}

}
