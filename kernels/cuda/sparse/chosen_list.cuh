/*
 * Which tokens a row reads, by the scores (choice_plan.cuh) of one layer: for each entry and KV head a list, rising by
 * number.
 *
 *   L_h = log2 of the sum over the candidates of 2^z_h;   score = the greatest of z_h - L_h over the KV head's query heads
 *
 * Forced tokens are in the list always; the rest of it are those with the greatest score as float16, of equal scores the
 * lower numbers. A score is not above 0 but for rounding, so its bits without the sign are compared, fewer first: a
 * token's rank is 0 if it is forced, else one more than these bits.
 *
 *   lists int2 [entries][kvHeads][listStride]: slot in the pool, and the offset of the token's segment
 *
 * kPeers thread blocks of a cluster have a part of a list's candidates each, at most kMostCandidates. Every rank has a
 * counter of 16 bits in shared memory, so that tokens are counted once: by the sums over kGroupRanks counters each, which
 * the thread blocks read from each other, all of them know in which group the list ends, and by the group's own counters
 * at which rank. Then each fills its part of the list.
 */
#ifndef SPANGATE_CHOSEN_LIST_CUH
#define SPANGATE_CHOSEN_LIST_CUH

#include "choice_plan.cuh"
#include "cluster.cuh"
#include "shadow.cuh"

constexpr int kThreads = 128, kWarps = kThreads / 32;
/* Ranks end at one more than the bits of the greatest finite float16; a thread has a group of them. */
constexpr int kGroupRanks = 256, kBinWords = kThreads * kGroupRanks / 2;
/* Of a thread block, so that no counter overflows. */
constexpr int kMostCandidates = 0xffff;
/* Behind the last candidate. */
constexpr uint32 kNoRank = 0x7fff;
/* Less than log2 of any sum of powers. */
constexpr float kLeastSum = -1e30f;
/* Pairs of tokens whose scores a thread has under way, and how far it is from one to the next. */
constexpr int kAhead = 16, kStep = 2 * kThreads;
/* Tokens of a thread block whose ranks it keeps; those of others are made again where they are needed. */
constexpr int kKeptRanks = 8192;
/* Tokens in a row that a lane goes through at a time. */
constexpr int kLane = 8;
/* Tokens of the list that are looked up at a time. */
constexpr int kStaged = 2048;

struct ListShared {
  uint4 ranks[kKeptRanks / kLane];
  unsigned short staged[kStaged];
  int groups[kThreads]; /* counts of ranks */
  float sums[kMaxGroup];
  int scratch[2][kWarps];
  int found[5];
};

/* What a thread block has of a list's candidates: `count` of them from number `first` on, and their scores. */
struct Slice {
  int first, count;
  int passes;
  const unsigned short *scores; /* of the slice's first token, in the first pass */
  size_t passStride;
};

template <int kPeers>
__device__ __forceinline__ Slice slice_of(const ChoiceEntry &entry, int peer, int kvHead, int kvHeads, int group,
                                          const unsigned short *scores) {
  const int each = ((entry.candidates + kPeers - 1) / kPeers + kLane - 1) / kLane * kLane;
  Slice slice;
  slice.first = min(peer * each, entry.candidates), slice.count = min(each, entry.candidates - slice.first);
  slice.passes = passes_of(group), slice.passStride = size_t(entry.scoreStride) * kPassHeads;
  slice.scores = scores + scores_at(entry, kvHead, kvHeads, slice.passes) + size_t(slice.first) * kPassHeads;
  return slice;
}

/* What stands before this thread's x in the block, and in `total` the sum. `scratch` is used by nobody else meanwhile. */
__device__ __forceinline__ int scan_before(int x, int (&scratch)[kWarps], int &total) {
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
  return before + sum - x;
}

