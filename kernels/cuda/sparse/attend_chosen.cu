/*
 * Attention of the rows that choose: over the tokens of their lists (choose_tokens.cu), where they stand in the pool, and
 * over their tails. K is stored rotated by its own chain's position, so q is rotated once for each offset that a stretch of
 * the list has, and rounded to bf16.
 *
 *   out [rows][queryHeads][HEAD_DIM] bf16; partials float32 [entries][maxSplits][queryHeads][HEAD_DIM] and partialSums
 *   float2 [entries][maxSplits][queryHeads]: the greatest score of a part in log2 units, and the sum of 2^(score - that)
 *   arrivals [entries][kvHeads]: 0 between launches
 *
 * MEMORY. 512 bytes a token and KV head of 128 dimensions, K and V once each in rows of 256 bytes. A thread block has a part
 * of a list, and each of its warps every fourth tile of 16 tokens, whose K and V its lanes load straight into the registers
 * that the matrix instructions take them from: of K the dimensions, and of V the tokens and dimensions, in an order of
 * their own that q, the weights and the results follow. The K of the next tile is asked for once this one's is multiplied,
 * and so is its V: two thread blocks of a multiprocessor have the registers for it. No warp waits for another until their
 * sums are added. The thread block
 * of an entry and KV head that comes last adds the parts up, in their order.
 *
 * Grid: (parts, at most maxSplits, rows that choose at most * kvHeads) of 128 threads; a part has at least kLeastPart tokens.
 * Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_plan.cuh"
#include "heads.cuh"
#include "mma.cuh"

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kTileTokens = 16, kTiles = kTileTokens / 8, kLeastPart = kWarps * kTileTokens;
/* Query heads that are worked on at a time: half the rows of a matrix instruction, of which the others are zeros. */
constexpr int kHeads = 8;
/* Of K a lane t = lane % 4 has eight dimensions 32 c + 8 t on, of each chunk c. Heads of other sizes choose nothing. */
constexpr int kChunks = HEAD_DIM < 32 ? 1 : HEAD_DIM / 32;
/* Of V a lane g = lane / 4 has kRun dimensions 8 kRun j + kRun g on, for each j. */
constexpr int kRun = HEAD_DIM % 64 == 0 ? 8 : 4, kRuns = HEAD_DIM < 32 ? 1 : HEAD_DIM / (8 * kRun);
/* Groups of eight dimensions of the results: number kRun j + i has number i of the run j of all eight lanes. */
constexpr int kColumns = kRun * kRuns;

/* A row of q is padded by 16 bytes to an odd number of 16-byte vectors. */
constexpr int kStride = HEAD_DIM + 8;

struct Part {
  float sums[kWarps][kMaxGroup][HEAD_DIM];
  float2 totals[kWarps][kMaxGroup];
  bf16 queries[kWarps][kHeads][kStride];
};

/* Of a row of q, the greatest score in log2 units, and the sum of 2^(score - that). */
struct Softmax {
  float greatest, total;
};

/* What a thread block reads, and where. */
struct Source {
  const ChoicePlan &plan;
  const ChoiceEntry &entry;
  const int2 *list;
  const bf16 *pool;
  int kvHead, kvHeads, blockShift;
  int end; /* of the part, counted from the list's first token: behind the list's are those of the tail */
};

/* Of a tile a lane's own token, lane % 16: the row of K in the pool, and the offset of its segment. */
struct Token {
  uint32 row;
  int offset;
};

/* The lane's token of the tile that begins at number `first`; the last of the part where there is none. */
__device__ __forceinline__ Token token_of(const Source &from, int first) {
  const int number = min(first + int(threadIdx.x & 15), from.end - 1), index = number - from.entry.take;
  int2 own;
  if (index < 0) {
    own = from.list[number];
  } else {
    const TokenPlace place = place_in(from.plan.step, from.entry.tailBlocks, from.entry.tailFirst + index, from.blockShift);
    own = make_int2((place.block << from.blockShift) + place.token, from.entry.tailOffset);
  }
  const uint32 block = uint32(own.x >> from.blockShift) * from.kvHeads + from.kvHead;
  return {(2 * block << from.blockShift) + (own.x & ((1 << from.blockShift) - 1)), own.y};
}

/* K of a lane: of tokens g and g + 8 of a tile. */
struct Keys {
  uint4 rows[kTiles][kChunks];

