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
 * shared memory; elsewhere the first has them all, and the others nothing to do. What takes its time is what passes between
 * its rounds, not the scores' bytes from the L2 cache: so thread blocks are small, for those of all lists of a step to run
 * at the same time.
 *
 * Grid: (rows that choose at most * kvHeads * kListBlocks) of 256 threads. Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_counts.cuh"
#include "choice_plan.cuh"
#include "cluster.cuh"
#include "shadow.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32;
/* Thread blocks of a multiprocessor at the same time. */
constexpr int kBlocks = 4;
constexpr int kListBlocks = 4, kPeers = kHasClusters ? kListBlocks : 1;
constexpr int kLowBits = 4, kBins = 1 << (15 - kLowBits), kLowBins = 1 << kLowBits;
constexpr int kBinsPerThread = kBins / kThreads;
static_assert(kBinsPerThread % 4 == 0, "a thread reads four bins at once");
/* Less than log2 of any sum of powers. */
constexpr float kLeast = -1e30f;
/* Behind the last candidate. Ranks end at that of the least finite number of float16. */
constexpr uint32 kNoRank = 0xffff;
/* Pairs of tokens whose scores a thread has under way, and the tokens of a thread block's. */
constexpr int kAhead = 8, kTile = 2 * kThreads * kAhead;
/* Tokens of a thread block whose ranks it keeps; those of others are made again where they are needed. */
constexpr int kKeptRanks = 16384;
struct Shared {
  int bins[kBins]; /* of ranks; then numbers of tokens of the list */
  uint32 ranks[kKeptRanks / 2];
  int low[kLowBins];
  float sums[kMaxGroup];
  int2 scratch[kWarps];
  int found[3];
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

/* The sum over the warps before this one, and over all; the thread block must wait before the next. */
__device__ __forceinline__ int2 add_warps(int2 own, int2 (&scratch)[kWarps], int2 &total) {
  const int warp = threadIdx.x >> 5;
  if ((threadIdx.x & 31) == 0) scratch[warp] = own;
  __syncthreads();
  int2 before = make_int2(0, 0);
  total = make_int2(0, 0);
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    const int2 other = scratch[w];
    if (w < warp) before.x += other.x, before.y += other.y;
    total.x += other.x, total.y += other.y;
  }
  return before;
}

/* The sum over the threads of a warp up to this one. */
__device__ __forceinline__ int scan_warp(int x) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const int other = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

