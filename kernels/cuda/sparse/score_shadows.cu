/*
 * Scores of the tokens that a step's rows choose from, in one layer, over the shadows of their K (choice_plan.cuh has the
 * plan, the scores and the parts; shadow.cuh the shadows).
 *
 *   qkv as in qkv_finish.cu: q normed and not rotated; rotations: (cos, sin) rows of rotaryDim / 2, at position 0
 *   shadows: this layer's, of tokens whose K was written in steps before, as they are read before the kernel waits;
 *   counts [seats] or null: set to 0 for entries whose seat is fresh
 *
 * MEMORY. Shadows are read once, 66 bytes a token and KV head of 128 dimensions; scores take 2 bytes a token and query
 * head, and stay in the L2 cache until choose_tokens.cu reads them, so shadows are the first that the cache gives up.
 *
 * A warp has one KV head: it rounds its queries and keeps their numbers in registers. As many warps as there are KV heads
 * are a team, which has the same units, so that together they read whole blocks of the shadows. Team b of n has units
 * [b U / n, (b + 1) U / n). Of more than kWarps KV heads a warp has several, one after the other. Panels come through rings
 * in shared memory that are filled ahead (panel_ring.cuh). Where the kWarps panels of a block lie one behind the other, a
 * team copies them at once and has one ring; elsewhere each warp has its own and waits for no other.
 *
 * Grid: any number of thread blocks of 256 threads, with kSharedBytes. Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_counts.cuh"
#include "choice_plan.cuh"
#include "mma.cuh"
#include "panel_ring.cuh"
#include "rounded_queries.cuh"
#include "shadow.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32;
/* Thread blocks of a multiprocessor at the same time. */
constexpr int kBlocks = HEAD_DIM > 128 ? 1 : 2;
struct WarpShared {
  PanelRing<1> ring;
  Queries queries;
};
struct TeamShared {
  PanelRing<kWarps> ring;
  Queries queries[kWarps];
};
constexpr int kSharedBytes = kWarps * int(sizeof(WarpShared));
static_assert(sizeof(WarpShared) % 16 == 0 && sizeof(PanelRing<1>) % 16 == 0, "rings and queries begin at vectors");
static_assert(sizeof(TeamShared) <= kSharedBytes && sizeof(PanelRing<kWarps>) % 16 == 0, "a team's fits too");
/* Vectors of a token's codes are multiplied two at a time; a head of an odd number has zeros for the last. */
constexpr int kPairs = (kShadowVectors + 1) / 2;
/* What sums of powers begin with as their unit: less than any score. */
constexpr float kLeast = -1e30f;
/* How far above its unit a power may be. */
constexpr float kMostAbove = 16;

/* A running sum of 2^z, in units of 2^unit. */
struct PowerSum {
  float unit, sum;
};

__device__ __forceinline__ void add_powers(PowerSum &total, float first, float second) {
  if (fmaxf(first, second) - total.unit > kMostAbove) {
    const float top = fmaxf(first, second);
    total.sum *= exp2_fast(total.unit - top), total.unit = top;
  }
  total.sum += exp2_fast(first - total.unit) + exp2_fast(second - total.unit);
}

/*
 * sums [16 tokens][8 queries] += codes [16][32] numbers [32][8]. Of the codes a lane has those of tokens g and g + 8 with
 * the numbers 4 t to 4 t + 3 and 16 + 4 t on, g = lane / 4 and t = lane % 4; of the sums queries 2 t and 2 t + 1 for both.
 */
__device__ __forceinline__ void multiply_codes(int (&sums)[4], const uint32 (&codes)[4], int first, int second) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(codes[0]), "r"(codes[1]), "r"(codes[2]), "r"(codes[3]), "r"(first), "r"(second));
}

/* Where shadows are, and how a block's are arranged. */
struct ShadowPool {
  const unsigned char *first;
  int kvHeads, blockShift;
};

