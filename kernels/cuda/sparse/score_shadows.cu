/*
 * Scores of the tokens that a step's rows choose from, in one layer, over the shadows of their K (choice_plan.cuh has the
 * plan, the scores and the parts; shadow.cuh the shadows).
 *
 *   qkv as in qkv_finish.cu: q normed and not rotated; rotations: (cos, sin) rows of rotaryDim / 2, at position 0
 *   shadows: this layer's; counts [seats] or null: set to 0 for entries whose seat is fresh
 *
 * MEMORY. Shadows are read once, 66 bytes a token and KV head of 128 dimensions; scores take 2 bytes a token and query
 * head, and stay in the L2 cache until choose_tokens.cu reads them, so shadows are read past it. A thread has two tokens
 * at a time and multiplies four query heads with them, whose numbers it reads from shared memory for both.
 *
 * Thread blocks of 256 are persistent; a unit of one KV head is theirs at a time. Oracle:
 * test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_plan.cuh"
#include "choice_counts.cuh"
#include "shadow.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32;
/* Tokens of a thread at a time; and as often as that in a unit. */
constexpr int kTokens = 2, kRounds = kUnitTokens / (kTokens * kThreads);
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

/* A token's codes and scale; zeros for none. */
struct Shadow {
  uint4 codes[kShadowVectors];
  float scale;
};

__device__ __forceinline__ Shadow load_shadow(const unsigned char *panel, int token) {
  Shadow shadow;
#pragma unroll
  for (int v = 0; v < kShadowVectors; v++) {
    shadow.codes[v] = __ldcs(reinterpret_cast<const uint4 *>(panel + (v * kPanelTokens + token) * kVectorBytes));
  }
  shadow.scale = half_to_float(*reinterpret_cast<const unsigned short *>(panel + kScalesAt + 2 * token));
  return shadow;
}

__device__ __forceinline__ void multiply(const Shadow (&shadows)[kTokens], const int4 *query,
                                         int (&sums)[kTokens][kPassHeads]) {
#pragma unroll
  for (int v = 0; v < kShadowVectors; v++) {
#pragma unroll
    for (int w = 0; w < 4; w++) {
      const int4 low = query[4 * v + w], high = query[kWords + 4 * v + w];
#pragma unroll
      for (int t = 0; t < kTokens; t++) {
        const uint4 &codes = shadows[t].codes[v];
        const uint32 both = w == 0 ? codes.x : w == 1 ? codes.y : w == 2 ? codes.z : codes.w;
        const int first = int(both & 0x0f0f0f0fu), second = int(both >> 4 & 0x0f0f0f0fu);
        sums[t][0] = __dp4a(second, high.x, __dp4a(first, low.x, sums[t][0]));
        sums[t][1] = __dp4a(second, high.y, __dp4a(first, low.y, sums[t][1]));
        sums[t][2] = __dp4a(second, high.z, __dp4a(first, low.z, sums[t][2]));
        sums[t][3] = __dp4a(second, high.w, __dp4a(first, low.w, sums[t][3]));
      }
    }
  }
}

/* Where the scores of an entry's query heads go, and which of the heads of a pass there are. */
struct ScoreRows {
  unsigned short *first;
  int stride, heads;
};

/* Four query heads over the tokens of a unit. Adds to `totals` what the thread's tokens have. */
__device__ __forceinline__ void score_pass(const ChoicePlan &plan, const ChoiceUnit &unit, const unsigned char *shadows,
                                           int kvHead, int kvHeads, int blockShift, const Queries &queries, int pass,
                                           const ScoreRows &rows, PowerSum (&totals)[kPassHeads]) {
#pragma unroll 1
  for (int round = 0; round < kRounds; round++) {
    const int first = round * kTokens * kThreads + threadIdx.x;
    if (first - int(threadIdx.x) >= unit.tokens) break;
    Shadow own[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; t++) {
      const int i = min(first + t * kThreads, unit.tokens - 1), token = unit.firstToken + i;
      const TokenPlace place = place_in(plan.step, unit.blocks, token, blockShift);
      const size_t panel = panel_index(place.block, place.token, kvHead, kvHeads, blockShift);
      own[t] = load_shadow(shadows + panel * kPanelBytes, place.token % kPanelTokens);
    }
    int sums[kTokens][kPassHeads] = {};
    multiply(own, queries.words[pass], sums);
#pragma unroll
    for (int t = 0; t < kTokens; t++) {
      const int i = first + t * kThreads;
      if (i >= unit.tokens) break;
#pragma unroll
      for (int h = 0; h < kPassHeads; h++) {
        if (h >= rows.heads) break;
        const int index = pass * kPassHeads + h;
        const float whole = float(sums[t][h] - queries.zero[index]);
        const float z = __fmul_rn(__fmul_rn(whole, own[t].scale), queries.factor[index]);
        add_power(totals[h], z);
        rows.first[size_t(h) * rows.stride + unit.number + i] = i < unit.forced ? 0x7c00 : to_finite_half(z);
      }
    }
  }
}

/* parts [kPassHeads] of a unit: the sum over the thread block. */
__device__ __forceinline__ void write_parts(PowerSum (&totals)[kPassHeads], int heads, float2 *parts) {
  __shared__ float2 warps[kWarps][kPassHeads];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int h = 0; h < kPassHeads; h++) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
      const float greatest = __shfl_xor_sync(kAllLanes, totals[h].greatest, step);
      merge_power(totals[h], greatest, __shfl_xor_sync(kAllLanes, totals[h].sum, step));
    }
    if (lane == 0) warps[warp][h] = make_float2(totals[h].greatest, totals[h].sum);
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
      PowerSum totals[kPassHeads];
#pragma unroll
      for (int h = 0; h < kPassHeads; h++) totals[h] = {-infinity(), 0};
      score_pass(plan, unit, shadows, work % kvHeads, kvHeads, blockShift, queries, pass,
                 {scores + at, entry.scoreStride, heads}, totals);
      write_parts(totals, heads, parts + size_t(work / kvHeads) * queryHeads + head);
    }
  }
}