/* L of the query heads of a KV head, by the parts of the entry's units: a warp each; 0 for heads that there are not. */
__device__ __forceinline__ void find_sums(const ChoiceEntry &entry, const float *parts, int kvHead, int kvHeads, int group,
                                          float (&sums)[kMaxGroup]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, width = passes_of(group) * kPassHeads;
  for (int head = warp; head < kMaxGroup; head += kWarps) {
    if (head >= group) {
      if (lane == 0) sums[head] = 0;
      continue;
    }
    const float *own = parts + (size_t(entry.firstUnit) * kvHeads + kvHead) * width + head;
    const size_t stride = size_t(kvHeads) * width;
    float greatest = kLeast, sum = 0;
#pragma unroll 4
    for (int u = lane; u < entry.unitCount; u += 32) {
      const float part = own[u * stride], top = fmaxf(greatest, part);
      sum = sum * exp2_fast(greatest - top) + exp2_fast(part - top), greatest = top;
    }
    const float top = warp_max(greatest);
    sum = warp_sum(sum * exp2_fast(greatest - top));
    if (lane == 0) sums[head] = top + log2f(sum);
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

/* Scores of kAhead pairs of tokens in one pass, of the tile that begins at token `tile` of a slice. */
struct TileScores {
  uint4 scores[kAhead];

  __device__ __forceinline__ void load(const Slice &slice, int tile, int pass) {
    const unsigned short *from = slice.scores + pass * slice.passStride;
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      const int token = min(tile + 2 * int(threadIdx.x + a * kThreads), (slice.count - 1) & ~1);
      scores[a] = *reinterpret_cast<const uint4 *>(from + size_t(token) * kPassHeads);
    }
  }
};

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

/* Ranks a tile of the slice, of which the scores of the first pass are there, and counts ranks by their upper bits. */
__device__ __forceinline__ void rank_tile(const Slice &slice, int tile, TileScores &loaded, Shared &shared) {
  float best[kAhead][2];
#pragma unroll
  for (int a = 0; a < kAhead; a++) best[a][0] = best[a][1] = -infinity();
  for (int pass = 0; pass < slice.passes; pass++) {
    if (pass > 0) loaded.load(slice, tile, pass);
#pragma unroll
    for (int a = 0; a < kAhead; a++) add_scores(loaded.scores[a], shared.sums + pass * kPassHeads, best[a]);
  }
#pragma unroll
  for (int a = 0; a < kAhead; a++) {
    const int first = tile + 2 * int(threadIdx.x + a * kThreads);
    if (first >= slice.count) break;
    const uint32 ranks = rank_pair(slice, first, best[a]);
    if (first < kKeptRanks) shared.ranks[first / 2] = ranks;
    atomicAdd(shared.bins + ((ranks & 0xffff) >> kLowBits), 1);
    if (first + 1 < slice.count) atomicAdd(shared.bins + (ranks >> 16 >> kLowBits), 1);
  }
}

/* What of a list there is before a thread block's tokens, and how far the list goes. */
struct Limit {
  int rank, equal;              /* tokens below the rank are taken, and so many at it */
  int takenBefore, equalBefore; /* below it and at it, of the thread blocks before */
};

/* The bin of the last token that is taken; `take` becomes how many are of that bin. All thread blocks have counted. */
__device__ __forceinline__ int find_bin(Shared &shared, int peer, int &take, int &takenBefore) {
  int own[kBinsPerThread] = {}, before[kBinsPerThread] = {};
#pragma unroll
  for (int p = 0; p < kPeers; p++) {
#pragma unroll
    for (int first = 0; first < kBinsPerThread; first += 4) {
      const int4 *from = reinterpret_cast<const int4 *>(shared.bins + threadIdx.x * kBinsPerThread + first);
      const int4 four = peer_words(from, p);
      const int bins[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; i++) own[first + i] += bins[i], before[first + i] += p < peer ? bins[i] : 0;
    }
  }
  int2 thread = make_int2(0, 0);
#pragma unroll
  for (int i = 0; i < kBinsPerThread; i++) thread.x += own[i], thread.y += before[i];
  const int2 upTo = make_int2(scan_warp(thread.x), scan_warp(thread.y));
  const int2 warp = make_int2(__shfl_sync(kAllLanes, upTo.x, 31), __shfl_sync(kAllLanes, upTo.y, 31));
  int2 total;
  const int2 start = add_warps(warp, shared.scratch, total);
  int sum = start.x + upTo.x - thread.x, sumBefore = start.y + upTo.y - thread.y;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; i++) {
    if (sum < take && sum + own[i] >= take) {
      shared.found[0] = threadIdx.x * kBinsPerThread + i, shared.found[1] = take - sum, shared.found[2] = sumBefore;
    }
    sum += own[i], sumBefore += before[i];
  }
  __syncthreads();
  take = shared.found[1], takenBefore = shared.found[2];
  return shared.found[0];
}

/* Where the list of `take` tokens ends, when all tokens of the thread block are counted in bins. */
__device__ __forceinline__ Limit find_limit(const Slice &slice, int take, int peer, Shared &shared) {
  Limit limit;
  cluster_sync();
  const int bin = find_bin(shared, peer, take, limit.takenBefore);
  for (int first = 2 * threadIdx.x; first < slice.count; first += 2 * kThreads) {
    const uint32 ranks = ranks_of(slice, shared, first);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32 rank = ranks >> 16 * i & 0xffff;
      if (int(rank >> kLowBits) == bin && rank != kNoRank) atomicAdd(shared.low + (rank & (kLowBins - 1)), 1);
    }
  }
  cluster_sync();
  /* Each warp for itself, a lane a count. */
  const int lane = threadIdx.x & 31;
  int all = 0, before = 0;
#pragma unroll
  for (int p = 0; p < kPeers; p++) {
    const int count = lane < kLowBins ? peer_word(shared.low + lane, p) : 0;
    all += count, before += p < peer ? count : 0;
  }
  const int upTo = scan_warp(all), beforeUpTo = scan_warp(before);
  const int low = min(__ffs(__ballot_sync(kAllLanes, upTo >= take)), kLowBins) - 1;
  limit.rank = bin << kLowBits | low;
  limit.equal = take - __shfl_sync(kAllLanes, upTo - all, low);
  limit.equalBefore = __shfl_sync(kAllLanes, before, low);
  limit.takenBefore += __shfl_sync(kAllLanes, beforeUpTo - before, low);
  return limit;
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

