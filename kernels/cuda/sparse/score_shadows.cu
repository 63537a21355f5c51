/*
 * Scores of the tokens that a step's rows choose from, in one layer, over the shadows of their K (choice_plan.cuh has the
 * plan, the scores and the parts; shadow.cuh the shadows).
 *
 *   qkv as in qkv_finish.cu: q normed and not rotated; rotations: (cos, sin) rows of rotaryDim / 2, at position 0
 *   shadows: this layer's; counts [seats] or null: set to 0 for entries whose seat is fresh
 *
 * MEMORY. Shadows are read once, 66 bytes a token and KV head of 128 dimensions; scores take 2 bytes a token and query
 * head, and stay in the L2 cache until choose_tokens.cu reads them, so shadows are read past it. Codes are multiplied by
 * matrix instructions for whole numbers, whose order of a head's numbers is that in which lanes have loaded them. For 8 rows of
 * 32,768 tokens it takes 86 us on an H200 where the bytes take 32, and took 75 by products of four numbers (dp4a): what is
 * waited for is the latency of each unit's loads, one behind the other, so units should be longer and loaded ahead.
 *
 * Thread blocks of 256 are persistent; a unit of one KV head is theirs at a time. Oracle:
 * test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_plan.cuh"
#include "choice_counts.cuh"
#include "shadow.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32;
/* Multiplications of 16 tokens that a warp has under way, and the tokens of all of them. */
constexpr int kAhead = 2, kTileTokens = 16 * kAhead;
/* Multiplications of 32 numbers for a whole head. */
constexpr int kSteps = kShadowVectors;
constexpr int kWords = HEAD_DIM < 32 ? 4 : HEAD_DIM / 8;
constexpr int kQueryLimit = 127;

/* Queries in 8 bits, as they are multiplied with words of codes: first those of the lower 4 bits, then of the upper. */
struct Queries {
  int4 words[kMaxGroup / kPassHeads][2 * kWords];
  int zero[kMaxGroup]; /* what codes give that stand for 0 */
  float factor[kMaxGroup];
};

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

__device__ __forceinline__ void merge_power(PowerSum &total, float greatest, float sum) {
  if (sum == 0) return;
  const float top = fmaxf(total.greatest, greatest);
  total.sum = (total.sum == 0 ? 0.0f : total.sum * exp2_fast(total.greatest - top)) + sum * exp2_fast(greatest - top);
  total.greatest = top;
}