/* Panels of a unit, from the one that its first token is in. */
__device__ __forceinline__ int panels_of(const ChoiceUnit &unit) {
  return (unit.firstToken % kPanelTokens + unit.tokens + kPanelTokens - 1) / kPanelTokens;
}

/* What a warp copies next: the panels of units up to `end`, one after the other. */
struct Ahead {
  int unit, end;
  int panel, panels; /* of the unit */
  uint32 index;      /* in the shadows, of the unit's panel that has the lane's number */
  RingPlace place;

  __device__ __forceinline__ void begin_unit(const ChoicePlan &plan, const ShadowPool &pool, int kvHead) {
    if (unit >= end) return;
    const ChoiceUnit &own = plan.units[unit];
    panel = 0, panels = panels_of(own);
    const int lane = threadIdx.x & 31, token = (own.firstToken / kPanelTokens + lane) * kPanelTokens;
    static_assert(kUnitTokens / kPanelTokens < 32, "a lane for each panel of a unit");
    if (lane >= panels) return;
    const TokenPlace at = place_in(plan.step, own.blocks, token, pool.blockShift);
    index = uint32(panel_index(at.block, at.token, kvHead, pool.kvHeads, pool.blockShift));
  }

  /* Starts the copies of the next stage, if there is one. */
  template <int kPieces>
  __device__ __forceinline__ void copy_stage(const ChoicePlan &plan, const ShadowPool &pool, int kvHead,
                                             PanelRing<kPieces> &ring, uint64 policy) {
    const unsigned char *from[kStagePanels] = {};
    if (unit < end) {
      from[0] = pool.first + size_t(__shfl_sync(kAllLanes, index, panel)) * kPanelBytes;
      const uint32 next = __shfl_sync(kAllLanes, index, panel + 1);
      if (panel + 1 < panels) from[1] = pool.first + size_t(next) * kPanelBytes;
      panel += kStagePanels;
    }
    ring.copy(place, from[0], from[1], policy);
    place.next();
    if (unit < end && panel >= panels) unit++, begin_unit(plan, pool, kvHead);
  }
};

/*
 * A lane's numbers of the query heads of a pass, as multiply_codes takes them: of two vectors of codes those that belong to
 * their lower 4 bits, and those of their upper ones. Queries 4 to 7 are queries 0 to 3 again.
 */
struct Numbers {
  int low[kPairs][2], high[kPairs][2];
  int zero[2];
  float factor[2];
  uint32 kept, missing; /* of a pair of scores: the bits of heads that there are, and the scores of others */
};

/* Of a pass with `heads` query heads; zeros for the others. */
__device__ __forceinline__ Numbers load_numbers(const Queries &queries, int pass, int heads) {
  const int lane = threadIdx.x & 31, g = lane / 4 % kPassHeads, t = lane % 4;
  const int *words = reinterpret_cast<const int *>(queries.codes[pass * kPassHeads + g]);
  Numbers numbers;
#pragma unroll
  for (int s = 0; s < kShadowVectors + kShadowVectors % 2; s++) {
    const bool isThere = g < heads && s < kShadowVectors;
    numbers.low[s / 2][s % 2] = isThere ? words[4 * s + t] : 0;
    numbers.high[s / 2][s % 2] = isThere ? words[HEAD_DIM / 8 + 4 * s + t] : 0;
  }
  numbers.kept = numbers.missing = 0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int head = 2 * (t % 2) + h;
    numbers.zero[h] = head < heads ? queries.zero[pass * kPassHeads + head] : 0;
    numbers.factor[h] = head < heads ? queries.factor[pass * kPassHeads + head] : 0.0f;
    (head < heads ? numbers.kept : numbers.missing) |= uint32(head < heads ? 0xffff : kNoScore) << 16 * h;
  }
  return numbers;
}

