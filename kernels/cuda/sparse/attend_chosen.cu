/*
 * Attention of the rows that choose: over the tokens of their lists (choose_tokens.cu), where they stand in the pool, and
 * over their tails. K is stored rotated by its own chain's position, so q is rotated once for each offset that a stretch of
 * the list has.
 *
 *   out [rows][queryHeads][HEAD_DIM] bf16; partials float32 [entries][maxSplits][queryHeads][HEAD_DIM] and partialSums
 *   float2 [entries][maxSplits][queryHeads]: the greatest score of a part in log2 units, and the sum of 2^(score - that)
 *   arrivals [entries][kvHeads]: 0 between launches
 *
 * MEMORY. 512 bytes a token and KV head of 128 dimensions, K and V once each in rows of 256 bytes. A part of kPartTokens
 * tokens has a thread block of four warps; a group of lanes has a token, 16 bytes each, and several under way. Products
 * are by plain multiplications: with four query heads for each row they take less time than its bytes. The thread block of
 * an entry and KV head that comes last adds the parts up, in their order.
 *
 * Grid: (maxSplits, rows that choose at most * kvHeads). Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_plan.cuh"
#include "heads.cuh"

constexpr int kThreads = 128, kPartTokens = 256;

/* Lanes that share a row of HEAD_DIM numbers, eight each: a power of two. */
__host__ __device__ constexpr int lanes_of_row(int lanes) { return lanes * 8 >= HEAD_DIM ? lanes : lanes_of_row(2 * lanes); }
constexpr int kRowLanes = lanes_of_row(2);
constexpr int kGroups = kThreads / kRowLanes;
/* Tokens that a group of lanes has under way, K and V of each. */
constexpr int kAhead = 2;
/* Of no token: far below any score, and a number whose distance from itself is one. */
constexpr float kLeastScore = -1e30f;

struct Part {
  int2 tokens[kPartTokens]; /* slot, offset */
  float queries[kPassHeads][HEAD_DIM];
  float sums[kGroups][kPassHeads][HEAD_DIM];
  float2 totals[kGroups][kPassHeads];
  int runEnd;
};

struct Lane {
  int group, first; /* the row's group of lanes, and the first of the lane's eight dimensions */
  bool isUsed;
};

__device__ __forceinline__ Lane lane_of_thread() {
  const int lane = threadIdx.x % kRowLanes;
  return {int(threadIdx.x) / kRowLanes, 8 * lane, 8 * lane < HEAD_DIM};
}

__device__ __forceinline__ uint4 load_row(const bf16 *row, const Lane &lane) {
  return lane.isUsed ? *reinterpret_cast<const uint4 *>(row + lane.first) : make_uint4(0, 0, 0, 0);
}

/* What a group of lanes has of some tokens: the greatest score, the sum of 2^(score - that), and their V by these weights. */
struct Sums {
  float greatest[kPassHeads], total[kPassHeads], values[kPassHeads][8];
};

/* q of `heads` query heads, rotated by a row of rotations and scaled; zeros for the others. */
__device__ __forceinline__ void rotate_queries(Part &part, const bf16 *q, int heads, const float2 *row, int rotaryDim,
                                               float scaleLog2) {
  const int half = rotaryDim / 2;
  for (int i = threadIdx.x; i < kPassHeads * HEAD_DIM; i += kThreads) {
    const int head = i / HEAD_DIM, d = i % HEAD_DIM;
    float x = 0;
    if (head < heads) {
      x = to_float(q[i]);
      if (d < rotaryDim) {
        const bool isFirst = d < half;
        const float other = to_float(q[isFirst ? i + half : i - half]);
        const float2 turn = row[isFirst ? d : d - half];
        x = x * turn.x + (isFirst ? -other : other) * turn.y;
      }
    }
    part.queries[head][d] = x * scaleLog2;
  }
}

/* The scores of a row of K, which all lanes of its group get. */
__device__ __forceinline__ void score_row(const uint4 &row, const float (&q)[kPassHeads][8], float (&scores)[kPassHeads]) {
  float k[8];
  unpack8(row, k);
#pragma unroll
  for (int h = 0; h < kPassHeads; h++) {
    scores[h] = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) scores[h] += q[h][i] * k[i];
  }
#pragma unroll
  for (int h = 0; h < kPassHeads; h++) {
#pragma unroll
    for (int step = kRowLanes / 2; step > 0; step >>= 1) scores[h] += __shfl_xor_sync(kAllLanes, scores[h], step);
  }
}

