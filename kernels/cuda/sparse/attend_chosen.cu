/*
 * Attention of the rows that choose: over the tokens of their lists (choose_tokens.cu), where they stand in the pool, and
 * over their tails. K is stored rotated by its own chain's position, so q is rotated once for each offset that a stretch of
 * the list has, and rounded to bf16.
 *
 *   out [rows][queryHeads][HEAD_DIM] bf16; partials float32 [entries][maxSplits][queryHeads][HEAD_DIM] and partialSums
 *   float2 [entries][maxSplits][queryHeads]: the greatest score of a part in log2 units, and the sum of 2^(score - that)
 *   arrivals [entries][kvHeads]: 0 between launches
 *
 * MEMORY. 512 bytes a token and KV head of 128 dimensions, K and V once each in rows of 256 bytes. A part of kPartTokens
 * tokens has a thread block of four warps, each with tokens of its own, which asks for all its bytes before it does
 * anything else: K and V of a warp's tokens are copied asynchronously to shared memory, and q is rotated meanwhile. What
 * hides the time until they come are the other thread blocks of the multiprocessor. Products are by matrix instructions, of
 * 16 query heads whether there are as many or not: they take a tenth of the time of the bytes. The thread block of an entry
 * and KV head that comes last adds the parts up, in their order.
 *
 * Grid: (maxSplits, rows that choose at most * kvHeads), with kSharedBytes. Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_plan.cuh"
#include "heads.cuh"
#include "mma.cuh"

constexpr int kThreads = 128, kWarps = kThreads / 32;
/* Sums of long heads fill the registers, and their rows the shared memory. */
constexpr int kWarpTokens = HEAD_DIM > 128 ? 16 : 32, kPartTokens = kWarps * kWarpTokens;
constexpr int kTiles = kWarpTokens / 8;
constexpr int kVectors = HEAD_DIM / 8;
/* A row is padded by 16 bytes to an odd number of 16-byte vectors, so eight rows lie in different banks. */
constexpr int kStride = HEAD_DIM + 8;
constexpr int kQueryRows = 16;
/* q, and for each warp K of its tokens and then V; where these were, its sums. */
constexpr int kWarpRows = 2 * kWarpTokens;
constexpr int kSharedBytes = (kQueryRows + kWarps * kWarpRows) * kStride * int(sizeof(bf16));
static_assert(kMaxGroup <= kQueryRows, "a row of q for each query head");
static_assert(kQueryRows * HEAD_DIM * sizeof(float) <= kWarpRows * kStride * sizeof(bf16), "sums take the place of K and V");

struct Part {
  int2 tokens[kPartTokens]; /* slot, offset */
  float2 totals[kWarps][kQueryRows];
  int runEnd;
};

/* Of a row of q, the greatest score in log2 units, and the sum of 2^(score - that). */
struct Softmax {
  float greatest, total;
};

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

/* Starts the copies of K and V of a warp's tokens, in two groups; rows of tokens that are not there become zeros. */
__device__ __forceinline__ void copy_rows(const Part &part, int count, const bf16 *pool, int kvHead, int kvHeads,
                                          int blockShift, bf16 *rows) {
  const int lane = threadIdx.x & 31, firstToken = (threadIdx.x >> 5) * kWarpTokens;
#pragma unroll
  for (int value = 0; value < 2; value++) {
#pragma unroll
    for (int start = 0; start < kWarpTokens * kVectors; start += 32) {
      const int i = start + lane, token = i / kVectors, vector = i % kVectors;
      if (kWarpTokens * kVectors % 32 != 0 && token >= kWarpTokens) break;
      const bool isThere = firstToken + token < count;
      const int slot = isThere ? part.tokens[firstToken + token].x : 0;
      const size_t block = size_t(slot >> blockShift) * kvHeads + kvHead;
      const size_t row = ((2 * block + value) << blockShift) + (slot & ((1 << blockShift) - 1));
      copy_async(rows + (value * kWarpTokens + token) * kStride + 8 * vector, pool + row * HEAD_DIM + 8 * vector, isThere);
    }
    commit_copies();
  }
}

/* q [kQueryRows][kStride] of `heads` query heads, rotated by a row of rotations; zeros for the others. */
__device__ __forceinline__ void rotate_queries(bf16 *queries, const bf16 *q, int heads, const float2 *row, int rotaryDim) {
  const int half = rotaryDim / 2;
  for (int i = threadIdx.x; i < kQueryRows * HEAD_DIM / 2; i += kThreads) {
    const int head = 2 * i / HEAD_DIM, d = 2 * i % HEAD_DIM;
    float pair[2] = {0, 0};
    for (int p = 0; p < 2 && head < heads; p++) {
      const bf16 *own = q + head * HEAD_DIM + d + p;
      pair[p] = to_float(*own);
      if (d + p >= rotaryDim) continue;
      const bool isFirst = d + p < half;
      const float other = to_float(own[isFirst ? half : -half]);
      const float2 turn = row[isFirst ? d + p : d + p - half];
      const float straight = __fmul_rn(pair[p], turn.x), crossed = __fmul_rn(other, turn.y);
      pair[p] = isFirst ? __fsub_rn(straight, crossed) : __fadd_rn(straight, crossed);
    }
    *reinterpret_cast<uint32 *>(queries + head * kStride + d) = pack_bf16(pair[0], pair[1]);
  }
}

