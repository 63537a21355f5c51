/*
 * Scores of the tokens that a step's rows choose from, in one layer, over the shadows of their K (choice_plan.cuh has the
 * plan, the scores and the parts; shadow.cuh the shadows).
 *
 *   qkv as in qkv_finish.cu: q normed and not rotated; rotations: (cos, sin) rows of rotaryDim / 2, at position 0
 *   shadows: this layer's; counts [seats] or null: set to 0 for entries whose seat is fresh
 *
 * MEMORY. Shadows are read once, 66 bytes a token and KV head of 128 dimensions; scores take 2 bytes a token and query
 * head, and stay in the L2 cache until choose_tokens.cu reads them, so shadows are the first that the cache gives up.
 * A warp has a ring of kRing panels in shared memory, which it fills by asynchronous copies from whatever units its thread
 * block has next. Codes are multiplied by matrix instructions for whole numbers. For 8 rows of 32,768 tokens it takes 77 us
 * on an H200 where the bytes take 32: what a warp does for a panel beside its products is more than they leave time for.
 *
 * A work is a unit for one KV head. Thread block b of n has works [b W / n, (b + 1) W / n), in the order entry, KV head,
 * unit, so that queries are rounded once for many units. Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_counts.cuh"
#include "choice_plan.cuh"
#include "mma.cuh"
#include "rounded_queries.cuh"
#include "shadow.cuh"

constexpr int kThreads = 512, kWarps = kThreads / 32;
/* Panels of a warp that are under way or worked on. */
constexpr int kRing = HEAD_DIM > 128 ? 2 : 4;
constexpr int kSharedBytes = kWarps * kRing * kPanelBytes;
/* Multiplications of 32 numbers for a whole head. */
constexpr int kSteps = kShadowVectors;

/* A running sum of 2^z, in units of 2^greatest. */
struct PowerSum {
  float greatest, sum;
};