/* L of the query heads of a KV head, by the parts of the entry's units; 0 for heads that there are not. */
__device__ __forceinline__ void find_sums(const ChoiceEntry &entry, const float *parts, int kvHead, int kvHeads, int group,
                                          float (&sums)[kMaxGroup]) {
  const int lane = threadIdx.x & 31, width = passes_of(group) * kPassHeads;
  for (int head = threadIdx.x >> 5; head < kMaxGroup; head += kWarps) {
    if (head >= group) {
      if (lane == 0) sums[head] = 0;
      continue;
    }
    const float *own = parts + (size_t(entry.firstUnit) * kvHeads + kvHead) * width + head;
    const size_t stride = size_t(kvHeads) * width;
    float greatest = kLeastSum, sum = 0;
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

/* Scores of four query heads of two tokens each: of those `first` and the next, and so on, kStep tokens apart. */
struct Scores2 {
  uint4 pairs[kAhead];

  __device__ __forceinline__ void load(const Slice &slice, int pass, int first) {
    const unsigned short *from = slice.scores + pass * slice.passStride;
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      const int token = min(first + a * kStep, (slice.count - 1) & ~1);
      pairs[a] = *reinterpret_cast<const uint4 *>(from + size_t(token) * kPassHeads);
    }
  }
};

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
  const uint32 bits = to_finite_halves(best[0], best[1]);
  uint32 ranks = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32 rank = best[i] == infinity() ? 0 : (bits >> 16 * i & 0x7fff) + 1;
    ranks |= (first + i < slice.count ? rank : kNoRank) << 16 * i;
  }
  return ranks;
}

__device__ __forceinline__ void count_rank(uint32 (&bins)[kBinWords], uint32 rank) {
  if (rank != kNoRank) atomicAdd(bins + rank / 2, 1u << 16 * (rank % 2));
}

/* Ranks all tokens of the slice, and counts them. `next`: the scores of the thread's first ones. */
__device__ __forceinline__ void rank_tokens(const Slice &slice, Scores2 &next, ListShared &shared,
                                            uint32 (&bins)[kBinWords]) {
  const int padded = (slice.count + kLane - 1) / kLane * kLane;
  for (int base = 2 * threadIdx.x; base < padded; base += kAhead * kStep) {
    Scores2 own = next;
    if (base + kAhead * kStep < padded) next.load(slice, 0, base + kAhead * kStep);
    float best[kAhead][2];
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      best[a][0] = best[a][1] = -infinity();
      add_scores(own.pairs[a], shared.sums, best[a]);
    }
    for (int pass = 1; pass < slice.passes; pass++) {
      own.load(slice, pass, base);
#pragma unroll
      for (int a = 0; a < kAhead; a++) add_scores(own.pairs[a], shared.sums + pass * kPassHeads, best[a]);
    }
#pragma unroll
    for (int a = 0; a < kAhead; a++) {
      const int first = base + a * kStep;
      if (first >= padded) break;
      const uint32 ranks = rank_pair(slice, first, best[a]);
      if (first < kKeptRanks) reinterpret_cast<uint32 *>(shared.ranks)[first / 2] = ranks;
      count_rank(bins, ranks & 0xffff), count_rank(bins, ranks >> 16);
    }
  }
}

