/*
 * Chooses by the scores (choice_plan.cuh) of one layer: for each entry and KV head the list of the tokens that the row
 * reads, rising by number.
 *
 *   L_h = log2 of the sum over the candidates of 2^z_h;   score = the greatest of z_h - L_h over the KV head's query heads
 *
 * Forced tokens are in the list always; the rest of it are those with the greatest score as float16, of equal scores the
 * lower numbers. A score is not above 0 but for rounding, so its bits without the sign are compared, fewer first: a
 * token's rank is 0 if it is forced, else one more than these bits.
 *
 *   lists int2 [entries][kvHeads][listStride]: slot in the pool, and the offset of the token's segment
 *   counts: as in choice_counts.cuh
 *
 * Ranks are counted in two rounds, the upper 11 bits and the lower 4 of those at the limit, and then a list is filled in
 * order. From sm_90 on kPeers thread blocks have a quarter of a list's candidates each, and read each other's counts in
 * shared memory; elsewhere the first has them all, and the others nothing to do. For 8 rows of 32,768 tokens it takes 22 us
 * on an H200: what passes between its rounds, not the scores' bytes from the L2 cache.
 *
 * Grid: (rows that choose at most * kvHeads * kListBlocks) of 512 threads. Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_counts.cuh"
#include "choice_plan.cuh"
#include "cluster.cuh"
#include "shadow.cuh"

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kListBlocks = 4, kPeers = kHasClusters ? kListBlocks : 1;
constexpr int kLowBits = 4, kBins = 1 << (15 - kLowBits), kLowBins = 1 << kLowBits;
constexpr int kBinsPerThread = kBins / kThreads;
static_assert(kBinsPerThread == 4, "a thread reads its bins at once");
/* Less than log2 of any sum of powers. */
constexpr float kLeast = -1e30f;
/* Behind the last candidate. Ranks end at that of the least finite number of float16. */
constexpr uint32 kNoRank = 0xffff;
/* Pairs of tokens whose scores a thread has under way. */
constexpr int kAhead = 4;
/* Tokens of a thread block whose ranks it keeps; those of others are made again where they are needed. */
constexpr int kKeptRanks = 16384;
/* Tokens in a row of which a thread fills the list. */
constexpr int kLane = 16;

struct Shared {
  int bins[kBins]; /* of ranks; then numbers of tokens of the list */
  uint32 ranks[kKeptRanks / 2];
  int low[kLowBins];
  int2 allLow[kLowBins]; /* of all thread blocks of the list, and of those before this one */
  float sums[kMaxGroup];
  int scratch[kWarps + 1];
  int found[2];
};

/* What a thread block has of a list's candidates: `count` of them from number `first` on, and their scores. */
struct Slice {
  int first, count;
  int passes;
  const unsigned short *scores; /* of the slice's first token, in the first pass */
  size_t passStride;
};

__device__ __forceinline__ Slice slice_of(const ChoiceEntry &entry, int peer, int kvHead, int kvHeads, int group,
                                          const unsigned short *scores) {
  const int each = ((entry.candidates + kPeers - 1) / kPeers + 7) / 8 * 8;
  Slice slice;
  slice.first = min(peer * each, entry.candidates), slice.count = min(each, entry.candidates - slice.first);
  slice.passes = passes_of(group), slice.passStride = size_t(entry.scoreStride) * kPassHeads;
  slice.scores = scores + scores_at(entry, kvHead, kvHeads, slice.passes) + size_t(slice.first) * kPassHeads;
  return slice;
}

/* What stands before this thread's x in the block, and in `total` the sum. */
__device__ __forceinline__ int scan_before(int x, int (&scratch)[kWarps + 1], int &total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int sum = x;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    before += w < warp ? scratch[w] : 0;
    all += scratch[w];
  }
  total = all;
  __syncthreads();
  return before + sum - x;
}