/*
 * Products of a panel's codes with four query heads. A lane gets those of heads 2 (t % 2) and the next with token g, or
 * with token g + 8 where t is 2 or 3.
 */
__device__ __forceinline__ void multiply_panel(const unsigned char *panel, const Numbers &numbers, int (&products)[2]) {
  const int lane = threadIdx.x & 31;
  int low[4] = {}, high[4] = {};
#pragma unroll
  for (int pair = 0; pair < kPairs; pair++) {
    const int vector = min(2 * pair + lane / 16, kShadowVectors - 1);
    uint32 words[4], codes[4];
    load_matrices(words, reinterpret_cast<const bf16 *>(panel + (vector * kPanelTokens + lane % 16) * kVectorBytes));
#pragma unroll
    for (int i = 0; i < 4; i++) codes[i] = words[i] & 0x0f0f0f0fu, words[i] &= 0xf0f0f0f0u;
    multiply_codes(low, codes, numbers.low[pair][0], numbers.low[pair][1]);
    multiply_codes(high, words, numbers.high[pair][0], numbers.high[pair][1]);
  }
  /* The upper codes are sixteen times as large. */
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const bool isFirst = lane % 4 < 2;
    products[h] = (isFirst ? low[h] : low[h + 2]) + ((isFirst ? high[h] : high[h + 2]) >> 4) - numbers.zero[h];
  }
}

/*
 * Scores of a stage's tokens in four query heads; its panels are `stride` bytes apart. They go to `scores` for the lane's token of the first panel. `first` is
 * the stage's first token counted from the unit's, which may be before it. Adds to `totals` what the lane has.
 */