__device__ __forceinline__ void add_power(PowerSum &total, float z) {
  const float distance = z - total.greatest, power = exp2_fast(-fabsf(distance));
  if (distance > 0) {
    total.sum = total.sum * power + 1.0f, total.greatest = z;
  } else {
    total.sum += power;
  }
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

/* A unit for one KV head: the panels that its tokens are in, counted from the first of the segment's blocks. */
struct Work {
  ChoiceUnit unit;
  int index, kvHead; /* of the unit */
  int firstPanel, panels;
  int hasQueries;  /* those of the work before */
};

__device__ __forceinline__ Work work_at(const ChoicePlan &plan, int number, int kvHeads) {
  const ChoiceEntry &entry = plan.entries[plan.units[number / kvHeads].entry];
  const int own = number - entry.firstUnit * kvHeads;
  Work work;
  work.kvHead = own / entry.unitCount, work.index = entry.firstUnit + own % entry.unitCount;
  work.unit = plan.units[work.index];
  work.firstPanel = work.unit.firstToken / kPanelTokens;
  work.panels = (work.unit.firstToken % kPanelTokens + work.unit.tokens + kPanelTokens - 1) / kPanelTokens;
  work.hasQueries = false;
  return work;
}

/* Works that a thread block looks up at once; and as many as that may a warp be ahead of another. */
constexpr int kListed = 32, kTurns = 4;

/* Shared memory of a thread block beside its rings. */
struct Shared {
  Queries queries;
  float rotated[kWarps][HEAD_DIM];
  Work works[kListed];
  float2 sums[kTurns][kWarps][kMaxGroup]; /* of warps over a work */
  int arrived[kTurns];
};

/* Where shadows are, and how a block's are arranged. */
struct ShadowPool {
  const unsigned char *first;
  int kvHeads, blockShift;
};

/* A panel of a run of blocks, whose first block id is step[blocks]. */
__device__ __forceinline__ const unsigned char *panel_of(const ShadowPool &pool, const int *step, int blocks, int panel,
                                                         int kvHead) {
  const TokenPlace place = place_in(step, blocks, panel * kPanelTokens, pool.blockShift);
  return pool.first + panel_index(place.block, place.token, kvHead, pool.kvHeads, pool.blockShift) * kPanelBytes;
}

/* What a warp copies next: panels warp, warp + kWarps, ... of the listed works, one after the other. */
struct Ahead {
  int work, panel;
  int stage;

  /* Starts the copy of the next panel, if there is one. */
  __device__ __forceinline__ void copy_panel(const Work *works, int count, const int *step, const ShadowPool &pool,
                                             unsigned char *ring, uint64 policy) {
    while (work < count && panel >= works[work].panels) work++, panel = threadIdx.x >> 5;
    if (work < count) {
      const Work &own = works[work];
      const unsigned char *from = panel_of(pool, step, own.unit.blocks, own.firstPanel + panel, own.kvHead);
      unsigned char *to = ring + stage * kPanelBytes;
#pragma unroll
      for (int start = 0; start < kPanelBytes; start += 32 * kVectorBytes) {
        const int i = start + (threadIdx.x & 31) * kVectorBytes;
        if (i < kPanelBytes) copy_vector(to + i, from + i, policy);
      }
      panel += kWarps, stage = (stage + 1) % kRing;
    }
    commit_copies();
  }
};

/* A lane's numbers of the query heads of a pass, as multiply_codes takes them. */
struct Numbers {
  int words[kSteps][2];
  int zero[2];
  float factor[2];
};

/* Of a pass with `heads` query heads; zeros for the others. */
__device__ __forceinline__ Numbers load_numbers(const Queries &queries, int pass, int heads) {
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
  const int *words = reinterpret_cast<const int *>(queries.words[pass]);
  Numbers numbers;
#pragma unroll
  for (int s = 0; s < kSteps; s++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      numbers.words[s][half] = g < heads ? words[(half * kWords + 4 * s + t) * kPassHeads + g] : 0;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int head = 2 * (t % 2) + h;
    numbers.zero[h] = head < heads ? queries.zero[pass * kPassHeads + head] : 0;
    numbers.factor[h] = head < heads ? queries.factor[pass * kPassHeads + head] : 0.0f;
  }
  return numbers;
}

/*
 * Products of a panel's codes with four query heads. A lane gets those of heads 2 (t % 2) and the next with token g, or
 * with token g + 8 where t is 2 or 3: sums of queries behind the fourth are of none.
 */
__device__ __forceinline__ void multiply_panel(const unsigned char *panel, const Numbers &numbers, int (&products)[2]) {
  const int lane = threadIdx.x & 31;
  int sums[4] = {-numbers.zero[0], -numbers.zero[1], -numbers.zero[0], -numbers.zero[1]};
#pragma unroll
  for (int s = 0; s < kSteps; s += 2) {
    /* Two vectors of 16 tokens, the first twice where there is no second. */
    const int vector = min(s + lane / 16, kSteps - 1);
    uint32 words[4];
    load_matrices(words, reinterpret_cast<const bf16 *>(panel + (vector * kPanelTokens + lane % 16) * kVectorBytes));
#pragma unroll
    for (int i = 0; i < 2 && s + i < kSteps; i++) {
      const uint32 one = words[2 * i], other = words[2 * i + 1];
      const uint32 codes[4] = {one & 0x0f0f0f0fu, other & 0x0f0f0f0fu, one >> 4 & 0x0f0f0f0fu, other >> 4 & 0x0f0f0f0fu};
      multiply_codes(sums, codes, numbers.words[s + i][0], numbers.words[s + i][1]);
    }
  }
  const int given[2] = {__shfl_xor_sync(kAllLanes, sums[2], 2), __shfl_xor_sync(kAllLanes, sums[3], 2)};
#pragma unroll
  for (int h = 0; h < 2; h++) products[h] = lane % 4 < 2 ? sums[h] : given[h];
}

/*
 * Scores of a panel's tokens in four query heads, of which there are `heads`. `first` is the panel's first token counted
 * from the unit's, which may be before it. Adds to `totals` what the lane has.
 */
__device__ __forceinline__ void score_panel(const unsigned char *panel, const Numbers &numbers, const ChoiceUnit &unit,
                                            int first, int heads, unsigned short *scores, PowerSum (&totals)[2]) {
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, token = t < 2 ? g : g + 8, head = 2 * (t % 2);
  int products[2];
  multiply_panel(panel, numbers, products);
  const float scale = half_to_float(*reinterpret_cast<const unsigned short *>(panel + kScalesAt + 2 * token));
  const int i = first + token;
  if (i < 0 || i >= unit.tokens) return;
  uint32 pair = 0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float z = __fmul_rn(__fmul_rn(float(products[h]), scale), numbers.factor[h]);
    const bool isThere = head + h < heads;
    if (isThere) add_power(totals[h], z);
    const uint32 half = !isThere ? kNoScore : i < unit.forced ? kForcedScore : to_finite_half(z);
    pair |= half << 16 * h;
  }
  *reinterpret_cast<uint32 *>(scores + size_t(unit.number + i) * kPassHeads + head) = pair;
}

