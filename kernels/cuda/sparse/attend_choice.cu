/*
 * The choice of a layer's rows and their attention: each thread block, or cluster of them, chooses the tokens of one row and
 * KV head (chosen_list.cuh has how), and then reads their K and V and those of the row's tail (chosen_tiles.cuh).
 *
 *   qkv, step, choicePlace, rotations, scores, parts as in score_shadows.cu; pool: this layer's
 *   lists as in chosen_list.cuh: written here, and read again by the other thread blocks of the cluster
 *   counts: as in choice_counts.cuh
 *   out [rows][queryHeads][HEAD_DIM] bf16
 *
 * A list needs its sums, and its end is known when all of its scores are: a launch of its own would cost what passes
 * between two launches twice, and lists and parts of the attention would go through memory. Here the thread blocks of a
 * list have a part of its candidates each, then a part of its tokens, then a part of its results, and see each other's
 * shared memory in between.
 *
 * Grid: (rows that choose at most * kvHeads * thread blocks of a list) of 128 threads, with kSharedBytes. Without clusters
 * the first of them does it all. Oracle: test/backend/cuda/emulated-sparse.ts.
 */
#include "choice_counts.cuh"
#include "chosen_list.cuh"
#include "chosen_tiles.cuh"

struct Shared {
  union {
    uint32 bins[kBinWords];
    WarpSums warps; /* once all thread blocks know where the list ends */
  };
  union {
    ListShared list;
    PartSums merged; /* once the list is filled */
  };
  RotatedQueries queries[kTileWarps];
};
constexpr int kSharedBytes = int(sizeof(Shared));
static_assert(kThreads == kTileThreads, "the same threads choose and read");

/* What a launch has for all of its rows. */
struct Launch {
  const bf16 *qkv;
  const float2 *rotations;
  const bf16 *pool;
  int queryHeads, kvHeads, rotaryDim, blockTokens, listStride;
  float scaleLog2;
  const float *parts;
  const unsigned short *scores;
  int2 *lists;
  uint64 *counts;
  bf16 *out;
};

/* The query heads of a KV head from number `first` of them on. */
__device__ __forceinline__ Heads heads_of(const Launch &launch, const ChoiceEntry &entry, int kvHead, int first) {
  const int group = launch.queryHeads / launch.kvHeads;
  const size_t row = size_t(entry.row) * (launch.queryHeads + 2 * launch.kvHeads) + kvHead * group;
  const bf16 *q = launch.qkv + (row + first) * HEAD_DIM;
  return {q, first, min(kHeads, group - first), launch.rotations, entry.position, launch.rotaryDim};
}

/* Chooses the list, and rotates q for the offset of its first token meanwhile. */
template <int kPeers>
__device__ __forceinline__ void choose(const Launch &launch, const ChoicePlan &plan, const ChoiceEntry &entry,
                                       const ChoiceSegment &segment, int kvHead, int peer, Shared &shared, int2 *list) {
  const int group = launch.queryHeads / launch.kvHeads, blockShift = 31 - __clz(launch.blockTokens);
  const Slice slice = slice_of<kPeers>(entry, peer, kvHead, launch.kvHeads, group, launch.scores);
  if (slice.count > kMostCandidates) __trap();
  Scores2 first;
  if (slice.count > 0) first.load(slice, 0, 2 * threadIdx.x);
  rotate_queries(shared.queries[threadIdx.x >> 5], heads_of(launch, entry, kvHead, 0), segment.offset);
  find_sums(entry, launch.parts, kvHead, launch.kvHeads, group, shared.list.sums);
  rank_tokens(slice, first, shared.list, shared.bins);
  __syncthreads();
  shared.list.groups[threadIdx.x] = count_group(shared.bins);
  cluster_sync<kPeers>();
  const Limit limit = find_limit<kPeers>(entry.take, peer, shared.bins, shared.list);
  fill_list(plan, entry, segment, slice, limit, blockShift, shared.list, list);
}

/* Reads this thread block's part of the list and the tail. */
template <int kPeers>
__device__ __forceinline__ void attend(const Launch &launch, const ChoicePlan &plan, const ChoiceEntry &entry,
                                       const ChoiceSegment &segment, int kvHead, int peer, Shared &shared, const int2 *list) {
  const int group = launch.queryHeads / launch.kvHeads;
  const int tokens = entry.take + entry.tailTokens, even = (tokens + kPeers - 1) / kPeers;
  const int each = (even + kTileTokens - 1) / kTileTokens * kTileTokens, first = peer * each;
  const int blockShift = 31 - __clz(launch.blockTokens), end = min(tokens, first + each);
  const Source source = {plan, entry, list, launch.pool, kvHead, launch.kvHeads, blockShift, end};
  for (int head = 0; head < group; head += kHeads) {
    const int offset = head == 0 ? segment.offset : kNoOffset;
    add_tiles(shared.warps, source, first, heads_of(launch, entry, kvHead, head), offset, launch.scaleLog2,
              shared.queries[threadIdx.x >> 5]);
  }
  __syncthreads();
  merge_warps(shared.warps, group, shared.merged);
}

