/*
 * Sorts the assignments of a step by their experts, and cuts them into tiles (expert_tiles.cuh).
 *
 *   chosen [rows * perToken]: an expert for each assignment
 *   order [rows * perToken]: assignments by expert, and of one expert as they stand
 *   tiles [tileCount]: the tiles of expert e begin at start / tileRows + min(e, start), `start` the assignments of
 *   experts below e. An expert with assignments has at least one tile and one assignment, so no two tiles share a
 *   place; places between have no assignments. tileCount is at least assignments / tileRows + min(experts,
 *   assignments).
 *
 * Grid: a block of 256 threads an expert. Each reads all assignments twice, which needs no other kernel's counts and
 * no atomic additions: the order is the same in each run. Oracle: test/backend/cuda/emulated-experts.ts.
 */
#include "expert_tiles.cuh"

constexpr int kWarps = 8;

/* A warp's share of the assignments, in whole vectors of 32. */
struct Share {
  int from, end;
};

__device__ __forceinline__ Share share_of(int warp, int assignments) {
  const int each = (assignments + kWarps * 32 - 1) / (kWarps * 32) * 32;
  return {min(warp * each, assignments), min((warp + 1) * each, assignments)};
}

extern "C" __global__ void __launch_bounds__(kWarps * 32)
group_rows(const int *chosen, const int *rowCount, int perToken, int experts, int tileRows, int tileCount,
           int *__restrict__ order, ExpertTile *__restrict__ tiles) {
  __shared__ int less[kWarps], equal[kWarps];
  let_next_begin();
  wait_for_previous();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, expert = blockIdx.x, assignments = *rowCount * perToken;
  const Share share = share_of(warp, assignments);
  int below = 0, own = 0;
#pragma unroll 4
  for (int i = share.from + lane; i < share.end; i += 32) {
    const int other = chosen[i];
    below += other < expert;
    own += other == expert;
  }
  below = warp_sum(below), own = warp_sum(own);
  if (lane == 0) less[warp] = below, equal[warp] = own;
  __syncthreads();
  int start = 0, count = 0, next = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    if (w == warp) next = count;
    start += less[w], count += equal[w];
  }
  next += start;
  if (own > 0) {
#pragma unroll 4
    for (int i = share.from; i < share.end; i += 32) {
      const bool isOwn = i + lane < share.end && chosen[i + lane] == expert;
      const uint32 all = __ballot_sync(kAllLanes, isOwn);
      if (isOwn) order[next + __popc(all & ((1u << lane) - 1))] = i + lane;
      next += __popc(all);
    }
  }
  const int end = start + count, firstTile = start / tileRows + min(expert, start);
  const int endTile = expert + 1 == experts ? tileCount : end / tileRows + min(expert + 1, end);
  for (int tile = firstTile + threadIdx.x; tile < endTile; tile += blockDim.x) {
    const int first = start + (tile - firstTile) * tileRows;
    tiles[tile] = {expert, first, max(0, min(tileRows, end - first)), 0};
  }
}