/* One warp: q [HEAD_DIM] rotated by a row of rotations, transformed, and rounded to 8 bits. */
__device__ __forceinline__ void round_query(const bf16 *q, const float2 *row, int rotaryDim, float scaleLog2, float *y,
                                            Queries &queries, int index) {
  const int lane = threadIdx.x & 31, half = rotaryDim / 2;
  for (int i = lane; i < HEAD_DIM; i += 32) {
    float x = to_float(q[i]);
    if (i < rotaryDim) {
      const float other = to_float(q[i < half ? i + half : i - half]);
      const float2 turn = row[i < half ? i : i - half];
      const float own = __fmul_rn(x, turn.x), crossed = __fmul_rn(other, turn.y);
      x = i < half ? __fsub_rn(own, crossed) : __fadd_rn(own, crossed);
    }
    y[i] = x;
  }
  transform(y);
  const float greatest = greatest_of(y), inverse = greatest > 0 ? __fdiv_rn(float(kQueryLimit), greatest) : 0.0f;
  /* One that is not finite, or too small to be divided by, scores every token 0. */
  const bool isZero = !(inverse > 0) || inverse - inverse != 0.0f;
  int sum = 0;
  int *words = reinterpret_cast<int *>(queries.words[index / kPassHeads]) + index % kPassHeads;
  for (int word = lane; word < 2 * kWords; word += 32) {
    uint32 four = 0;
    for (int i = 0; i < 4; i++) {
      const int d = 4 * word + i;
      const int number = isZero || d >= HEAD_DIM ? 0 : int(rintf(__fmul_rn(y[d], inverse)));
      sum += number;
      four |= uint32(number & 255) << 8 * i;
    }
    words[word * kPassHeads] = int(four);
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    queries.zero[index] = kShadowZero * sum;
    queries.factor[index] = isZero ? 0.0f : __fmul_rn(__fdiv_rn(greatest, float(kQueryLimit)), scaleLog2);
  }
  __syncwarp();
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

/* A lane's quarter of a token's codes: words kSteps * t and those behind it. */
struct Quarter {
  uint32 words[kSteps];
};

__device__ __forceinline__ Quarter load_quarter(const unsigned char *panel, int token) {
  const int first = (threadIdx.x & 3) * kSteps;
  Quarter quarter;
  if (kSteps % 4 == 0) {
#pragma unroll
    for (int v = 0; v < kSteps / 4; v++) {
      const uint4 four = __ldcs(
          reinterpret_cast<const uint4 *>(panel + ((first / 4 + v) * kPanelTokens + token) * kVectorBytes));
      quarter.words[4 * v] = four.x, quarter.words[4 * v + 1] = four.y;
      quarter.words[4 * v + 2] = four.z, quarter.words[4 * v + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
      const unsigned char *vector = panel + ((first + s) / 4 * kPanelTokens + token) * kVectorBytes;
      quarter.words[s] = __ldcs(reinterpret_cast<const uint32 *>(vector + (first + s) % 4 * 4));
    }
  }
  return quarter;
}

/* Where a token's shadow is. */
struct ShadowPlace {
  const unsigned char *panel;
  int token;
};

/* Where the scores of an entry's query heads go, and which of the heads of a pass there are. */
struct ScoreRows {
  unsigned short *first;
  int stride, heads;
};

/* Everything of a unit that its passes read. */
struct UnitWork {
  const ChoicePlan &plan;
  const ChoiceUnit &unit;
  const unsigned char *shadows;
  int kvHead, kvHeads, blockShift;
};

__device__ __forceinline__ ShadowPlace shadow_place(const UnitWork &work, int i) {
  const int token = work.unit.firstToken + min(i, work.unit.tokens - 1);
  const TokenPlace place = place_in(work.plan.step, work.unit.blocks, token, work.blockShift);
  const size_t panel = panel_index(place.block, place.token, work.kvHead, work.kvHeads, work.blockShift);
  return {work.shadows + panel * kPanelBytes, place.token % kPanelTokens};
}

/*
 * Four query heads over the tokens of a unit, 16 at a time and kAhead times that under way. Adds to `totals` what the lane
 * has: of heads 2 (t % 2) and the next, tokens g or g + 8.
 */
__device__ __forceinline__ void score_pass(const UnitWork &work, const Queries &queries, int pass, const ScoreRows &rows,
                                           PowerSum (&totals)[2]) {
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, head = 2 * (t % 2);
  int numbers[kSteps][2];
  const int *words = reinterpret_cast<const int *>(queries.words[pass]);
#pragma unroll
  for (int s = 0; s < kSteps; s++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      numbers[s][half] = g < rows.heads ? words[(half * kWords + kSteps * t + s) * kPassHeads + g] : 0;
    }
  }
#pragma unroll 1
  for (int base = (threadIdx.x >> 5) * kTileTokens; base < work.unit.tokens; base += kWarps * kTileTokens) {
    Quarter quarters[kAhead][2];
    float scales[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      const int first = base + a * 16 + g;
      const ShadowPlace places[2] = {shadow_place(work, first), shadow_place(work, first + 8)};
      quarters[a][0] = load_quarter(places[0].panel, places[0].token);
      quarters[a][1] = load_quarter(places[1].panel, places[1].token);
      const ShadowPlace own = t < 2 ? places[0] : places[1];
      scales[a] = half_to_float(*reinterpret_cast<const unsigned short *>(own.panel + kScalesAt + 2 * own.token));
    }
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      int sums[4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; s++) {
        const uint32 one = quarters[a][0].words[s], other = quarters[a][1].words[s];
        const uint32 codes[4] = {one & 0x0f0f0f0fu, other & 0x0f0f0f0fu, one >> 4 & 0x0f0f0f0fu, other >> 4 & 0x0f0f0f0fu};
        multiply_codes(sums, codes, numbers[s][0], numbers[s][1]);
      }
      /* Sums of queries behind the fourth are of none: their lanes take over those of tokens g + 8. */
      const int given[2] = {__shfl_xor_sync(kAllLanes, sums[2], 2), __shfl_xor_sync(kAllLanes, sums[3], 2)};
      const int i = base + a * 16 + g + (t < 2 ? 0 : 8);
      if (i >= work.unit.tokens) continue;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if (head + h >= rows.heads) break;
        const int index = pass * kPassHeads + head + h;
        const float whole = float((t < 2 ? sums[h] : given[h]) - queries.zero[index]);
        const float z = __fmul_rn(__fmul_rn(whole, scales[a]), queries.factor[index]);
        add_power(totals[h], z);
        rows.first[size_t(head + h) * rows.stride + work.unit.number + i] =
            i < work.unit.forced ? 0x7c00 : to_finite_half(z);
      }
    }
  }
}

