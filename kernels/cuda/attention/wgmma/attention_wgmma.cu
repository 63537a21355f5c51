/*
 * Attention for large items on Hopper; arithmetic limits its speed. (attention_plan.cuh has plan, rotation, softmax.)
 *
 * A tile is 128 packed rows (eight tiles of 16) by 128 tokens, worked on by four warpgroups. One keeps K and V in a
 * ring (wgmma_ring.cuh), and one rotates q for the next slice meanwhile (wgmma_queries.cuh). The other two have 64
 * packed rows each; they compute S = Q K^T from shared memory and O += P V with P in registers (wgmma.cuh). Each starts
 * the scores of the next tile before the product with V of this one. The two alternate, so that the softmax of one runs
 * beside the products of the other.
 *
 * Compiled for sm_90a and head sizes 64 and 128; launched elsewhere, it faults. It only reads shared slices.
 * Instead of a bf16 pool it takes the pool's tensor map (worker/native/cuda/tensor-map.ts): rows of headDim, boxes of
 * min(blockTokens, 128) of them; blockTokens is 8 or more, in mx8 (KV_MX8) 16. rotaryDim is a multiple of 16.
 *
 * Grid: any number of blocks, one a multiprocessor; they share the units. Floor: 4 * headDim FLOP for each pair of a
 * packed row and token seen. Oracle: test/gpu/attention-oracle.ts.
 */
#include "attention_plan.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && (HEAD_DIM == 64 || HEAD_DIM == 128)
#define HAS_PRODUCTS
#include "wgmma_mx8.cuh"
#include "wgmma_queries.cuh"
#include "wgmma_results.cuh"

using Scores = float[kTokens / 8][4];

/* What a product warpgroup keeps from unit to unit. */
struct Consumer {
  uint32 shared;
  int group, warp; /* group: 0 or 1; warp: 0 to 7, and its tile of 16 packed rows */
  RingPlace<kSlots> ring;
  int queries = -1; /* how many tiles of q were used so far, less 1 */

  /* Waits until the next slot is filled. @return the slot */
  __device__ __forceinline__ int next_slot() {
    const int slot = ring.slot;
    barrier_wait(shared + kFullAt + slot * 8, ring.parity);
    ring.advance();
    return slot;
  }
  __device__ __forceinline__ void release(uint32 barrier) const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(barrier);
  }
  /* Gives back a tile of K whose scores are computed, and its q when no later tile needs that. */
  __device__ __forceinline__ void release_key(int slot, int flags) const {
    if (flags & kLastOfQueries) release(shared + kQueryEmptyAt + (queries & 1) * 8);
    release_slot(slot);
  }
  __device__ __forceinline__ void release_slot(int slot) const { release(shared + kEmptyAt + slot * 8); }

  /* Answers what the slot of K holds, and waits for its q. */
  __device__ __forceinline__ TileInfo info(int slot) {
    const TileInfo info = load_info(shared + kInfosAt + slot * 16);
    if (info.flags & kNewQueries) {
      queries++;
      barrier_wait(shared + kQueryFullAt + (queries & 1) * 8, queries >> 1 & 1);
    }
    return info;
  }

  __device__ __forceinline__ void start_scores(Scores &scores, int slot) const {
    const uint64 q = matrix_descriptor(shared + (queries & 1) * kTileBytes + group * 64 * 128, 0);
    const uint64 k = matrix_descriptor(shared + kRingAt + slot * kTileBytes, 0);
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) {
      const int at = (d / 64 * kHalfBytes + d % 64 * 2) >> 4;
      multiply_rows(scores, q + at, k + at, d > 0);
    }
    products_commit();
  }

  __device__ __forceinline__ void start_values(Sums &out, const uint32 (&weights)[kTokens / 4], int slot) const {
    const uint64 v = matrix_descriptor(shared + kRingAt + slot * kTileBytes, kHalfBytes);
#pragma unroll
    for (int t = 0; t < kTokens; t += 16) multiply_columns(out, weights + t / 4, v + (t * 128 >> 4));
    products_commit();
  }
};