/* Ranks of kLane tokens from `first` on, once all were ranked. */
__device__ __forceinline__ uint4 ranks_of(const Slice &slice, const ListShared &shared, int first) {
  if (first < kKeptRanks) return shared.ranks[first / kLane];
  uint32 words[kLane / 2];
#pragma unroll
  for (int pair = 0; pair < kLane / 2; pair++) {
    const int token = min(first + 2 * pair, (slice.count - 1) & ~1);
    float best[2] = {-infinity(), -infinity()};
    for (int pass = 0; pass < slice.passes; pass++) {
      const unsigned short *from = slice.scores + pass * slice.passStride + size_t(token) * kPassHeads;
      add_scores(*reinterpret_cast<const uint4 *>(from), shared.sums + pass * kPassHeads, best);
    }
    words[pair] = rank_pair(slice, first + 2 * pair, best);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Sums over the thread's group of counters. The counters of all candidates fit in 16 bits, and so do their sums. */
__device__ __forceinline__ int count_group(const uint32 (&bins)[kBinWords]) {
  constexpr int kVectors = kGroupRanks / 8;
  const uint4 *own = reinterpret_cast<const uint4 *>(bins) + threadIdx.x * kVectors;
  uint32 sum = 0;
#pragma unroll 8
  for (int i = 0; i < kVectors; i++) {
    const uint4 four = own[(i + threadIdx.x) % kVectors]; /* neighbours read other banks */
    sum += four.x + four.y + (four.z + four.w);
  }
  return int(sum & 0xffff) + int(sum >> 16);
}

/* What of a list there is before a thread block's tokens, and how far the list goes. */
struct Limit {
  int rank, equal;              /* tokens below the rank are taken, and so many at it */
  int takenBefore, equalBefore; /* below it and at it, of the thread blocks before */
};

/* Where the list of `take` tokens ends, when all thread blocks have their counts in `bins` and in their groups. */
template <int kPeers>
__device__ __forceinline__ Limit find_limit(int take, int peer, const uint32 (&bins)[kBinWords], ListShared &shared) {
  const int thread = threadIdx.x;
  int all = 0, before = 0, total;
#pragma unroll
  for (int p = 0; p < kPeers; p++) {
    const int count = int(peer_word<kPeers>(shared.groups + thread, p));
    all += count, before += p < peer ? count : 0;
  }
  const int start = scan_before(all, shared.scratch[0], total);
  if (start < take && start + all >= take) shared.found[0] = thread, shared.found[1] = take - start;
  __syncthreads();
  const int group = shared.found[0], left = shared.found[1];
  int counts[2] = {}, befores[2] = {};
#pragma unroll
  for (int p = 0; p < kPeers; p++) {
    const uint32 pair = peer_word<kPeers>(bins + group * (kGroupRanks / 2) + thread, p);
    counts[0] += int(pair & 0xffff), counts[1] += int(pair >> 16);
    if (p < peer) befores[0] += int(pair & 0xffff), befores[1] += int(pair >> 16);
  }
  int sum = scan_before(counts[0] + counts[1], shared.scratch[1], total);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (sum < left && sum + counts[i] >= left) {
      shared.found[2] = group * kGroupRanks + 2 * thread + i, shared.found[3] = left - sum, shared.found[4] = befores[i];
    }
    sum += counts[i];
  }
  __syncthreads();
  Limit limit = {shared.found[2], shared.found[3], 0, shared.found[4]};
  if constexpr (kPeers > 1) {
    int taken = thread < group ? before : 0;
#pragma unroll
    for (int i = 0; i < 2; i++) taken += group * kGroupRanks + 2 * thread + i < limit.rank ? befores[i] : 0;
    scan_before(taken, shared.scratch[0], limit.takenBefore);
  }
  return limit;
}

/* Slot and offset of a candidate; `first` is the entry's first segment. */
__device__ __forceinline__ int2 place_of(const ChoicePlan &plan, const ChoiceEntry &entry, const ChoiceSegment &first,
                                         int number, int blockShift) {
  const ChoiceSegment *segments = reinterpret_cast<const ChoiceSegment *>(plan.step + entry.firstSegment);
  ChoiceSegment own = first;
  if (entry.segmentCount > 1) {
    int low = 0;
    for (int high = entry.segmentCount; high - low > 1;) {
      const int middle = (low + high) / 2;
      if (segments[middle].number <= number) low = middle;
      else high = middle;
    }
    own = segments[low];
  }
  const TokenPlace place = place_in(plan.step, own.blocks, own.firstToken + number - own.number, blockShift);
  return make_int2((place.block << blockShift) + place.token, own.offset);
}

/* Tokens [first, first + kLane) of a slice: which are below the limit, and which at it, as bits. */
struct Taken {
  uint32 below, equal;
};

__device__ __forceinline__ Taken taken_of(const Slice &slice, const ListShared &shared, int first, int limit) {
  if (first >= slice.count) return {0, 0};
  const uint4 ranks = ranks_of(slice, shared, first);
  const uint32 words[kLane / 2] = {ranks.x, ranks.y, ranks.z, ranks.w};
  /* Of two ranks at once, whose bit 15 is left where the rank is not above the limit: ranks and limits have 15 bits. */
  const uint32 atMost = 0x80008000u + uint32(limit) * 0x10001u, below = atMost - 0x10001u;
  uint32 pairs[2] = {0, 0};
#pragma unroll
  for (int pair = 0; pair < kLane / 2; pair++) {
    pairs[0] |= ((below - words[pair]) >> 15 & 0x10001u) << 2 * pair;
    pairs[1] |= ((atMost - words[pair]) >> 15 & 0x10001u) << 2 * pair;
  }
  const uint32 mask = (1u << kLane) - 1;
  const uint32 isBelow = (pairs[0] | pairs[0] >> 15) & mask, isAtMost = (pairs[1] | pairs[1] >> 15) & mask;
  return {isBelow, isAtMost & ~isBelow};
}

__device__ __forceinline__ int upper_half(int both) { return int(uint32(both) >> 16); }

/* Tokens that are below the limit in the lower half, and those at it in the upper one. */
__device__ __forceinline__ int count_taken(const Taken &taken) {
  return __popc(taken.below) | int(uint32(__popc(taken.equal)) << 16);
}

/* What a warp goes through: `end` is not above the slice's count. */
struct Stretch {
  int first, end;
};

__device__ __forceinline__ Stretch stretch_of(const Slice &slice) {
  constexpr int kTile = 32 * kLane;
  const int each = ((slice.count + kWarps - 1) / kWarps + kTile - 1) / kTile * kTile, warp = threadIdx.x >> 5;
  return {warp * each, min((warp + 1) * each, slice.count)};
}

/* Puts those of a warp's tokens into `staged` whose places in the list are in [window, window + kStaged). */
__device__ __forceinline__ void stage_tokens(const Slice &slice, const Limit &limit, int taken, int same, int window,
                                             ListShared &shared) {
  const int lane = threadIdx.x & 31;
  const Stretch stretch = stretch_of(slice);
  for (int tile = stretch.first; tile < stretch.end; tile += 32 * kLane) {
    const int first = tile + lane * kLane;
    const Taken own = taken_of(slice, shared, first, limit.rank);
    int sum = count_taken(own);
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const int other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    const int before = sum - count_taken(own), all = __shfl_sync(kAllLanes, sum, 31);
    int below = taken + (before & 0xffff), equal = same + upper_half(before);
    for (uint32 bits = own.below | own.equal; bits != 0; bits &= bits - 1) {
      const int i = __ffs(bits) - 1;
      const bool isEqual = own.equal >> i & 1;
      const int at = below + min(equal, limit.equal) - window;
      if ((!isEqual || equal < limit.equal) && at >= 0 && at < kStaged) shared.staged[at] = first + i;
      below += !isEqual, equal += isEqual;
    }
    taken += all & 0xffff, same += upper_half(all);
  }
}

/* The slice's tokens below the limit and those at it that the list has, in order. */
__device__ __forceinline__ void fill_list(const ChoicePlan &plan, const ChoiceEntry &entry, const ChoiceSegment &segment,
                                          const Slice &slice, const Limit &limit, int blockShift, ListShared &shared,
                                          int2 *list) {
  const int lane = threadIdx.x & 31;
  const Stretch stretch = stretch_of(slice);
  int own = 0, total;
  for (int tile = stretch.first; tile < stretch.end; tile += 32 * kLane) {
    own += count_taken(taken_of(slice, shared, tile + lane * kLane, limit.rank));
  }
  /* A thread has what stands before it; of its warp the first lane's is that of all. */
  const int before = __shfl_sync(kAllLanes, scan_before(own, shared.scratch[1], total), 0);
  const int taken = limit.takenBefore + (before & 0xffff), same = limit.equalBefore + upper_half(before);
  const int start = limit.takenBefore + min(limit.equalBefore, limit.equal);
  const int end = limit.takenBefore + (total & 0xffff) + min(limit.equalBefore + upper_half(total), limit.equal);
  for (int window = start; window < end; window += kStaged) {
    stage_tokens(slice, limit, taken, same, window, shared);
    __syncthreads();
    const int count = min(kStaged, end - window);
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += kThreads) {
      list[window + i] = place_of(plan, entry, segment, slice.first + shared.staged[i], blockShift);
    }
    __syncthreads();
  }
}

#endif