__device__ __forceinline__ void score_stage(const unsigned char *panels, int stride, const Numbers &numbers,
                                            const ChoiceUnit &unit, int first, unsigned short *scores,
                                            PowerSum (&totals)[2]) {
  const int lane = threadIdx.x & 31, token = lane / 4 + (lane % 4 < 2 ? 0 : 8);
  const bool isWhole = first >= unit.forced && first + kStagePanels * kPanelTokens <= unit.tokens;
  float z[kStagePanels][2];
#pragma unroll
  for (int p = 0; p < kStagePanels; p++) {
    int products[2];
    const unsigned char *panel = panels + p * stride;
    multiply_panel(panel, numbers, products);
    const float scale = half_to_float(*reinterpret_cast<const unsigned short *>(panel + kScalesAt + 2 * token));
#pragma unroll
    for (int h = 0; h < 2; h++) z[p][h] = __fmul_rn(__fmul_rn(float(products[h]), scale), numbers.factor[h]);
  }
  uint32 pairs[kStagePanels];
#pragma unroll
  for (int p = 0; p < kStagePanels; p++) pairs[p] = (to_finite_halves(z[p][0], z[p][1]) & numbers.kept) | numbers.missing;
  uint32 *to = reinterpret_cast<uint32 *>(scores);
  if (isWhole) {
#pragma unroll
    for (int p = 0; p < kStagePanels; p++) to[p * kPanelTokens * kPassHeads / 2] = pairs[p];
  } else {
#pragma unroll
    for (int p = 0; p < kStagePanels; p++) {
      const int i = first + p * kPanelTokens + token;
      const bool isThere = i >= 0 && i < unit.tokens;
      const uint32 forced = (kForcedScore * 0x10001u & numbers.kept) | numbers.missing;
      if (isThere) to[p * kPanelTokens * kPassHeads / 2] = i < unit.forced ? forced : pairs[p];
      else z[p][0] = z[p][1] = -infinity();
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) add_powers(totals[h], z[0][h], z[1][h]);
}

/* log2 of the sum over the lanes whose numbers differ in all but the lowest bit; all of them get it. */
__device__ __forceinline__ float log_sum(const PowerSum &total) {
  float top = total.unit;
#pragma unroll
  for (int step = 16; step > 1; step >>= 1) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
  float sum = total.sum * exp2_fast(total.unit - top);
#pragma unroll
  for (int step = 16; step > 1; step >>= 1) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return top + log2f(sum);
}

/* Everything that units read, and where their scores go. */
struct Scoring {
  const ChoicePlan &plan;
  ShadowPool pool;
  const bf16 *qkv;
  const float2 *rotations;
  int queryHeads, rotaryDim;
  float scaleLog2;
  unsigned short *scores;
  float *parts;
};

/* The warp rounds the queries of a unit's KV head. */
__device__ __forceinline__ void round_queries(const Scoring &scoring, const ChoiceUnit &unit, int kvHead, Queries &queries) {
  const int kvHeads = scoring.pool.kvHeads, group = scoring.queryHeads / kvHeads;
  const ChoiceEntry &entry = scoring.plan.entries[unit.entry];
  const bf16 *q = scoring.qkv + (size_t(entry.row) * (scoring.queryHeads + 2 * kvHeads) + kvHead * group) * HEAD_DIM;
  const float2 *row = scoring.rotations + (long long)(entry.position - unit.offset) * (scoring.rotaryDim / 2);
  round_queries(q, group, row, scoring.rotaryDim, scoring.scaleLog2, queries);
}

/* Units [first, end) for one KV head, whose query heads take at most kPasses passes; the ring is a team's or the warp's. */
template <int kPasses, int kPieces>
__device__ __forceinline__ void score_units(const Scoring &scoring, int first, int end, int kvHead,
                                            PanelRing<kPieces> &ring, Queries &queries, RingPlace &place) {
  constexpr bool isTeam = kPieces > 1;
  const bool isFilling = !isTeam || threadIdx.x < 32;
  const int ringHead = isTeam ? 0 : kvHead;
  const int kvHeads = scoring.pool.kvHeads, group = scoring.queryHeads / kvHeads, passes = passes_of(group);
  const int lane = threadIdx.x & 31, token = lane / 4 + (lane % 4 < 2 ? 0 : 8), head = 2 * (lane % 2);
  const uint64 policy = evict_first();
  Ahead ahead = {first, end, 0, 0, 0, place};
  if (isFilling) {
    ahead.begin_unit(scoring.plan, scoring.pool, ringHead);
    for (int i = 0; i + 1 < kStages; i++) ahead.copy_stage(scoring.plan, scoring.pool, ringHead, ring, policy);
  }
  wait_for_previous();
  Numbers numbers;
  int rounded = -1, offset = 0; /* entry and offset whose queries are rounded */
  for (int number = first; number < end; number++) {
    const ChoiceUnit unit = scoring.plan.units[number];
    if (unit.entry != rounded || unit.offset != offset) {
      round_queries(scoring, unit, kvHead, queries);
      numbers = load_numbers(queries, 0, min(group, kPassHeads));
      rounded = unit.entry, offset = unit.offset;
    }
    const ChoiceEntry &entry = scoring.plan.entries[unit.entry];
    const size_t passStride = size_t(entry.scoreStride) * kPassHeads;
    unsigned short *scores = scoring.scores + scores_at(entry, kvHead, kvHeads, passes);
    scores += (size_t(unit.number) + token) * kPassHeads + head;
    PowerSum totals[kPasses][2];
#pragma unroll
    for (int pass = 0; pass < kPasses; pass++) totals[pass][0] = totals[pass][1] = {kLeast, 0};
    for (int start = -(unit.firstToken % kPanelTokens); start < unit.tokens; start += kStagePanels * kPanelTokens) {
      ring.wait(place);
      if (isFilling) ahead.copy_stage(scoring.plan, scoring.pool, ringHead, ring, policy);
#pragma unroll
      for (int pass = 0; pass < kPasses; pass++) {
        if (pass * kPassHeads >= group) break;
        if (kPasses > 1) numbers = load_numbers(queries, pass, min(kPassHeads, group - pass * kPassHeads));
        unsigned short *to = scores + pass * passStride + start * kPassHeads;
        const unsigned char *panels = ring.panels[place.stage][0] + (isTeam ? kvHead * kPanelBytes : 0);
        score_stage(panels, PanelRing<kPieces>::kBytes, numbers, unit, start, to, totals[pass]);
      }
      /* Nobody reads this stage any more. */
      if constexpr (isTeam) __syncthreads();
      else __syncwarp();
      place.next();
    }
    float *parts = scoring.parts + (size_t(number) * kvHeads + kvHead) * passes * kPassHeads;
#pragma unroll
    for (int pass = 0; pass < kPasses; pass++) {
      if (pass * kPassHeads >= group) break;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float sum = log_sum(totals[pass][h]);
        const int own = pass * kPassHeads + head + h;
        if (lane < 2) parts[own] = own < group ? sum : -infinity();
      }
    }
  }
}