/* The sum over the lanes whose numbers differ in the bits from kLeast to kMost; all of them get it. */
template <int kMost, int kLeast>
__device__ __forceinline__ void add_lanes(PowerSum &total) {
  float top = total.greatest;
#pragma unroll
  for (int step = kMost; step >= kLeast; step >>= 1) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
  float sum = total.sum == 0 ? 0.0f : total.sum * exp2_fast(total.greatest - top);
#pragma unroll
  for (int step = kMost; step >= kLeast; step >>= 1) sum += __shfl_xor_sync(kAllLanes, sum, step);
  total.greatest = top, total.sum = sum;
}

/* Whether this warp is the last of the thread block's that comes here. */
__device__ __forceinline__ bool is_last(int &arrived) {
  __threadfence_block();
  __syncwarp();
  int isLast = 0;
  if ((threadIdx.x & 31) == 0) {
    isLast = atomicAdd(&arrived, 1) == kWarps - 1;
    if (isLast) arrived = 0;
  }
  isLast = __shfl_sync(kAllLanes, isLast, 0);
  __threadfence_block();
  return isLast != 0;
}

/* parts [passes][kPassHeads] of a work: the sum over the thread block, by the warp that has its own last. */
template <int kPasses>
__device__ __forceinline__ void write_parts(PowerSum (&totals)[kPasses][2], float2 (&sums)[kWarps][kMaxGroup],
                                            int &arrived, int passes, float2 *parts) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int pass = 0; pass < kPasses; pass++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      add_lanes<16, 2>(totals[pass][h]);
      const float2 sum = make_float2(totals[pass][h].greatest, totals[pass][h].sum);
      if (lane < 2) sums[warp][pass * kPassHeads + 2 * lane + h] = sum;
    }
  }
  if (!is_last(arrived)) return;
  /* Two heads at a time, in sixteen lanes each. */
  for (int head = lane / kWarps; head < passes * kPassHeads; head += 32 / kWarps) {
    const float2 own = sums[lane % kWarps][head];
    PowerSum total = {own.x, own.y};
    add_lanes<kWarps / 2, 1>(total);
    if (lane % kWarps == 0) parts[head] = make_float2(total.greatest, total.sum);
  }
}

/* Everything that the works of a thread block read, and where their scores go. */
struct Scoring {
  const ChoicePlan &plan;
  ShadowPool pool;
  const bf16 *qkv;
  const float2 *rotations;
  int queryHeads, rotaryDim;
  float scaleLog2;
  unsigned short *scores;
  float2 *parts;
};

/* The thread block rounds the queries of a work's KV head; no warp needs those before any more. */
__device__ __forceinline__ void round_queries(const Scoring &scoring, const Work &work, Shared &shared) {
  const int kvHeads = scoring.pool.kvHeads, group = scoring.queryHeads / kvHeads, warp = threadIdx.x >> 5;
  const ChoiceEntry &entry = scoring.plan.entries[work.unit.entry];
  const size_t heads = size_t(entry.row) * (scoring.queryHeads + 2 * kvHeads) + work.kvHead * group;
  const float2 *row = scoring.rotations + (long long)(entry.position - work.unit.offset) * (scoring.rotaryDim / 2);
  __syncthreads();
  for (int h = warp; h < group; h += kWarps) {
    const bf16 *q = scoring.qkv + (heads + h) * HEAD_DIM;
    round_query(q, row, scoring.rotaryDim, scoring.scaleLog2, shared.rotated[warp], shared.queries, h);
  }
  __syncthreads();
}

/* Looks up works [first, first + count) of the plan. */
__device__ __forceinline__ void list_works(const Scoring &scoring, int first, int count, Shared &shared) {
  __syncthreads(); /* no warp reads those before any more */
  if (int(threadIdx.x) < count) {
    Work work = work_at(scoring.plan, first + threadIdx.x, scoring.pool.kvHeads);
    if (threadIdx.x > 0) {
      const Work before = work_at(scoring.plan, first + threadIdx.x - 1, scoring.pool.kvHeads);
      work.hasQueries = work.unit.entry == before.unit.entry && work.kvHead == before.kvHead &&
                        work.unit.offset == before.unit.offset;
    }
    shared.works[threadIdx.x] = work;
  }
  if (threadIdx.x < kTurns) shared.arrived[threadIdx.x] = 0;
  __syncthreads();
}