/* L of the query heads of a KV head, by the parts of the entry's units: a warp each; 0 for heads that there are not. */
__device__ __forceinline__ void find_sums(const ChoiceEntry &entry, const float *parts, int kvHead, int kvHeads, int group,
                                          float (&sums)[kMaxGroup]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, width = passes_of(group) * kPassHeads;
  if (warp < group) {
    const float *own = parts + (size_t(entry.firstUnit) * kvHeads + kvHead) * width + warp;
    const size_t stride = size_t(kvHeads) * width;
    float greatest = kLeast, sum = 0;
#pragma unroll 4
    for (int u = lane; u < entry.unitCount; u += 32) {
      const float part = own[u * stride], top = fmaxf(greatest, part);
      sum = sum * exp2_fast(greatest - top) + exp2_fast(part - top), greatest = top;
    }
    const float top = warp_max(greatest);
    sum = warp_sum(sum * exp2_fast(greatest - top));
    if (lane == 0) sums[warp] = top + log2f(sum);
  } else if (warp < kMaxGroup && lane == 0) {
    sums[warp] = 0;
  }
  __syncthreads();
}

/* The greatest scores of two tokens, by those of four query heads each. */
__device__ __forceinline__ void add_scores(const uint4 &scores, const float *sums, float (&best)[2]) {
  const uint32 words[4] = {scores.x, scores.y, scores.z, scores.w};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float z = half_to_float(static_cast<unsigned short>(words[i / 2] >> 16 * (i % 2)));
    best[i / 4] = fmaxf(best[i / 4], z - sums[i % 4]);
  }
}

/* Ranks of tokens `first` and the next of a slice. */
__device__ __forceinline__ uint32 rank_pair(const Slice &slice, int first, const float (&best)[2]) {
  uint32 ranks = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32 rank = best[i] == infinity() ? 0 : (to_finite_half(best[i]) & 0x7fff) + 1;
    ranks |= (first + i < slice.count ? rank : kNoRank) << 16 * i;
  }
  return ranks;
}

/* Ranks of kAhead pairs of tokens, `step` tokens from one to the next. */
__device__ __forceinline__ void rank_pairs(const Slice &slice, const float *sums, int first, int step,
                                           uint32 (&ranks)[kAhead]) {
  float best[kAhead][2];
#pragma unroll
  for (int a = 0; a < kAhead; a++) best[a][0] = best[a][1] = -infinity();
  for (int pass = 0; pass < slice.passes; pass++) {
    const unsigned short *from = slice.scores + pass * slice.passStride;
    uint4 scores[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      const int token = min(first + a * step, (slice.count - 1) & ~1);
      scores[a] = *reinterpret_cast<const uint4 *>(from + size_t(token) * kPassHeads);
    }
#pragma unroll
    for (int a = 0; a < kAhead; a++) add_scores(scores[a], sums + pass * kPassHeads, best[a]);
  }
#pragma unroll
  for (int a = 0; a < kAhead; a++) ranks[a] = rank_pair(slice, first + a * step, best[a]);
}

/* Ranks of token `first`, an even one, and the next, once all were ranked. */
__device__ __forceinline__ uint32 ranks_of(const Slice &slice, const Shared &shared, int first) {
  if (first < kKeptRanks) return shared.ranks[first / 2];
  float best[2] = {-infinity(), -infinity()};
  for (int pass = 0; pass < slice.passes; pass++) {
    const unsigned short *from = slice.scores + pass * slice.passStride + size_t(first) * kPassHeads;
    add_scores(*reinterpret_cast<const uint4 *>(from), shared.sums + pass * kPassHeads, best);
  }
  return rank_pair(slice, first, best);
}

/* Ranks all tokens of the slice, and counts them by their upper bits. */
__device__ __forceinline__ void rank_tokens(const Slice &slice, Shared &shared) {
  constexpr int kStep = 2 * kThreads;
  for (int base = 2 * threadIdx.x; base < slice.count; base += kAhead * kStep) {
    uint32 ranks[kAhead];
    rank_pairs(slice, shared.sums, base, kStep, ranks);
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      const int first = base + a * kStep;
      if (first >= slice.count) break;
      if (first < kKeptRanks) shared.ranks[first / 2] = ranks[a];
      atomicAdd(shared.bins + ((ranks[a] & 0xffff) >> kLowBits), 1);
      if (first + 1 < slice.count) atomicAdd(shared.bins + (ranks[a] >> 16 >> kLowBits), 1);
    }
  }
}

