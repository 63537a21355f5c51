/*
 * Attention over the tokens of a list (chosen_list.cuh), where they stand in the pool, and over a row's tail. K is stored
 * rotated by its own chain's position, so q is rotated once for each offset that a stretch of the list has, and rounded to
 * bf16.
 *
 * MEMORY. 512 bytes a token and KV head of 128 dimensions, K and V once each in rows of 256 bytes. A thread block has a part
 * of a list, and each of its warps every fourth tile of 16 tokens, whose K and V its lanes load straight into the registers
 * that the matrix instructions take them from: of K the dimensions, and of V the tokens and dimensions, in an order of
 * their own that q, the weights and the results follow. The K of the next tile is asked for once this one's is multiplied,
 * and so is its V: two thread blocks of a multiprocessor have the registers for it. No warp waits for another until their
 * sums are added.
 */
#ifndef SPANGATE_CHOSEN_TILES_CUH
#define SPANGATE_CHOSEN_TILES_CUH

#include "choice_plan.cuh"
#include "heads.cuh"
#include "mma.cuh"

/* Warps that share a part of a list, and threads of them. */
constexpr int kTileWarps = 4, kTileThreads = 32 * kTileWarps;
constexpr int kTileTokens = 16, kTiles = kTileTokens / 8;
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

/* What warps have summed up: weighted V, and of each row of q the greatest score and the sum of its weights. */
struct WarpSums {
  float sums[kTileWarps][kMaxGroup][HEAD_DIM];
  float2 totals[kTileWarps][kMaxGroup];
};

/* The same of a thread block. */
struct PartSums {
  float2 sums[kMaxGroup][HEAD_DIM / 2];
  float2 totals[kMaxGroup];
};

/* q of a warp, rotated. */
typedef bf16 RotatedQueries[kHeads][kStride];
/* An offset that no segment has. */
constexpr int kNoOffset = 1 << 30;

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

/* What is read once stays out of the L1 cache, and is asked for where this stands. */
__device__ __forceinline__ uint4 load_once(const uint4 *from) {
#if __CUDA_ARCH__ >= 800
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
#else
  return *from;
#endif
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
      for (int c = 0; c < kChunks; c++) rows[n][c] = load_once(own + 4 * c);
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
          const uint4 eight = load_once(reinterpret_cast<const uint4 *>(own));
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

/* A warp rotates q for tokens whose segment has this offset; zeros for heads that there are not. */
__device__ __forceinline__ void rotate_queries(RotatedQueries &queries, const Heads &heads, int offset) {
  const int lane = threadIdx.x & 31, half = heads.rotaryDim / 2;
  const float2 *row = heads.rotations + (long long)(heads.position - offset) * half;
  __syncwarp(); /* no lane reads those before any more */
  for (int d = lane; d < half; d += 32) {
    const float2 turn = row[d];
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      const bf16 *own = heads.q + h * HEAD_DIM + d;
      const float x = h < heads.count ? to_float(own[0]) : 0.0f, y = h < heads.count ? to_float(own[half]) : 0.0f;
      const float first = __fsub_rn(__fmul_rn(x, turn.x), __fmul_rn(y, turn.y));
      const float second = __fadd_rn(__fmul_rn(y, turn.x), __fmul_rn(x, turn.y));
      const uint32 both = pack_bf16(first, second);
      queries[h][d] = bf16(both & 0xffff), queries[h][d + half] = bf16(both >> 16);
    }
  }
  for (int d = 2 * half + lane; d < HEAD_DIM; d += 32) {
#pragma unroll
    for (int h = 0; h < kHeads; h++) queries[h][d] = h < heads.count ? heads.q[h * HEAD_DIM + d] : bf16(0);
  }
  __syncwarp();
}

/* q of head g, in the order of Keys. */
struct Query {
  uint4 words[kChunks];

  /* As they were rotated. */
  __device__ __forceinline__ void load(const RotatedQueries &queries) {
    const int lane = threadIdx.x & 31;
    const bf16 *own = queries[lane / 4] + 8 * (lane % 4);
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
                                           RotatedQueries &queries, Query &query, Scores &scores) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
#pragma unroll
    for (int i = 0; i < 2; i++) scores.z[n][i] = -infinity();
  }
  for (uint32 left = count < kTileTokens ? (1u << count) - 1 : (1u << kTileTokens) - 1; left != 0;) {
    const int own = __shfl_sync(kAllLanes, token.offset, __ffs(left) - 1);
    const uint32 same = __ballot_sync(kAllLanes, token.offset == own) & left;
    if (own != offset) {
      rotate_queries(queries, heads, own);
      query.load(queries), offset = own;
    }
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

/*
 * The tiles of a warp from number `first` of the part on, and its sums. `offset` is what `queries` were rotated for, or
 * kNoOffset.
 */
__device__ __forceinline__ void add_tiles(WarpSums &part, const Source &from, int first, const Heads &heads, int offset,
                                          float scaleLog2, RotatedQueries &queries) {
  constexpr int kTilesStep = kTileWarps * kTileTokens;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float sums[kColumns][2] = {};
  Softmax softmax = {-infinity(), 0};
  first += warp * kTileTokens;
  if (first < from.end) {
    Query query;
    Keys keys;
    Values values;
    Token token = token_of(from, first), next = token_of(from, first + kTilesStep);
    keys.load(from, token);
    values.load(from, token);
    query.load(queries);
    for (; first < from.end; first += kTilesStep) {
      Scores scores;
      score_tile(token, from.end - first, heads, keys, offset, queries, query, scores);
      keys.load(from, next); /* behind the part it is the last token's again */
      const float factor = weigh(scores, scaleLog2, softmax);
      multiply_values(scores, values, factor, sums);
      values.load(from, next);
      token = next, next = token_of(from, first + 2 * kTilesStep);
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

/* Adds numbers that belong to sums of powers in different units; nothing where there was no token. */
struct Merging {
  float greatest;
  float2 sum;
  float total;

  __device__ __forceinline__ void add(float2 own, float2 values) {
    const float weight = own.x == -infinity() ? 0.0f : exp2_fast(own.x - greatest);
    sum.x += weight * values.x, sum.y += weight * values.y, total += weight * own.y;
  }
};

/* Adds up what the warps of a thread block have of `group` query heads. */
__device__ __forceinline__ void merge_warps(const WarpSums &part, int group, PartSums &merged) {
  for (int i = threadIdx.x; i < group * (HEAD_DIM / 2); i += kTileThreads) {
    const int head = i / (HEAD_DIM / 2), pair = i % (HEAD_DIM / 2);
    Merging all = {-infinity(), make_float2(0, 0), 0};
#pragma unroll
    for (int w = 0; w < kTileWarps; w++) all.greatest = fmaxf(all.greatest, part.totals[w][head].x);
#pragma unroll
    for (int w = 0; w < kTileWarps; w++) {
      all.add(part.totals[w][head], reinterpret_cast<const float2 *>(part.sums[w][head])[pair]);
    }
    merged.sums[head][pair] = all.sum;
    if (pair == 0) merged.totals[head] = make_float2(all.greatest, all.total);
  }
}

#endif