/* Of a pair of tokens of each lane: which are below the limit and which at it, a word of lanes for each of both. */
struct Taken {
  uint32 below[2], equal[2];

  __device__ __forceinline__ Taken(uint32 ranks, int limit) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int rank = ranks >> 16 * i & 0xffff;
      below[i] = __ballot_sync(kAllLanes, rank < limit), equal[i] = __ballot_sync(kAllLanes, rank == limit);
    }
  }
  __device__ __forceinline__ int2 count() const {
    return make_int2(__popc(below[0]) + __popc(below[1]), __popc(equal[0]) + __popc(equal[1]));
  }
};

/* The slice's tokens below the limit and those at it that the list has, in order. `bins` are used for something else now. */
__device__ __forceinline__ void fill_list(const ChoicePlan &plan, const ChoiceEntry &entry, const Slice &slice,
                                          const Limit &limit, int blockShift, Shared &shared, int2 *list) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const uint32 lanesBefore = (1u << lane) - 1;
  int2 done = make_int2(limit.takenBefore, limit.equalBefore);
  for (int tile = 0; tile < slice.count; tile += kTile) {
    /* A warp has tokens that follow each other. */
    const int start = tile + warp * (kTile / kWarps);
    uint32 ranks[kAhead];
    int2 own = make_int2(0, 0), total;
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      const int first = start + 64 * a + 2 * lane;
      ranks[a] = first < slice.count ? ranks_of(slice, shared, first) : ~0u;
      const int2 count = Taken(ranks[a], limit.rank).count();
      own.x += count.x, own.y += count.y;
    }
    const int2 before = add_warps(own, shared.scratch, total);
    __syncthreads(); /* for the next tile, whose sums go there too */
    const int begin = done.x + min(done.y, limit.equal);
    int2 warpDone = make_int2(done.x + before.x, done.y + before.y);
    done.x += total.x, done.y += total.y;
    const int end = done.x + min(done.y, limit.equal);
    for (int window = begin; window < end; window += kBins) {
      int2 upTo = warpDone;
#pragma unroll
      for (int a = 0; a < kAhead; a++) {
        const Taken taken(ranks[a], limit.rank);
        int below = upTo.x + __popc(taken.below[0] & lanesBefore) + __popc(taken.below[1] & lanesBefore);
        int equal = upTo.y + __popc(taken.equal[0] & lanesBefore) + __popc(taken.equal[1] & lanesBefore);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const bool isBelow = taken.below[i] >> lane & 1, isEqual = taken.equal[i] >> lane & 1;
          const int at = below + min(equal, limit.equal) - window;
          const bool isTaken = isBelow || (isEqual && equal < limit.equal);
          if (isTaken && at >= 0 && at < kBins) shared.bins[at] = slice.first + start + 64 * a + 2 * lane + i;
          below += isBelow, equal += isEqual;
        }
        const int2 count = taken.count();
        upTo.x += count.x, upTo.y += count.y;
      }
      __syncthreads();
      for (int i = threadIdx.x; i < min(kBins, end - window); i += kThreads) {
        list[window + i] = place_of(plan, entry, shared.bins[i], blockShift);
      }
      __syncthreads();
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) CLUSTER_OF(kListBlocks)
choose_tokens(const int *step, const int *choicePlace, int queryHeads, int kvHeads, int blockShift, int listStride,
              const float *parts, const unsigned short *allScores, int2 *lists, uint64 *counts) {
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
  const Slice slice = slice_of(entry, peer, kvHead, kvHeads, group, allScores);
  TileScores scores;
  if (slice.count > 0) scores.load(slice, 0, 0);
  find_sums(entry, parts, kvHead, kvHeads, group, shared.sums);
  for (int tile = 0; tile < slice.count; tile += kTile) {
    if (tile > 0) scores.load(slice, tile, 0);
    rank_tile(slice, tile, scores, shared);
  }
  const Limit limit = find_limit(slice, entry.take, peer, shared);
  fill_list(plan, entry, slice, limit, blockShift, shared, lists + size_t(number) * listStride);
  if (peer == 0 && threadIdx.x == 0) count_list(entry, counts);
  cluster_sync(); /* the others have read this one's counts */
}