/* What of a list there is before a thread block's tokens, and how far the list goes. */
struct Limit {
  int rank, equal;              /* tokens below the rank are taken, and so many at it */
  int takenBefore, equalBefore; /* below it and at it, of the thread blocks before */
};

/* The bin of the last token that is taken, and in `take` how many are of that bin. */
__device__ __forceinline__ int find_bin(Shared &shared, int peer, int &take, int &takenBefore) {
  int own[kBinsPerThread] = {}, before[kBinsPerThread] = {}, total;
#pragma unroll
  for (int p = 0; p < kPeers; p++) {
    const int4 four = peer_words(reinterpret_cast<const int4 *>(shared.bins) + threadIdx.x, p);
    const int bins[kBinsPerThread] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < kBinsPerThread; i++) own[i] += bins[i], before[i] += p < peer ? bins[i] : 0;
  }
  int sum = scan_before(own[0] + own[1] + own[2] + own[3], shared.scratch, total);
#pragma unroll
  for (int i = 0; i < kBinsPerThread; i++) {
    if (sum < take && sum + own[i] >= take) {
      shared.found[0] = threadIdx.x * kBinsPerThread + i, shared.found[1] = take - sum;
    }
    sum += own[i];
  }
  __syncthreads();
  const int bin = shared.found[0];
  take = shared.found[1];
  int below = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; i++) below += int(threadIdx.x) * kBinsPerThread + i < bin ? before[i] : 0;
  scan_before(below, shared.scratch, takenBefore);
  return bin;
}

/* Where the list of `take` tokens ends, when all tokens of all thread blocks are counted in bins. */
__device__ __forceinline__ Limit find_limit(const Slice &slice, int take, int peer, Shared &shared) {
  Limit limit;
  limit.equal = take;
  const int bin = find_bin(shared, peer, limit.equal, limit.takenBefore);
  for (int first = 2 * threadIdx.x; first < slice.count; first += 2 * kThreads) {
    const uint32 ranks = ranks_of(slice, shared, first);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32 rank = ranks >> 16 * i & 0xffff;
      if (int(rank >> kLowBits) == bin && rank != kNoRank) atomicAdd(shared.low + (rank & (kLowBins - 1)), 1);
    }
  }
  cluster_sync();
  if (threadIdx.x < kLowBins) {
    int all = 0, before = 0;
#pragma unroll
    for (int p = 0; p < kPeers; p++) {
      const int count = peer_word(shared.low + threadIdx.x, p);
      all += count, before += p < peer ? count : 0;
    }
    shared.allLow[threadIdx.x] = make_int2(all, before);
  }
  __syncthreads();
  for (int low = 0;; low++) {
    const int all = shared.allLow[low].x, before = shared.allLow[low].y;
    if (low + 1 == kLowBins || all >= limit.equal) {
      limit.rank = bin << kLowBits | low, limit.equalBefore = before;
      return limit;
    }
    limit.equal -= all, limit.takenBefore += before;
  }
}

/* Slot and offset of a candidate. */
__device__ __forceinline__ int2 place_of(const ChoicePlan &plan, const ChoiceEntry &entry, int number, int blockShift) {
  const ChoiceSegment *segments = reinterpret_cast<const ChoiceSegment *>(plan.step + entry.firstSegment);
  int low = 0;
  for (int high = entry.segmentCount; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (segments[middle].number <= number) low = middle;
    else high = middle;
  }
  const ChoiceSegment &own = segments[low];
  const TokenPlace place = place_in(plan.step, own.blocks, own.firstToken + number - own.number, blockShift);
  return make_int2((place.block << blockShift) + place.token, own.offset);
}

