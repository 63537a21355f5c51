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
 * of a list, and each of its warps every fourth tile of 16 tokens (of long heads every second): it works on one while the rows of the next are copied
 * asynchronously to shared memory. Warps wait for nobody until their sums are added. Products are by matrix instructions,
 * of 16 query heads whether there are as many or not. The thread block of an entry and KV head that comes last adds the
 * parts up, in their order. For 8 rows that read 2,132 tokens it takes 36 us on an H200 where the bytes take 16.
 *
 * Grid: (parts, at most maxSplits, rows that choose at most * kvHeads), with kSharedBytes; a part has at least kLeastPart tokens. Oracle:
 * test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_plan.cuh"
#include "heads.cuh"
#include "mma.cuh"

/* Rows of long heads fill the shared memory. */
constexpr int kThreads = HEAD_DIM > 128 ? 64 : 128, kWarps = kThreads / 32;
constexpr int kTileTokens = 16, kTiles = kTileTokens / 8, kLeastPart = kWarps * kTileTokens;
constexpr int kVectors = HEAD_DIM / 8;
/* A row is padded by 16 bytes to an odd number of 16-byte vectors, so eight rows lie in different banks. */
constexpr int kStride = HEAD_DIM + 8;
constexpr int kQueryRows = 16;
/* Of each warp q, and twice K and V of a tile; where these were, its sums. */
constexpr int kTileSize = 2 * kTileTokens * kStride, kWarpSize = kQueryRows * kStride + 2 * kTileSize;
constexpr int kSharedBytes = kWarps * kWarpSize * int(sizeof(bf16));
static_assert(kMaxGroup <= kQueryRows, "a row of q for each query head");
static_assert(kQueryRows * HEAD_DIM * sizeof(float) <= 2 * kTileSize * sizeof(bf16), "sums take the place of K and V");

struct Part {
  int2 tokens[kWarps][2][kTileTokens]; /* slot, offset */
  float2 totals[kWarps][kQueryRows];
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

/* A warp notes its tile's tokens, from number `first` on, and starts the copies of their K and V. */
__device__ __forceinline__ void copy_tile(const Source &from, int first, int2 (&tokens)[kTileTokens], bf16 *rows) {
  const int lane = threadIdx.x & 31;
  if (lane < kTileTokens && first + lane < from.end) {
    const int index = first + lane - from.entry.take;
    if (index < 0) {
      tokens[lane] = from.list[first + lane];
    } else {
      const TokenPlace place = place_in(from.plan.step, from.entry.tailBlocks, from.entry.tailFirst + index, from.blockShift);
      tokens[lane] = make_int2((place.block << from.blockShift) + place.token, from.entry.tailOffset);
    }
  }
  __syncwarp();
#pragma unroll
  for (int start = 0; start < kTileTokens * kVectors; start += 32) {
    const int i = start + lane, token = i / kVectors, vector = i % kVectors;
    if (kTileTokens * kVectors % 32 != 0 && token >= kTileTokens) break;
    const bool isThere = first + token < from.end;
    const int slot = isThere ? tokens[token].x : 0;
    const size_t block = size_t(slot >> from.blockShift) * from.kvHeads + from.kvHead;
    const size_t row = ((2 * block) << from.blockShift) + (slot & ((1 << from.blockShift) - 1));
    const bf16 *key = from.pool + row * HEAD_DIM + 8 * vector;
    bf16 *to = rows + token * kStride + 8 * vector;
    copy_async(to, key, isThere);
    copy_async(to + kTileTokens * kStride, key + (size_t(HEAD_DIM) << from.blockShift), isThere);
  }
}

/* A warp writes q [kQueryRows][kStride] of `heads` query heads, rotated by a row of rotations; zeros for the others. */
__device__ __forceinline__ void rotate_queries(bf16 *queries, const bf16 *q, int heads, const float2 *row, int rotaryDim) {
  const int half = rotaryDim / 2;
  for (int i = threadIdx.x & 31; i < kQueryRows * HEAD_DIM / 2; i += 32) {
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
 * Scores of a tile's tokens: of eight tokens n a lane gets in [0] and [1] those of query head g with tokens 8 n + 2 t and the
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

/* The query heads of a thread block, and what they are rotated by. */
struct Heads {
  const bf16 *q;
  int count;
  const float2 *rotations;
  int position, rotaryDim;
};

/*
 * Scores of a tile's first `count` tokens, one run of equal offsets after the other; minus infinity where there is none.
 * `offset` is what the warp's q was rotated for.
 */
__device__ __forceinline__ void score_tile(const int2 (&tokens)[kTileTokens], int count, const Heads &heads, int &offset,
                                           bf16 *queries, const bf16 *keys, float (&scores)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; n++) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = -infinity();
  for (int first = 0; first < count;) {
    const int own = tokens[first].y;
    int end = first + 1;
    while (end < count && tokens[end].y == own) end++;
    if (own != offset) {
      __syncwarp();
      const float2 *row = heads.rotations + (long long)(heads.position - own) * (heads.rotaryDim / 2);
      rotate_queries(queries, heads.q, heads.count, row, heads.rotaryDim);
      offset = own;
      __syncwarp();
    }
    float products[kTiles][4];
    multiply_keys(queries, keys, products);
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int token = 8 * n + (threadIdx.x & 3) * 2 + i % 2;
        if (token >= first && token < end) scores[n][i] = products[n][i];
      }
    }
    first = end;
  }
}