/* Masks tokens that a row does not see or that lie outside the slice. `rows`: the lane's two rows in the item. */
__device__ __forceinline__ void mask_scores(Scores &scores, const TileInfo &info, const int (&rows)[2]) {
  const int column = int(threadIdx.x & 3) * 2, start = (info.flags >> kStartShift) - column;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = rows[r] - (info.sliceRows & 0xff);
    const bool takesPart = i >= 0 && i < (info.sliceRows >> 8 & 0xff);
    const int end = (takesPart ? min(info.end, info.visible + i) : 0) - column;
#pragma unroll
    for (int n = 0; n < kTokens / 8; n++) {
      if (n * 8 >= end || n * 8 < start) scores[n][2 * r] = -infinity();
      if (n * 8 + 1 >= end || n * 8 + 1 < start) scores[n][2 * r + 1] = -infinity();
    }
  }
}

/* Masks tokens that have left the windows of the lane's two rows. */
__device__ __forceinline__ void mask_late_scores(Scores &scores, int sliceRows, const int (&rows)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int start = rows[r] - (sliceRows & 0xff) + kLateBias - (sliceRows >> 16) - int(threadIdx.x & 3) * 2;
#pragma unroll
    for (int n = 0; n < kTokens / 8; n++) {
      if (n * 8 < start) scores[n][2 * r] = -infinity();
      if (n * 8 + 1 < start) scores[n][2 * r + 1] = -infinity();
    }
  }
}

__device__ __forceinline__ void pack_weights(const Scores &scores, uint32 (&weights)[kTokens / 4]) {
#pragma unroll
  for (int n = 0; n < kTokens / 8; n++) {
    weights[2 * n] = pack_bf16(scores[n][0], scores[n][1]);
    weights[2 * n + 1] = pack_bf16(scores[n][2], scores[n][3]);
  }
}

/* A warpgroup without rows passes the same barriers as the other one. */
__device__ __forceinline__ void skip_unit(Consumer &consumer) {
  for (bool isFirst = true;; isFirst = false) {
    const int key = consumer.next_slot();
    const int flags = consumer.info(key).flags;
    if (!isFirst) {
      meet(1 + consumer.group, 256);
      signal(2 - consumer.group, 256);
    }
    consumer.release_key(key, flags);
    consumer.release_slot(consumer.next_slot());
    if (flags & kLastOfUnit) return;
  }
}

__device__ __forceinline__ void attend_unit(const PlanArguments &a, const PlanUnit &unit, Consumer &consumer) {
  const int lane = threadIdx.x & 31;
  const TileRow tileRow = tile_row_at(a, unit, consumer.warp);
  const int groupRow = consumer.group * 4 * unit.rowsPerTile;
  int rows[2];
#pragma unroll
  for (int r = 0; r < 2; r++) rows[r] = consumer.warp * unit.rowsPerTile + (lane / 4 + 8 * r) / unit.headCount;
  Scores scores;
  Sums out = {};
  uint32 weights[kTokens / 4];
  RunningSoftmax softmax;
  softmax.reset();
  const auto isMasked = [&](const TileInfo &info) {
    return (info.flags & kNotAllRows) != 0 || info.flags >> kStartShift != 0 ||
           min(info.end, info.visible + groupRow) < kTokens;
  };

  int key = consumer.next_slot();
  TileInfo info = consumer.info(key);
  float rescale[2];
  products_begin();
  consumer.start_scores(scores, key);
  products_wait<0>();
  pin(scores);
  consumer.release_key(key, info.flags);
  if (isMasked(info)) mask_scores(scores, info, rows);
  if (info.sliceRows >> 16 != kNotLate) mask_late_scores(scores, info.sliceRows, rows);
  softmax.update(scores, a.scaleLog2, rescale);
  pack_weights(scores, weights);
  int value = consumer.ring.slot;
  uint32 valueParity = consumer.ring.parity;
  consumer.ring.advance();
  while ((info.flags & kLastOfUnit) == 0) {
    key = consumer.next_slot();
    info = consumer.info(key);
    barrier_wait(consumer.shared + kFullAt + value * 8, valueParity);
    meet(1 + consumer.group, 256);
    pin(out);
    products_begin();
    consumer.start_scores(scores, key);
    consumer.start_values(out, weights, value);
    signal(2 - consumer.group, 256);
    products_wait<1>();
    pin(scores);
    consumer.release_key(key, info.flags);
    if (isMasked(info)) mask_scores(scores, info, rows);
    if (info.sliceRows >> 16 != kNotLate) mask_late_scores(scores, info.sliceRows, rows);
    const bool changed = softmax.update(scores, a.scaleLog2, rescale);
    products_wait<0>();
    pin(out);
    consumer.release_slot(value);
    if (__any_sync(kAllLanes, changed)) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) out[n][i] *= rescale[i / 2];
      }
    }
    pack_weights(scores, weights);
    value = consumer.ring.slot;
    valueParity = consumer.ring.parity;
    consumer.ring.advance();
  }
  barrier_wait(consumer.shared + kFullAt + value * 8, valueParity);
  pin(out);
  products_begin();
  consumer.start_values(out, weights, value);
  products_wait<0>();
  pin(out);
  consumer.release_slot(value);
  write_results(a, unit, tileRow, softmax, out);
  finish_rows(a, unit, tileRow);
}