/*
 * Scores of a warp's tokens: of tile n a lane gets in [0] and [1] those of query head g with tokens 8 n + 2 t and the
 * next, g = lane / 4 and t = lane % 4, in [2] and [3] those of head g + 8.
 */
__device__ __forceinline__ void multiply_keys(const bf16 *queries, const bf16 *keys, float (&scores)[kTiles][4]) {
  const int lane = threadIdx.x & 31;
  queries += (lane % 16) * kStride + lane / 16 * 8;
  keys += (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kTiles; n++) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0;
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += 16) {
    uint32 q[4];
    load_matrices(q, queries + d);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32 k[4];
      load_matrices(k, keys + n * 8 * kStride + d);
      multiply_add(scores[n], q, k[0], k[1]);
      multiply_add(scores[n + 1], q, k[2], k[3]);
    }
  }
}

/* Scores of all tokens of the part, one run of equal offsets after the other; minus infinity where there is none. */
__device__ __forceinline__ void score_tokens(Part &part, int count, const bf16 *q, int heads, const float2 *rotations,
                                             int position, int rotaryDim, bf16 *queries, const bf16 *keys,
                                             float (&scores)[kTiles][4]) {
  const int lane = threadIdx.x & 31, firstToken = (threadIdx.x >> 5) * kWarpTokens;
#pragma unroll
  for (int n = 0; n < kTiles; n++) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = -infinity();
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
    rotate_queries(queries, q, heads, rotations + (long long)(position - offset) * (rotaryDim / 2), rotaryDim);
    wait_copies<1>(); /* K; V may still be under way */
    __syncthreads();
    const int end = part.runEnd;
    if (firstToken < end && firstToken + kWarpTokens > first) {
      float own[kTiles][4];
      multiply_keys(queries, keys, own);
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int token = firstToken + 8 * n + lane % 4 * 2 + i % 2;
          if (token >= first && token < end) scores[n][i] = own[n][i];
        }
      }
    }
    __syncthreads(); /* nobody reads q or the run's end any more */
    first = end;
  }
}

/* Turns scores into weights of the query heads g and g + 8, relative to the greatest. All lanes of a head get its sums. */
__device__ __forceinline__ void weigh(float (&scores)[kTiles][4], float scaleLog2, Softmax (&softmax)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = -infinity(), total = 0;
#pragma unroll
    for (int n = 0; n < kTiles; n++) top = fmaxf(top, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2)) * scaleLog2;
    const float base = top == -infinity() ? 0.0f : top;
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; i++) {
        scores[n][i] = exp2_fast(scores[n][i] * scaleLog2 - base);
        total += scores[n][i];
      }
    }
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    softmax[r].greatest = top, softmax[r].total = total;
  }
}

/* V of a warp's tokens by their weights, [16 query heads][HEAD_DIM] as scores are laid out. */
__device__ __forceinline__ void multiply_values(const float (&weights)[kTiles][4], const bf16 *values,
                                                float (&sums)[HEAD_DIM / 8][4]) {
  const int lane = threadIdx.x & 31;
  values += (lane % 16) * kStride + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < HEAD_DIM / 8; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    const uint32 p[4] = {pack_bf16(weights[n][0], weights[n][1]), pack_bf16(weights[n][2], weights[n][3]),
                         pack_bf16(weights[n + 1][0], weights[n + 1][1]), pack_bf16(weights[n + 1][2], weights[n + 1][3])};
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 16) {
      uint32 v[4];
      load_matrices_transposed(v, values + n * 8 * kStride + d);
      multiply_add(sums[d / 8], p, v[0], v[1]);
      multiply_add(sums[d / 8 + 1], p, v[2], v[3]);
    }
  }
}

/* A warp's sums and totals, in shared memory; no lane reads the warp's K and V any more. */
__device__ __forceinline__ void keep_sums(Part &part, const float (&sums)[HEAD_DIM / 8][4], const Softmax (&softmax)[2],
                                          int heads, float *to) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int head = lane / 4 + 8 * r;
    if (head >= heads) continue;
    if (lane % 4 == 0) part.totals[warp][head] = make_float2(softmax[r].greatest, softmax[r].total);
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; n++) {
      *reinterpret_cast<float2 *>(to + head * HEAD_DIM + 8 * n + lane % 4 * 2) =
          make_float2(sums[n][2 * r], sums[n][2 * r + 1]);
    }
  }
}