/*
 * Turns scores into weights of the query heads g and g + 8, relative to the greatest so far. A lane adds its own to the
 * totals, which it rescales as `factors` says.
 */
__device__ __forceinline__ void weigh(float (&scores)[kTiles][4], float scaleLog2, Softmax (&softmax)[2],
                                      float (&factors)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = -infinity();
#pragma unroll
    for (int n = 0; n < kTiles; n++) top = fmaxf(top, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(softmax[r].greatest, fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2)) * scaleLog2);
    const float base = top == -infinity() ? 0.0f : top;
    factors[r] = exp2_fast(softmax[r].greatest - base);
    float total = softmax[r].total * factors[r];
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; i++) {
        scores[n][i] = exp2_fast(scores[n][i] * scaleLog2 - base);
        total += scores[n][i];
      }
    }
    softmax[r].greatest = top, softmax[r].total = total;
  }
}

/* Adds V of a tile's tokens by their weights, [16 query heads][HEAD_DIM] as scores are laid out, to sums by `factors`. */
__device__ __forceinline__ void multiply_values(const float (&weights)[kTiles][4], const bf16 *values,
                                                const float (&factors)[2], float (&sums)[HEAD_DIM / 8][4]) {
  const int lane = threadIdx.x & 31;
  values += (lane % 16) * kStride + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < HEAD_DIM / 8; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) sums[n][i] *= factors[i / 2];
  }
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