  __device__ __forceinline__ void load(const Source &from, const Token &token) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      const size_t row = __shfl_sync(kAllLanes, token.row, 8 * n + lane / 4);
      const uint4 *own = reinterpret_cast<const uint4 *>(from.pool + row * HEAD_DIM) + lane % 4;
#pragma unroll
      for (int c = 0; c < kChunks; c++) rows[n][c] = own[4 * c];
    }
  }
};

/* V of a lane: of tokens 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of a tile, of which two numbers are a word. */
struct Values {
  uint32 words[4][kRuns][kRun / 2];

  __device__ __forceinline__ void load(const Source &from, const Token &token) {
    const int lane = threadIdx.x & 31;
    const bf16 *values = from.pool + (size_t(HEAD_DIM) << from.blockShift) + kRun * (lane / 4);
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const size_t row = __shfl_sync(kAllLanes, token.row, 2 * (lane % 4) + n % 2 + 8 * (n / 2));
#pragma unroll
      for (int j = 0; j < kRuns; j++) {
        const bf16 *own = values + row * HEAD_DIM + 8 * kRun * j;
        if constexpr (kRun == 8) {
          const uint4 eight = *reinterpret_cast<const uint4 *>(own);
          words[n][j][0] = eight.x, words[n][j][1] = eight.y;
          words[n][j][kRun / 2 - 2] = eight.z, words[n][j][kRun / 2 - 1] = eight.w;
        } else {
          const uint2 four = *reinterpret_cast<const uint2 *>(own);
          words[n][j][0] = four.x, words[n][j][1] = four.y;
        }
      }
    }
  }
};

/* The query heads that are worked on, and what they are rotated by. */
struct Heads {
  const bf16 *q;
  int first, count;
  const float2 *rotations;
  int position, rotaryDim;
};

/* A warp writes q [kHeads][kStride], rotated by a row of rotations; zeros for heads that there are not. */
__device__ __forceinline__ void rotate_queries(bf16 *queries, const Heads &heads, const float2 *row) {
  const int lane = threadIdx.x & 31, half = heads.rotaryDim / 2;
  for (int d = lane; d < half; d += 32) {
    const float2 turn = row[d];
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      const bf16 *own = heads.q + h * HEAD_DIM + d;
      const float x = h < heads.count ? to_float(own[0]) : 0.0f, y = h < heads.count ? to_float(own[half]) : 0.0f;
      const float first = __fsub_rn(__fmul_rn(x, turn.x), __fmul_rn(y, turn.y));
      const float second = __fadd_rn(__fmul_rn(y, turn.x), __fmul_rn(x, turn.y));
      const uint32 both = pack_bf16(first, second);
      queries[h * kStride + d] = bf16(both & 0xffff), queries[h * kStride + d + half] = bf16(both >> 16);
    }
  }
  for (int d = 2 * half + lane; d < HEAD_DIM; d += 32) {
#pragma unroll
    for (int h = 0; h < kHeads; h++) queries[h * kStride + d] = h < heads.count ? heads.q[h * HEAD_DIM + d] : bf16(0);
  }
}

/* q of head g, in the order of Keys. */
struct Query {
  uint4 words[kChunks];

  /* Rotated for tokens whose segment has this offset. */
  __device__ __forceinline__ void load(const Heads &heads, int offset, bf16 *queries) {
    const int lane = threadIdx.x & 31;
    __syncwarp();
    rotate_queries(queries, heads, heads.rotations + (long long)(heads.position - offset) * (heads.rotaryDim / 2));
    __syncwarp();
    const bf16 *own = queries + lane / 4 * kStride + 8 * (lane % 4);
#pragma unroll
    for (int c = 0; c < kChunks; c++) words[c] = *reinterpret_cast<const uint4 *>(own + 32 * c);
  }
};

/* Scores of eight tokens n of a tile: [head g][tokens 2 t, 2 t + 1]. */
struct Scores {
  float z[kTiles][2];
};

/* sum [head g][2] += a [8][16] b [16][8] */
__device__ __forceinline__ void multiply_heads(float (&sum)[2], uint32 a0, uint32 a1, uint32 b0, uint32 b1) {
  const uint32 a[4] = {a0, 0, a1, 0};
  float all[4] = {sum[0], sum[1], 0, 0};
  multiply_add(all, a, b0, b1);
  sum[0] = all[0], sum[1] = all[1];
}

__device__ __forceinline__ void multiply_keys(const Query &query, const Keys &keys, Scores &products) {
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
    products.z[n][0] = products.z[n][1] = 0;
#pragma unroll
    for (int c = 0; c < kChunks; c++) {
      const uint4 key = keys.rows[n][c], q = query.words[c];
      multiply_heads(products.z[n], q.x, q.y, key.x, key.y);
      multiply_heads(products.z[n], q.z, q.w, key.z, key.w);
    }
  }
}