/* Adds tokens of these scores, of which the first `count` are there. */
__device__ __forceinline__ void add_rows(Sums &sums, const float (&scores)[kAhead][kPassHeads], const uint4 (&rows)[kAhead],
                                         int count) {
  float weights[kAhead][kPassHeads];
#pragma unroll
  for (int h = 0; h < kPassHeads; h++) {
    float greatest = sums.greatest[h];
#pragma unroll
    for (int a = 0; a < kAhead; a++) greatest = a < count ? fmaxf(greatest, scores[a][h]) : greatest;
    const float before = exp2_fast(sums.greatest[h] - greatest);
    sums.greatest[h] = greatest, sums.total[h] *= before;
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      weights[a][h] = a < count ? exp2_fast(scores[a][h] - greatest) : 0.0f;
      sums.total[h] += weights[a][h];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sums.values[h][i] *= before;
  }
#pragma unroll
  for (int a = 0; a < kAhead; a++) {
    float v[8];
    unpack8(rows[a], v);
#pragma unroll
    for (int h = 0; h < kPassHeads; h++) {
#pragma unroll
      for (int i = 0; i < 8; i++) sums.values[h][i] += weights[a][h] * v[i];
    }
  }
}

/* Adds tokens [first, end), which have one offset: rows of K and V of kAhead tokens are under way at a time. */
__device__ __forceinline__ void add_run(const Part &part, int first, int end, const bf16 *pool, const HeadShape &shape,
                                        int kvHead, Sums &sums) {
  const Lane lane = lane_of_thread();
  const size_t toValue = size_t(shape.blockTokens) * HEAD_DIM;
  float q[kPassHeads][8];
#pragma unroll
  for (int h = 0; h < kPassHeads; h++) {
#pragma unroll
    for (int i = 0; i < 8; i++) q[h][i] = lane.isUsed ? part.queries[h][lane.first + i] : 0.0f;
  }
  for (int base = first; base < end; base += kGroups * kAhead) {
    uint4 keys[kAhead], values[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      const int token = min(base + a * kGroups + lane.group, end - 1);
      const bf16 *row = pool + key_offset(shape, part.tokens[token].x, kvHead);
      keys[a] = load_row(row, lane), values[a] = load_row(row + toValue, lane);
    }
    float scores[kAhead][kPassHeads];
#pragma unroll
    for (int a = 0; a < kAhead; a++) score_row(keys[a], q, scores[a]);
    /* Tokens of a group are kGroups apart, so those that are there come first. */
    const int left = end - base - lane.group;
    if (left > 0) add_rows(sums, scores, values, (left + kGroups - 1) / kGroups);
  }
}

/* All tokens of the part, one run of equal offsets after the other. Leaves each group's sums in shared memory. */
__device__ __forceinline__ void add_tokens(Part &part, int count, const bf16 *q, int heads, const float2 *rotations,
                                           int position, const bf16 *pool, const HeadShape &shape, int kvHead,
                                           float scaleLog2) {
  const Lane lane = lane_of_thread();
  Sums sums = {};
#pragma unroll
  for (int h = 0; h < kPassHeads; h++) sums.greatest[h] = kLeastScore;
  for (int first = 0; first < count;) {
    const int offset = part.tokens[first].y;
    if (threadIdx.x == 0) part.runEnd = count;
    __syncthreads();
    for (int i = first + threadIdx.x; i < count; i += kThreads) {
      if (part.tokens[i].y != offset) {
        atomicMin(&part.runEnd, i);
        break;
      }
    }
    const float2 *row = rotations + (long long)(position - offset) * (shape.rotaryDim / 2);
    rotate_queries(part, q, heads, row, shape.rotaryDim, scaleLog2);
    __syncthreads();
    const int end = part.runEnd;
    add_run(part, first, end, pool, shape, kvHead, sums);
    __syncthreads();
    first = end;
  }
#pragma unroll
  for (int h = 0; h < kPassHeads; h++) {
    if (lane.first == 0) part.totals[lane.group][h] = make_float2(sums.greatest[h], sums.total[h]);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (lane.isUsed) part.sums[lane.group][h][lane.first + i] = sums.values[h][i];
    }
  }
  __syncthreads();
}

/* A thread's number of the part's sum over its groups of lanes, and the head's greatest score and total. */
__device__ __forceinline__ float merge_groups(const Part &part, int head, int d, float2 &total) {
  float greatest = kLeastScore, sum = 0, all = 0;
#pragma unroll
  for (int g = 0; g < kGroups; g++) greatest = fmaxf(greatest, part.totals[g][head].x);
#pragma unroll
  for (int g = 0; g < kGroups; g++) {
    const float weight = exp2_fast(part.totals[g][head].x - greatest);
    sum += weight * part.sums[g][head][d], all += weight * part.totals[g][head].y;
  }
  total = make_float2(greatest, all);
  return sum;
}