/* The tiles of a warp, and its sums in the place of their rows. */
__device__ __forceinline__ void add_tiles(Part &part, const Source &from, int first, const Heads &heads, float scaleLog2,
                                          bf16 *shared) {
  constexpr int kStep = kWarps * kTileTokens;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  bf16 *rows = shared + kQueryRows * kStride;
  float sums[HEAD_DIM / 8][4] = {};
  Softmax softmax[2] = {{-infinity(), 0}, {-infinity(), 0}};
  int offset = 1 << 30; /* of nothing */
  first += warp * kTileTokens;
  if (first < from.end) copy_tile(from, first, part.tokens[warp][0], rows);
  commit_copies();
  for (int stage = 0; first < from.end; first += kStep, stage ^= 1) {
    if (first + kStep < from.end) {
      copy_tile(from, first + kStep, part.tokens[warp][stage ^ 1], rows + (stage ^ 1) * kTileSize);
    }
    commit_copies();
    wait_copies<1>();
    __syncwarp(); /* all lanes' copies of this tile have landed */
    const bf16 *keys = rows + stage * kTileSize;
    float weights[kTiles][4], factors[2];
    score_tile(part.tokens[warp][stage], min(kTileTokens, from.end - first), heads, offset, shared, keys, weights);
    weigh(weights, scaleLog2, softmax, factors);
    multiply_values(weights, keys + kTileTokens * kStride, factors, sums);
    __syncwarp(); /* no lane reads this tile any more */
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    softmax[r].total += __shfl_xor_sync(kAllLanes, softmax[r].total, 1);
    softmax[r].total += __shfl_xor_sync(kAllLanes, softmax[r].total, 2);
    const int head = lane / 4 + 8 * r;
    if (head >= heads.count) continue;
    if (lane % 4 == 0) part.totals[warp][head] = make_float2(softmax[r].greatest, softmax[r].total);
    float *to = reinterpret_cast<float *>(rows) + head * HEAD_DIM + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; n++) {
      *reinterpret_cast<float2 *>(to + 8 * n) = make_float2(sums[n][2 * r], sums[n][2 * r + 1]);
    }
  }
}

/* Numbers i and i + 1 of the part's sums over its warps, and the head's greatest score and total. */
__device__ __forceinline__ float2 merge_warps(const Part &part, const bf16 *shared, int i, float2 &total) {
  const int head = i / HEAD_DIM;
  float greatest = -infinity(), all = 0;
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int w = 0; w < kWarps; w++) greatest = fmaxf(greatest, part.totals[w][head].x);
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    const float2 own = part.totals[w][head];
    const bf16 *rows = shared + w * kWarpSize + kQueryRows * kStride;
    const float2 values = *reinterpret_cast<const float2 *>(reinterpret_cast<const float *>(rows) + i);
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

extern "C" __global__ void __launch_bounds__(kThreads, HEAD_DIM > 128 ? 1 : 2)
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
  /* Whole tiles; no thread block has more than the first. */
  const int tokens = entry.take + entry.tailTokens, even = (tokens + gridDim.x - 1) / gridDim.x;
  const int partTokens = max(kLeastPart, (even + kTileTokens - 1) / kTileTokens * kTileTokens);
  const int splits = (tokens + partTokens - 1) / partTokens, first = blockIdx.x * partTokens;
  if (first >= tokens) return;
  const Source source = {plan,    entry,   lists + size_t(blockIdx.y) * listStride, pool, kvHead,
                         kvHeads, 31 - __clz(blockTokens), min(tokens, first + partTokens)};
  const bf16 *q = qkv + (size_t(entry.row) * (queryHeads + 2 * kvHeads) + kvHead * group) * HEAD_DIM;
  const Heads heads = {q, group, rotations, entry.position, rotaryDim};
  add_tiles(part, source, first, heads, scaleLog2, shared + (threadIdx.x >> 5) * kWarpSize);
  __syncthreads();
  const size_t at = (size_t(index) * maxSplits + blockIdx.x) * queryHeads + kvHead * group;
  for (int i = 2 * threadIdx.x; i < group * HEAD_DIM; i += 2 * kThreads) {
    float2 total;
    *reinterpret_cast<float2 *>(partials + at * HEAD_DIM + i) = merge_warps(part, shared, i, total);
    if (i % HEAD_DIM == 0) partialSums[at + i / HEAD_DIM] = total;
  }
  if (!is_last(arrivals + blockIdx.y, splits)) return;
  const size_t parts = size_t(index) * maxSplits * queryHeads + kvHead * group;
  bf16 *to = out + (size_t(entry.row) * queryHeads + kvHead * group) * HEAD_DIM;
  merge_parts(partials + parts * HEAD_DIM, partialSums + parts, queryHeads, splits, group, to);
}