/* Numbers i and i + 1 of the part's sums over its warps, and the head's greatest score and total. */
__device__ __forceinline__ float2 merge_warps(const Part &part, const bf16 *rows, int i, float2 &total) {
  const int head = i / HEAD_DIM;
  float greatest = -infinity(), all = 0;
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int w = 0; w < kWarps; w++) greatest = fmaxf(greatest, part.totals[w][head].x);
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    const float2 own = part.totals[w][head];
    const float2 values = *reinterpret_cast<const float2 *>(
        reinterpret_cast<const float *>(rows + size_t(w) * kWarpRows * kStride) + i);
    const float weight = exp2_fast(own.x - greatest);
    sum.x += weight * values.x, sum.y += weight * values.y, all += weight * own.y;
  }
  total = make_float2(greatest, all);
  return sum;
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
#pragma unroll 8
    for (int s = 0; s < splits; s++) greatest = fmaxf(greatest, __ldcg(partialSums + s * stride + head).x);
#pragma unroll 8
    for (int s = 0; s < splits; s++) {
      const float2 own = __ldcg(partialSums + s * stride + head);
      const float2 values = __ldcg(reinterpret_cast<const float2 *>(partials + size_t(s) * stride * HEAD_DIM + i));
      const float weight = exp2_fast(own.x - greatest);
      sum += weight * own.y, x += weight * values.x, y += weight * values.y;
    }
    *reinterpret_cast<uint32 *>(out + i) = pack_bf16(x / sum, y / sum);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, HEAD_DIM > 128 ? 1 : 3)
attend_chosen(const bf16 *qkv, const int *step, const int *choicePlace, const float2 *rotations, const bf16 *pool,
              const int2 *lists, int listStride, int queryHeads, int kvHeads, int rotaryDim, int blockTokens,
              float scaleLog2, int maxSplits, bf16 *out, float *partials, float2 *partialSums, int *arrivals) {
  extern __shared__ __align__(16) bf16 shared[];
  __shared__ Part part;
  let_next_begin();
  require_shared_memory(kSharedBytes);
  const ChoicePlan plan = choice_plan(step, choicePlace);
  const int index = blockIdx.y / kvHeads, kvHead = blockIdx.y % kvHeads, group = queryHeads / kvHeads;
  if (index >= plan.entryCount) {
    wait_for_previous();
    return;
  }
  const ChoiceEntry entry = plan.entries[index];
  wait_for_previous();
  const int tokens = entry.take + entry.tailTokens, splits = (tokens + kPartTokens - 1) / kPartTokens;
  const int first = blockIdx.x * kPartTokens, count = min(kPartTokens, tokens - first);
  if (count <= 0) return;
  const int blockShift = 31 - __clz(blockTokens);
  bf16 *rows = shared + kQueryRows * kStride, *own = rows + (threadIdx.x >> 5) * kWarpRows * kStride;
  load_tokens(part, plan, entry, lists + size_t(blockIdx.y) * listStride, first, count, blockShift);
  copy_rows(part, count, pool, kvHead, kvHeads, blockShift, own);
  const bf16 *q = qkv + (size_t(entry.row) * (queryHeads + 2 * kvHeads) + kvHead * group) * HEAD_DIM;
  float weights[kTiles][4], sums[HEAD_DIM / 8][4];
  Softmax softmax[2];
  score_tokens(part, count, q, group, rotations, entry.position, rotaryDim, shared, own, weights);
  weigh(weights, scaleLog2, softmax);
  wait_copies<0>();
  __syncwarp(); /* all lanes' copies of V have landed */
  multiply_values(weights, own + kWarpTokens * kStride, sums);
  __syncwarp();
  keep_sums(part, sums, softmax, group, reinterpret_cast<float *>(own));
  __syncthreads();
  const size_t at = (size_t(index) * maxSplits + blockIdx.x) * queryHeads + kvHead * group;
  for (int i = 2 * threadIdx.x; i < group * HEAD_DIM; i += 2 * kThreads) {
    float2 total;
    *reinterpret_cast<float2 *>(partials + at * HEAD_DIM + i) = merge_warps(part, rows, i, total);
    if (i % HEAD_DIM == 0) partialSums[at + i / HEAD_DIM] = total;
  }
  if (!is_last(arrivals + blockIdx.y, splits)) return;
  const size_t parts = size_t(index) * maxSplits * queryHeads + kvHead * group;
  bf16 *to = out + (size_t(entry.row) * queryHeads + kvHead * group) * HEAD_DIM;
  merge_parts(partials + parts * HEAD_DIM, partialSums + parts, queryHeads, splits, group, to);
}