__device__ __forceinline__ void attend(const PlanArguments &a, uint32 shared, int warp) {
  Consumer consumer;
  consumer.shared = shared;
  consumer.warp = warp;
  consumer.group = consumer.warp / 4;
  if (consumer.group == 1) signal(1, 256); /* lets the other group begin */
  const int parts = a.kvHeads * head_tiles_of_group(a);
  UnitWalk units(a);
  int index = units.index();
  PlanItem item;
  if (!units.done()) item = a.items[index / parts];
  while (!units.done()) {
    const PlanUnit unit = plan_unit(a, item, index % parts);
    units.visit++;
    index = units.index();
    if (!units.done()) item = a.items[index / parts]; /* loaded while this unit is computed */
    if (unit.tileCount > consumer.group * 4) {
      attend_unit(a, unit, consumer);
    } else {
      skip_unit(consumer);
    }
  }
}

__device__ __forceinline__ void init_barriers(uint32 shared) {
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; slot++) {
      barrier_init(shared + kFullAt + slot * 8, kIsMx8 ? kCopyWarps : 1);
      barrier_init(shared + kLandedAt + slot * 8, kIsMx8 && slot >= 2 ? kCopyWarps : 1);
      barrier_init(shared + kEmptyAt + slot * 8, kProductWarps);
    }
    for (int tile = 0; tile < 2; tile++) {
      barrier_init(shared + kQueryFullAt + tile * 8, kQueryWarps * 32);
      barrier_init(shared + kQueryEmptyAt + tile * 8, kProductWarps);
    }
  }
  __syncthreads();
}
#endif

extern "C" __global__ void __launch_bounds__(512, 1) attention_wgmma(PLAN_PARAMETERS) {
#ifdef HAS_PRODUCTS
  extern __shared__ __align__(1024) unsigned char memory[];
  const PlanArguments a = PLAN_ARGUMENTS;
  let_next_begin();
  const uint32 shared = shared_address(reinterpret_cast<const bf16 *>(memory));
  require_shared_memory(kSharedBytes);
  if (shared % 1024 != 0 || blockTokens < (kIsMx8 ? kMx8PartTokens : 8) || rotaryDim % 16 != 0) __trap();
  init_barriers(shared);
  wait_for_previous();
  /* The value is the same in all lanes; the shuffle lets the compiler know it. */
  const int warp = __shfl_sync(kAllLanes, int(threadIdx.x >> 5), 0);
  if (warp < kCopyWarps) {
    shrink_registers<kCopyRegisters>();
    if constexpr (kIsMx8) {
      TileMaker(a, shared, warp).make_all();
    } else {
      if (warp == 0) copy_tiles(a, shared);
      if (warp == 1) clear_tiles(a, shared);
    }
  } else if (warp < kCopyWarps + kQueryWarps) {
    shrink_registers<kQueryRegisters>();
    QueryWriter(a, shared, warp - kCopyWarps).write_all();
  } else {
    grow_registers<kProductRegisters>();
    attend(a, shared, warp - kCopyWarps - kQueryWarps);
  }
#else
  __trap();
#endif
}