/*
 * Scores of a tile's first `count` tokens, those of equal offsets at once; minus infinity where there is none. `offset` is
 * what q was rotated for.
 */
__device__ __forceinline__ void score_tile(const Token &token, int count, const Heads &heads, const Keys &keys, int &offset,
                                           bf16 *queries, Query &query, Scores &scores) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
#pragma unroll
    for (int i = 0; i < 2; i++) scores.z[n][i] = -infinity();
  }
  for (uint32 left = count < kTileTokens ? (1u << count) - 1 : (1u << kTileTokens) - 1; left != 0;) {
    const int own = __shfl_sync(kAllLanes, token.offset, __ffs(left) - 1);
    const uint32 same = __ballot_sync(kAllLanes, token.offset == own) & left;
    if (own != offset) query.load(heads, own, queries), offset = own;
    Scores products;
    multiply_keys(query, keys, products);
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (same >> (8 * n + lane % 4 * 2 + i % 2) & 1) scores.z[n][i] = products.z[n][i];
      }
    }
    left &= ~same;
  }
}

/*
 * Turns scores into weights relative to the greatest so far. A lane adds its own to the total, which it rescales by the
 * factor that it returns.
 */
__device__ __forceinline__ float weigh(Scores &scores, float scaleLog2, Softmax &softmax) {
  float top = -infinity();
#pragma unroll
  for (int n = 0; n < kTiles; n++) top = fmaxf(top, fmaxf(scores.z[n][0], scores.z[n][1]));
  top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
  top = fmaxf(softmax.greatest, fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2)) * scaleLog2);
  const float base = top == -infinity() ? 0.0f : top, factor = exp2_fast(softmax.greatest - base);
  softmax.greatest = top, softmax.total *= factor;
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      scores.z[n][i] = exp2_fast(scores.z[n][i] * scaleLog2 - base);
      softmax.total += scores.z[n][i];
    }
  }
  return factor;
}

/* The halves of two words that have the same place: the lower ones, or the upper ones. */
__device__ __forceinline__ uint32 halves_of(uint32 first, uint32 second, bool isUpper) {
  return isUpper ? first >> 16 | (second & 0xffff0000u) : (first & 0xffff) | second << 16;
}

/* Adds V of a tile's tokens by their weights to sums, which are rescaled by `factor`. */
__device__ __forceinline__ void multiply_values(const Scores &weights, const Values &values, float factor,
                                                float (&sums)[kColumns][2]) {
  uint32 pairs[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; n++) pairs[n] = pack_bf16(weights.z[n][0], weights.z[n][1]);
#pragma unroll
  for (int column = 0; column < kColumns; column++) {
    const int j = column / kRun, word = column % kRun / 2;
    const bool isUpper = column % 2 == 1;
    sums[column][0] *= factor, sums[column][1] *= factor;
    const uint32 b0 = halves_of(values.words[0][j][word], values.words[1][j][word], isUpper);
    const uint32 b1 = halves_of(values.words[2][j][word], values.words[3][j][word], isUpper);
    multiply_heads(sums[column], pairs[0], pairs[1], b0, b1);
  }
}

/* The tiles of a warp, and its sums. */
__device__ __forceinline__ void add_tiles(Part &part, const Source &from, int first, const Heads &heads, float scaleLog2) {
  constexpr int kStep = kWarps * kTileTokens;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float sums[kColumns][2] = {};
  Softmax softmax = {-infinity(), 0};
  first += warp * kTileTokens;
  if (first < from.end) {
    int offset = 1 << 30; /* of nothing */
    Query query;
    Keys keys;
    Values values;
    Token token = token_of(from, first), next = token_of(from, first + kStep);
    keys.load(from, token);
    values.load(from, token);
    for (; first < from.end; first += kStep) {
      Scores scores;
      score_tile(token, from.end - first, heads, keys, offset, part.queries[warp][0], query, scores);
      keys.load(from, next); /* behind the part it is the last token's again */
      const float factor = weigh(scores, scaleLog2, softmax);
      multiply_values(scores, values, factor, sums);
      values.load(from, next);
      token = next, next = token_of(from, first + 2 * kStep);
    }
  }
  softmax.total += __shfl_xor_sync(kAllLanes, softmax.total, 1);
  softmax.total += __shfl_xor_sync(kAllLanes, softmax.total, 2);
  const int head = lane / 4;
  if (head >= heads.count) return;
  if (lane % 4 == 0) part.totals[warp][heads.first + head] = make_float2(softmax.greatest, softmax.total);
  /* A column's numbers 2 t and 2 t + 1 are those of two lanes that had V. */
#pragma unroll
  for (int column = 0; column < kColumns; column++) {
    float *to = part.sums[warp][heads.first + head] + 8 * kRun * (column / kRun) + column % kRun + 2 * kRun * (lane % 4);
    to[0] = sums[column][0], to[kRun] = sums[column][1];
  }
}