/* Adds up the parts of the list's thread blocks, a part of the results in each. */
template <int kPeers>
__device__ __forceinline__ void merge_parts(const PartSums &merged, int peer, int group, bf16 *out) {
  for (int i = peer * kThreads + threadIdx.x; i < group * (HEAD_DIM / 2); i += kPeers * kThreads) {
    const int head = i / (HEAD_DIM / 2), pair = i % (HEAD_DIM / 2);
    float2 totals[kPeers], sums[kPeers];
    Merging all = {-infinity(), make_float2(0, 0), 0};
#pragma unroll
    for (int p = 0; p < kPeers; p++) {
      totals[p] = peer_pair<kPeers>(merged.totals + head, p), sums[p] = peer_pair<kPeers>(merged.sums[head] + pair, p);
      all.greatest = fmaxf(all.greatest, totals[p].x);
    }
#pragma unroll
    for (int p = 0; p < kPeers; p++) all.add(totals[p], sums[p]);
    reinterpret_cast<uint32 *>(out)[i] = pack_bf16(all.sum.x / all.total, all.sum.y / all.total);
  }
}

template <int kListBlocks>
__device__ __forceinline__ void attend_list(const int *step, const int *choicePlace, const Launch &launch) {
  constexpr int kPeers = kHasClusters ? kListBlocks : 1;
  extern __shared__ __align__(16) unsigned char dynamic[];
  Shared &shared = *reinterpret_cast<Shared *>(dynamic);
  require_shared_memory(kSharedBytes);
  const ChoicePlan plan = choice_plan(step, choicePlace);
  const int number = blockIdx.x / kListBlocks, peer = blockIdx.x % kListBlocks, kvHeads = launch.kvHeads;
  const int index = number / kvHeads, kvHead = number % kvHeads, group = launch.queryHeads / kvHeads;
  /* All thread blocks of a list leave here, or none. */
  if (index >= plan.entryCount || peer >= kPeers) {
    wait_for_previous();
    return;
  }
  const ChoiceEntry entry = plan.entries[index];
  const ChoiceSegment segment = *reinterpret_cast<const ChoiceSegment *>(step + entry.firstSegment);
  uint4 *bins = reinterpret_cast<uint4 *>(shared.bins);
  for (int i = threadIdx.x; i < kBinWords / 4; i += kThreads) bins[i] = make_uint4(0, 0, 0, 0);
  if (threadIdx.x < 5) shared.list.found[threadIdx.x] = 0;
  wait_for_previous();
  int2 *list = launch.lists + size_t(number) * launch.listStride;
  choose<kPeers>(launch, plan, entry, segment, kvHead, peer, shared, list);
  if (peer == 0 && threadIdx.x == 0) count_list(entry, launch.counts);
  cluster_sync<kPeers>(); /* the whole list is there, and no counters are read any more */
  attend<kPeers>(launch, plan, entry, segment, kvHead, peer, shared, list);
  cluster_sync<kPeers>();
  bf16 *out = launch.out + (size_t(entry.row) * launch.queryHeads + kvHead * group) * HEAD_DIM;
  merge_parts<kPeers>(shared.merged, peer, group, out);
  if constexpr (kPeers > 1) cluster_sync<kPeers>(); /* the others have read this one's sums */
}

/* By how many thread blocks share a list. */
#define ATTEND_CHOICE(BLOCKS)                                                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads, HEAD_DIM > 128 ? 1 : 2) CLUSTER_OF(BLOCKS)                    \
      attend_choice_##BLOCKS(const bf16 *qkv, const int *step, const int *choicePlace, const float2 *rotations,        \
                             const bf16 *pool, int queryHeads, int kvHeads, int rotaryDim, int blockTokens,            \
                             int listStride, float scaleLog2, const float *parts, const unsigned short *scores,        \
                             int2 *lists, uint64 *counts, bf16 *out) {                                                 \
    let_next_begin();                                                                                                  \
    attend_list<BLOCKS>(step, choicePlace,                                                                             \
                        {qkv, rotations, pool, queryHeads, kvHeads, rotaryDim, blockTokens, listStride, scaleLog2,     \
                         parts, scores, lists, counts, out});                                                          \
  }
ATTEND_CHOICE(1)
ATTEND_CHOICE(2)
ATTEND_CHOICE(4)
ATTEND_CHOICE(8)