/* parts [kPassHeads] of a unit: the sum over the thread block. */
__device__ __forceinline__ void write_parts(PowerSum (&totals)[2], int heads, float2 *parts) {
  __shared__ float2 warps[kWarps][kPassHeads];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int step = 16; step > 1; step >>= 1) {
      const float greatest = __shfl_xor_sync(kAllLanes, totals[h].greatest, step);
      merge_power(totals[h], greatest, __shfl_xor_sync(kAllLanes, totals[h].sum, step));
    }
    if (lane < 2) warps[warp][2 * lane + h] = make_float2(totals[h].greatest, totals[h].sum);
  }
  __syncthreads();
  const int h = threadIdx.x;
  if (h < heads) {
    PowerSum total = {-infinity(), 0};
    for (int w = 0; w < kWarps; w++) merge_power(total, warps[w][h].x, warps[w][h].y);
    parts[h] = make_float2(total.greatest, total.sum);
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
score_shadows(const bf16 *qkv, const int *step, const int *choicePlace, const float2 *rotations,
              const unsigned char *shadows, int queryHeads, int kvHeads, int rotaryDim, int blockShift,
              float scaleLog2, unsigned short *scores, float2 *parts, uint64 *counts) {
  __shared__ Queries queries;
  __shared__ float rotated[kWarps][HEAD_DIM];
  let_next_begin();
  const ChoicePlan plan = choice_plan(step, choicePlace);
  const int group = queryHeads / kvHeads, warp = threadIdx.x >> 5;
  wait_for_previous();
  if (counts && blockIdx.x == 0) forget_fresh(plan, counts);
  for (int work = blockIdx.x; work < plan.unitCount * kvHeads; work += gridDim.x) {
    const ChoiceUnit unit = plan.units[work / kvHeads];
    const ChoiceEntry &entry = plan.entries[unit.entry];
    const int firstHead = work % kvHeads * group;
    const bf16 *q = qkv + (size_t(entry.row) * (queryHeads + 2 * kvHeads) + firstHead) * HEAD_DIM;
    const float2 *row = rotations + (long long)(entry.position - unit.offset) * (rotaryDim / 2);
    for (int h = warp; h < group; h += kWarps) {
      round_query(q + h * HEAD_DIM, row, rotaryDim, scaleLog2, rotated[warp], queries, h);
    }
    __syncthreads();
    for (int pass = 0; pass * kPassHeads < group; pass++) {
      const int head = firstHead + pass * kPassHeads, heads = min(kPassHeads, group - pass * kPassHeads);
      const size_t at = size_t(entry.scoreStart) * queryHeads + size_t(head) * entry.scoreStride;
      PowerSum totals[2] = {{-infinity(), 0}, {-infinity(), 0}};
      const UnitWork own = {plan, unit, shadows, work % kvHeads, kvHeads, blockShift};
      score_pass(own, queries, pass, {scores + at, entry.scoreStride, heads}, totals);
      write_parts(totals, heads, parts + size_t(work / kvHeads) * queryHeads + head);
    }
  }
}