/* A thread block of a kernel for groups of query heads that take at most kPasses passes. */
template <int kPasses>
__device__ __forceinline__ void score_block(const Scoring &scoring, uint64 *counts) {
  extern __shared__ __align__(16) unsigned char shared[];
  require_shared_memory(kSharedBytes);
  if (counts && blockIdx.x == 0) {
    wait_for_previous();
    forget_fresh(scoring.plan, counts);
  }
  const int kvHeads = scoring.pool.kvHeads, warp = threadIdx.x >> 5, heads = min(kvHeads, kWarps), teams = kWarps / heads;
  const int team = blockIdx.x * teams + warp / heads, allTeams = gridDim.x * teams;
  const int first = int((long long)(scoring.plan.unitCount) * team / allTeams);
  const int end = int((long long)(scoring.plan.unitCount) * (team + 1) / allTeams);
  if (warp >= teams * heads || first == end) {
    wait_for_previous();
    return;
  }
  RingPlace place = {0, 0};
  if constexpr (kPasses == 1) {
    if (kvHeads == kWarps && scoring.pool.blockShift == kPanelShift) {
      TeamShared &team = *reinterpret_cast<TeamShared *>(shared);
      team.ring.open();
      score_units<kPasses>(scoring, first, end, warp, team.ring, team.queries[warp], place);
      return;
    }
  }
  WarpShared &own = reinterpret_cast<WarpShared *>(shared)[warp];
  own.ring.open();
  for (int kvHead = warp % heads; kvHead < kvHeads; kvHead += heads) {
    score_units<kPasses>(scoring, first, end, kvHead, own.ring, own.queries, place);
  }
}

/* Groups of at most kPassHeads query heads. */
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
score_shadows(const bf16 *qkv, const int *step, const int *choicePlace, const float2 *rotations,
              const unsigned char *shadows, int queryHeads, int kvHeads, int rotaryDim, int blockShift,
              float scaleLog2, unsigned short *scores, float *parts, uint64 *counts) {
  let_next_begin();
  const ChoicePlan plan = choice_plan(step, choicePlace);
  score_block<1>({plan, {shadows, kvHeads, blockShift}, qkv, rotations, queryHeads, rotaryDim, scaleLog2, scores, parts},
                 counts);
}

/* Groups of any size. */
extern "C" __global__ void __launch_bounds__(kThreads, 1)
score_shadows_wide(const bf16 *qkv, const int *step, const int *choicePlace, const float2 *rotations,
                   const unsigned char *shadows, int queryHeads, int kvHeads, int rotaryDim, int blockShift,
                   float scaleLog2, unsigned short *scores, float *parts, uint64 *counts) {
  let_next_begin();
  const ChoicePlan plan = choice_plan(step, choicePlace);
  score_block<passes_of(kMaxGroup)>(
      {plan, {shadows, kvHeads, blockShift}, qkv, rotations, queryHeads, rotaryDim, scaleLog2, scores, parts}, counts);
}