/* `count` works that are listed, whose groups of query heads take at most so many passes. */
template <int kPasses>
__device__ __forceinline__ void score_works(const Scoring &scoring, int count, Shared &shared, unsigned char *ring) {
  const int *step = scoring.plan.step;
  const int kvHeads = scoring.pool.kvHeads, group = scoring.queryHeads / kvHeads, passes = passes_of(group);
  const uint64 policy = evict_first();
  Ahead ahead = {0, int(threadIdx.x) >> 5, 0};
  for (int i = 0; i + 1 < kRing; i++) ahead.copy_panel(shared.works, count, step, scoring.pool, ring, policy);
  Numbers numbers;
  int stage = 0;
  for (int number = 0; number < count; number++) {
    const Work &work = shared.works[number];
    if (!work.hasQueries) {
      round_queries(scoring, work, shared);
      numbers = load_numbers(shared.queries, 0, min(group, kPassHeads));
    } else if (number % kTurns == 0) {
      __syncthreads(); /* so that no warp gets further ahead */
    }
    const ChoiceEntry &entry = scoring.plan.entries[work.unit.entry];
    const int stride = entry.scoreStride, panels = work.panels;
    unsigned short *scores = scoring.scores + scores_at(entry, work.kvHead, kvHeads, passes);
    PowerSum totals[kPasses][2];
#pragma unroll
    for (int pass = 0; pass < kPasses; pass++) totals[pass][0] = totals[pass][1] = {-infinity(), 0};
    for (int panel = threadIdx.x >> 5; panel < panels; panel += kWarps) {
      wait_copies<kRing - 2>();
      __syncwarp(); /* all lanes' copies of this panel have landed, and no lane reads the one before any more */
      ahead.copy_panel(shared.works, count, step, scoring.pool, ring, policy);
      const unsigned char *codes = ring + stage * kPanelBytes;
      const int start = (work.firstPanel + panel) * kPanelTokens - work.unit.firstToken;
#pragma unroll
      for (int pass = 0; pass < kPasses; pass++) {
        if (pass * kPassHeads >= group) break;
        const int heads = min(kPassHeads, group - pass * kPassHeads);
        if (kPasses > 1) numbers = load_numbers(shared.queries, pass, heads);
        unsigned short *own = scores + size_t(pass) * stride * kPassHeads;
        score_panel(codes, numbers, work.unit, start, heads, own, totals[pass]);
        __syncwarp();
      }
      stage = (stage + 1) % kRing;
    }
    float2 *parts = scoring.parts + (size_t(work.index) * kvHeads + work.kvHead) * passes * kPassHeads;
    const int turn = number % kTurns;
    write_parts<kPasses>(totals, shared.sums[turn], shared.arrived[turn], passes, parts);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, HEAD_DIM > 128 ? 1 : 2)
score_shadows(const bf16 *qkv, const int *step, const int *choicePlace, const float2 *rotations,
              const unsigned char *shadows, int queryHeads, int kvHeads, int rotaryDim, int blockShift,
              float scaleLog2, unsigned short *scores, float2 *parts, uint64 *counts) {
  extern __shared__ __align__(16) unsigned char rings[];
  __shared__ Shared shared;
  let_next_begin();
  const ChoicePlan plan = choice_plan(step, choicePlace);
  wait_for_previous();
  require_shared_memory(kSharedBytes);
  if (counts && blockIdx.x == 0) forget_fresh(plan, counts);
  const long long works = (long long)(plan.unitCount) * kvHeads;
  const int first = int(works * blockIdx.x / gridDim.x), end = int(works * (blockIdx.x + 1) / gridDim.x);
  if (first == end) return;
  const Scoring scoring = {plan,       {shadows, kvHeads, blockShift}, qkv, rotations, queryHeads, rotaryDim, scaleLog2,
                           scores, parts};
  unsigned char *ring = rings + (threadIdx.x >> 5) * kRing * kPanelBytes;
  for (int start = first; start < end; start += kListed) {
    const int count = min(kListed, end - start);
    list_works(scoring, start, count, shared);
    if (queryHeads / kvHeads <= kPassHeads) {
      score_works<1>(scoring, count, shared, ring);
    } else {
      score_works<kMaxGroup / kPassHeads>(scoring, count, shared, ring);
    }
  }
}