/* Numbers i and i + 1 of the part's sums over its warps, and the head's greatest score and total. */
__device__ __forceinline__ float2 merge_warps(const Part &part, int i, float2 &total) {
  const int head = i / HEAD_DIM;
  float greatest = -infinity(), all = 0;
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int w = 0; w < kWarps; w++) greatest = fmaxf(greatest, part.totals[w][head].x);
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    const float2 own = part.totals[w][head];
    const float *values = part.sums[w][head] + i % HEAD_DIM;
    const float weight = exp2_fast(own.x - greatest);
    sum.x += weight * values[0], sum.y += weight * values[1], all += weight * own.y;
  }
  total = make_float2(greatest, all);
  return sum;
}

/* Whether this thread block is the last of `splits` that come here. */
__device__ __forceinline__ bool is_last(int *arrivals, int splits) {
  __shared__ bool isLast;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    isLast = atomicAdd(arrivals, 1) == splits - 1;
    if (isLast) *arrivals = 0;
    __threadfence();
  }
  __syncthreads();
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

extern "C" __global__ void __launch_bounds__(kThreads, HEAD_DIM > 128 ? 1 : 2)
attend_chosen(const bf16 *qkv, const int *step, const int *choicePlace, const float2 *rotations, const bf16 *pool,
              const int2 *lists, int listStride, int queryHeads, int kvHeads, int rotaryDim, int blockTokens,
              float scaleLog2, int maxSplits, bf16 *out, float *partials, float2 *partialSums, int *arrivals) {
  extern __shared__ __align__(16) unsigned char shared[];
  Part &part = *reinterpret_cast<Part *>(shared);
  let_next_begin();
  require_shared_memory(sizeof(Part));
  const ChoicePlan plan = choice_plan(step, choicePlace);
  const int index = blockIdx.y / kvHeads, kvHead = blockIdx.y % kvHeads, group = queryHeads / kvHeads;
  if (index >= plan.entryCount) {
    wait_for_previous();
    return;
  }
  const ChoiceEntry entry = plan.entries[index];
  wait_for_previous();
  /* Whole tiles; no thread block has more than the first. */
  const int tokens = entry.take + entry.tailTokens, even = (tokens + gridDim.x - 1) / gridDim.x;
  const int partTokens = max(kLeastPart, (even + kTileTokens - 1) / kTileTokens * kTileTokens);
  const int splits = (tokens + partTokens - 1) / partTokens, first = blockIdx.x * partTokens;
  if (first >= tokens) return;
  const Source source = {plan,    entry,   lists + size_t(blockIdx.y) * listStride, pool, kvHead,
                         kvHeads, 31 - __clz(blockTokens), min(tokens, first + partTokens)};
  const bf16 *q = qkv + (size_t(entry.row) * (queryHeads + 2 * kvHeads) + kvHead * group) * HEAD_DIM;
  for (int head = 0; head < group; head += kHeads) {
    const Heads heads = {q + head * HEAD_DIM, head, min(kHeads, group - head), rotations, entry.position, rotaryDim};
    add_tiles(part, source, first, heads, scaleLog2);
  }
  __syncthreads();
  const size_t at = (size_t(index) * maxSplits + blockIdx.x) * queryHeads + kvHead * group;
  for (int i = 2 * threadIdx.x; i < group * HEAD_DIM; i += 2 * kThreads) {
    float2 total;
    *reinterpret_cast<float2 *>(partials + at * HEAD_DIM + i) = merge_warps(part, i, total);
    if (i % HEAD_DIM == 0) partialSums[at + i / HEAD_DIM] = total;
  }
  if (!is_last(arrivals + blockIdx.y, splits)) return;
  const size_t parts = size_t(index) * maxSplits * queryHeads + kvHead * group;
  bf16 *to = out + (size_t(entry.row) * queryHeads + kvHead * group) * HEAD_DIM;
  merge_parts(partials + parts * HEAD_DIM, partialSums + parts, queryHeads, splits, group, to);
}