/* Tokens [first, first + kLane) of a slice: which are below the limit, and which at it, as bits. */
struct Taken {
  uint32 below, equal;
};

__device__ __forceinline__ Taken taken_of(const Slice &slice, const Shared &shared, int first, int limit) {
  Taken taken = {0, 0};
  if (first >= slice.count) return taken;
#pragma unroll
  for (int pair = 0; pair < kLane / 2; pair++) {
    const uint32 both = first + 2 * pair < slice.count ? ranks_of(slice, shared, first + 2 * pair) : ~0u;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int rank = both >> 16 * i & 0xffff;
      taken.below |= uint32(rank < limit) << (2 * pair + i), taken.equal |= uint32(rank == limit) << (2 * pair + i);
    }
  }
  return taken;
}

/* The slice's tokens below the limit and those at it that the list has, in order. `bins` are used for something else now. */
__device__ __forceinline__ void fill_list(const ChoicePlan &plan, const ChoiceEntry &entry, const Slice &slice,
                                          const Limit &limit, int blockShift, Shared &shared, int2 *list) {
  int takenBefore = limit.takenBefore, equalBefore = limit.equalBefore;
  for (int tile = 0; tile < slice.count; tile += kThreads * kLane) {
    const int first = tile + threadIdx.x * kLane;
    const Taken own = taken_of(slice, shared, first, limit.rank);
    /* Up to 8192 in each half of a word. */
    int total;
    const int before = scan_before(__popc(own.below) | __popc(own.equal) << 16, shared.scratch, total);
    const int start = takenBefore + min(equalBefore, limit.equal);
    int taken = takenBefore + (before & 0xffff), same = equalBefore + (before >> 16);
    takenBefore += total & 0xffff, equalBefore += total >> 16;
    const int end = takenBefore + min(equalBefore, limit.equal);
    for (int window = start; window < end; window += kBins) {
      int below = taken, equal = same;
      for (uint32 bits = own.below | own.equal; bits != 0; bits &= bits - 1) {
        const int i = __ffs(bits) - 1;
        const bool isEqual = own.equal >> i & 1;
        const int at = below + min(equal, limit.equal) - window;
        if ((!isEqual || equal < limit.equal) && at >= 0 && at < kBins) shared.bins[at] = slice.first + first + i;
        below += !isEqual, equal += isEqual;
      }
      __syncthreads();
      for (int i = threadIdx.x; i < min(kBins, end - window); i += kThreads) {
        list[window + i] = place_of(plan, entry, shared.bins[i], blockShift);
      }
      __syncthreads();
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) CLUSTER_OF(kListBlocks)
choose_tokens(const int *step, const int *choicePlace, int queryHeads, int kvHeads, int blockShift, int listStride,
              const float *parts, const unsigned short *scores, int2 *lists, uint64 *counts) {
  __shared__ __align__(16) Shared shared;
  let_next_begin();
  const ChoicePlan plan = choice_plan(step, choicePlace);
  const int number = blockIdx.x / kListBlocks, peer = blockIdx.x % kListBlocks;
  const int index = number / kvHeads, kvHead = number % kvHeads, group = queryHeads / kvHeads;
  for (int i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
  if (threadIdx.x < kLowBins) shared.low[threadIdx.x] = 0;
  wait_for_previous();
  /* All thread blocks of a list leave here, or none. */
  if (index >= plan.entryCount || peer >= kPeers) return;
  const ChoiceEntry entry = plan.entries[index];
  const Slice slice = slice_of(entry, peer, kvHead, kvHeads, group, scores);
  find_sums(entry, parts, kvHead, kvHeads, group, shared.sums);
  rank_tokens(slice, shared);
  cluster_sync();
  const Limit limit = find_limit(slice, entry.take, peer, shared);
  fill_list(plan, entry, slice, limit, blockShift, shared, lists + size_t(number) * listStride);
  if (peer == 0 && threadIdx.x == 0) count_list(entry, counts);
  cluster_sync(); /* the others have read this one's counts */
}