/* The thread block's tokens: those of the list, and behind them those of the tail. */
__device__ __forceinline__ void load_tokens(Part &part, const ChoicePlan &plan, const ChoiceEntry &entry,
                                            const int2 *list, int first, int count, int blockShift) {
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int index = first + i - entry.take;
    if (index < 0) {
      part.tokens[i] = list[first + i];
      continue;
    }
    const TokenPlace place = place_in(plan.step, entry.tailBlocks, entry.tailFirst + index, blockShift);
    part.tokens[i] = make_int2((place.block << blockShift) + place.token, entry.tailOffset);
  }
  __syncthreads();
}

/* Whether this thread block is the last of `splits` that come here. */
__device__ __forceinline__ bool is_last(int *arrivals, int splits) {
  __shared__ bool isLast;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    isLast = atomicAdd(arrivals, 1) == splits - 1;
    if (isLast) *arrivals = 0;
  }
  __syncthreads();
  __threadfence();
  return isLast;
}

/* Adds up the parts of `group` query heads, `stride` heads from one part to the next. */
__device__ __forceinline__ void merge_parts(const float *partials, const float2 *partialSums, int stride, int splits,
                                            int group, bf16 *out) {
  for (int i = 2 * threadIdx.x; i < group * HEAD_DIM; i += 2 * kThreads) {
    const int head = i / HEAD_DIM;
    float greatest = -infinity(), sum = 0, x = 0, y = 0;
    for (int s = 0; s < splits; s++) greatest = fmaxf(greatest, __ldcg(partialSums + s * stride + head).x);
    for (int s = 0; s < splits; s++) {
      const float2 own = __ldcg(partialSums + s * stride + head);
      const float2 values = __ldcg(reinterpret_cast<const float2 *>(partials + size_t(s) * stride * HEAD_DIM + i));
      const float weight = exp2_fast(own.x - greatest);
      sum += weight * own.y, x += weight * values.x, y += weight * values.y;
    }
    *reinterpret_cast<uint32 *>(out + i) = pack_bf16(x / sum, y / sum);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, HEAD_DIM > 128 ? 3 : 5)
attend_chosen(const bf16 *qkv, const int *step, const int *choicePlace, const float2 *rotations, const bf16 *pool,
              const int2 *lists, int listStride, int queryHeads, int kvHeads, int rotaryDim, int blockTokens,
              float scaleLog2, int maxSplits, bf16 *out, float *partials, float2 *partialSums, int *arrivals) {
  __shared__ __align__(16) Part part;
  let_next_begin();
  const ChoicePlan plan = choice_plan(step, choicePlace);
  const int index = blockIdx.y / kvHeads, kvHead = blockIdx.y % kvHeads, group = queryHeads / kvHeads;
  wait_for_previous();
  if (index >= plan.entryCount) return;
  const ChoiceEntry entry = plan.entries[index];
  const int tokens = entry.take + entry.tailTokens, splits = (tokens + kPartTokens - 1) / kPartTokens;
  const int first = blockIdx.x * kPartTokens, count = min(kPartTokens, tokens - first);
  if (count <= 0) return;
  const HeadShape shape = {HEAD_DIM, rotaryDim, kvHeads, blockTokens};
  load_tokens(part, plan, entry, lists + size_t(blockIdx.y) * listStride, first, count, 31 - __clz(blockTokens));
  const bf16 *q = qkv + (size_t(entry.row) * (queryHeads + 2 * kvHeads) + kvHead * group) * HEAD_DIM;
  const size_t own = (size_t(index) * maxSplits + blockIdx.x) * queryHeads + kvHead * group;
  for (int pass = 0; pass < group; pass += kPassHeads) {
    const int heads = min(kPassHeads, group - pass);
    add_tokens(part, count, q + pass * HEAD_DIM, heads, rotations, entry.position, pool, shape, kvHead, scaleLog2);
    for (int i = threadIdx.x; i < heads * HEAD_DIM; i += kThreads) {
      float2 total;
      partials[(own + pass) * HEAD_DIM + i] = merge_groups(part, i / HEAD_DIM, i % HEAD_DIM, total);
      if (i % HEAD_DIM == 0) partialSums[own + pass + i / HEAD_DIM] = total;
    }
    __syncthreads();
  }
  if (!is_last(arrivals + blockIdx.y, splits)) return;
  const size_t parts = size_t(index) * maxSplits * queryHeads + kvHead * group;
  bf16 *to = out + (size_t(entry.row) * queryHeads + kvHead * group) * HEAD_DIM;
  merge_parts(partials + parts * HEAD_DIM, partialSums + parts, queryHeads, splits, group, to);
}
