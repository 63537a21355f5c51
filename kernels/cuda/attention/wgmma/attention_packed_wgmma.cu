/*
 * Attention for items of up to four tiles ("small") on Hopper; reading K and V limits its speed. (attention_plan.cuh
 * has plan, rotation and softmax.) attention_packed.cu does the same on other devices. With products of warpgroups and
 * the bulk copy engine, a step of 64 tokens takes less time than its copy from memory.
 *
 * A tile is 64 packed rows (four tiles of 16) by 64 tokens. One warpgroup computes S = Q K^T from shared memory and O
 * += P V with P in registers (wgmma.cuh), and starts the scores of the next step before the product with V of this one.
 * In the other warpgroup one warp keeps K and V in a ring (packed_ring.cuh), and three rotate q for the slices to come
 * (packed_queries.cuh). Private slices are treated like shared ones: rows that take no part are masked.
 *
 * In mx8 (KV_MX8) the ring has K and V as the pool has them, and the computing warps make tiles of them, of K while the
 * product with the V before runs, and of V while that with K runs.
 *
 * Compiled for sm_90a and head sizes of 64 and 128; elsewhere a launch is a fault. Instead of a bf16 pool it takes the
 * pool's tensor map (worker/native/cuda/tensor-map.ts): rows of headDim, boxes of 16 of them; blockTokens is 16 or
 * more. rotaryDim is a multiple of 16.
 *
 * Grid: blocks of 256 threads, which share the units. No more blocks are launched than fit on the device at once, two a
 * multiprocessor, as they wait for each other when each has at most one unit (attention_merge.cuh). Floor: reading K
 * and V of a unit's tokens once. Oracle: test/gpu/attention-oracle.ts.
 */
#include "attention_plan.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && (HEAD_DIM == 64 || HEAD_DIM == 128)
#define HAS_PRODUCTS
#include "mx8_tile.cuh"
#include "packed_queries.cuh"
#include "packed_scores.cuh"

/* The computing warpgroup, and what it keeps from unit to unit. */
class Attender {
 public:
  __device__ __forceinline__ Attender(const PlanArguments &a, uint32 shared, int warp)
      : a(a), shared(shared), warp(warp), queries(-1) {}

  __device__ __forceinline__ void attend_all() {
    const int parts = a.kvHeads * head_tiles_of_group(a);
    UnitWalk units(a);
    isTogether = units.count <= gridDim.x;
    int index = units.index();
    PlanItem item;
    if (!units.done()) item = a.items[index / parts];
    bool isFirst = true;
#pragma unroll 1
    while (!units.done()) {
      const PlanUnit unit = plan_unit(a, item, index % parts);
      units.visit++;
      index = units.index();
      if (!units.done()) item = a.items[index / parts]; /* loaded while this unit is computed */
      const TileRow tileRow = tile_row_at(a, unit, warp);
      if (isFirst) wait_for_previous();
      isFirst = false;
      attend_unit(unit, tileRow);
    }
  }

 private:
  const PlanArguments &a;
  uint32 shared;
  int warp; /* also the tile of 16 packed rows that is this warp's own */
  RingPlace<kSlots> ring;
  RingPlace<kRecords> records; /* in mx8 alone; else a step's record is that of its slot of K */
  int queries;     /* how many tiles of q were used so far, less 1 */
  bool isTogether; /* no block has a second unit, so all units run at once */

  /* A slot, and the parity of the phase in which it gets filled. */
  struct Place {
    int slot;
    uint32 parity;
  };
  struct Info {
    int flags;
    uint32 valid;  /* tokens of each part, a byte each */
    uint32 starts; /* in mx8: the first of them in its part of the pool, likewise */
  };

  __device__ __forceinline__ Place next_slot() {
    const Place place = {ring.slot, ring.parity};
    ring.advance();
    return place;
  }
  __device__ __forceinline__ uint32 next_record() {
    const uint32 record = record_at(records.slot);
    records.advance();
    return record;
  }
  __device__ __forceinline__ void wait_filled(const Place &place) const {
    barrier_wait(shared + kFullAt + place.slot * 8, place.parity);
  }
  __device__ __forceinline__ void release(uint32 barrier) const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void release(const Place &place) const { release(shared + kEmptyAt + place.slot * 8); }
  __device__ __forceinline__ uint32 record_at(int index) const { return shared + kRecordsAt + index * kRecordBytes; }
  __device__ __forceinline__ uint32 slot_at(const Place &place) const {
    return shared + kRingAt + place.slot * kSlotBytes;
  }

  /* Answers the flags of a step, and waits for its K and its q. */
  __device__ __forceinline__ Info enter_step(const Place &key, uint32 record) {
    wait_filled(key);
    const uint4 words = load_shared4(record + kParts * 16);
    if (words.x & kNewQueries) {
      queries++;
      barrier_wait(shared + kQueryFullAt + (queries & 1) * 8, queries >> 1 & 1);
    }
    return {int(words.x), words.y, words.z};
  }

  /* @param keys a tile of K */
  __device__ __forceinline__ void start_scores(Scores &scores, uint32 keys) const {
    const uint64 q = matrix_descriptor(shared + (queries & 1) * kTileBytes, 0);
    const uint64 k = matrix_descriptor(keys, 0);
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) {
      const int at = (d / 64 * kHalfBytes + d % 64 * 2) >> 4;
      multiply_rows(scores, q + at, k + at, d > 0);
    }
    products_commit();
  }

  __device__ __forceinline__ void start_values(Sums &out, const uint32 (&weights)[kTokens / 4],
                                               uint32 values) const {
    const uint64 v = matrix_descriptor(values, kHalfBytes);
#pragma unroll
    for (int t = 0; t < kTokens; t += 16) multiply_columns(out, weights + t / 4, v + (t * 128 >> 4));
    products_commit();
  }

  __device__ __forceinline__ void wait_values(const Place &value, const Info &info) const {
    wait_filled(value);
    if (info.flags & kClears) clear_values(slot_at(value), info.valid);
  }

  /* Gives q back after the last scores with it, and masks these. */
  __device__ __forceinline__ void take_scores(Scores &scores, uint32 record, const Info &info,
                                              const int (&rows)[2]) const {
    if (info.flags & kLastOfQueries) release(shared + kQueryEmptyAt + (queries & 1) * 8);
    if (info.flags & kMasked) mask_scores(scores, record, rows);
  }

  /* In mx8: makes bf16 of the warp's part of a step's K or V. @param end its rows from there on become zeros */
  template <bool kIsValue>
  __device__ __forceinline__ void widen(const Place &place, const Info &info, int end) const {
    const uint32 part = slot_at(place) + warp * kPartBytes;
    const Mx8Rows rows = {part + mx8_numbers_at(kHeadDim, kIsValue), part + mx8_scales_at(kHeadDim, kIsValue)};
    const int start = info.starts >> 8 * warp & 255;
    write_mx8_rows<kHalfBytes>(shared + (kIsValue ? kValuesAt : kKeysAt), warp * kPartTokens, rows, start, 0, end);
    order_before_products();
  }

  /* The steps of a unit in mx8. */
  __device__ __forceinline__ void attend_steps_mx8(const int (&rows)[2], RunningSoftmax &softmax, Sums &out) {
    Scores scores;
    uint32 weights[kTokens / 4];
    float rescale[2];
    Place place = next_slot();
    uint32 record = next_record();
    Info info = enter_step(place, record);
    widen<false>(place, info, kPartTokens);
#pragma unroll 1
    while (true) {
      meet(1, kProductWarps * 32); /* K is a tile, and no warp's product reads the V before any more */
      products_begin();
      start_scores(scores, shared + kKeysAt);
      widen<true>(place, info, info.valid >> 8 * warp & 255);
      release(place);
      products_wait<0>();
      pin(scores);
      take_scores(scores, record, info, rows);
      const bool changed = softmax.update(scores, a.scaleLog2, rescale);
      take_weights(scores, changed, rescale, out, weights);
      meet(1, kProductWarps * 32); /* V is a tile, and all scores with this K are there */
      const bool isLast = info.flags & kLastOfUnit;
      pin(out);
      products_begin();
      start_values(out, weights, shared + kValuesAt);
      if (!isLast) {
        place = next_slot();
        record = next_record();
        info = enter_step(place, record);
        widen<false>(place, info, kPartTokens);
      }
      products_wait<0>();
      pin(out);
      if (isLast) return;
    }
  }

  /* The steps of a unit: starts the scores of the next one before the product with V of this one. */
  __device__ __forceinline__ void attend_steps(const int (&rows)[2], RunningSoftmax &softmax, Sums &out) {
    Scores scores;
    uint32 weights[kTokens / 4];
    float rescale[2];

    Place key = next_slot(), value = next_slot();
    Info info = enter_step(key, record_at(key.slot));
    products_begin();
    start_scores(scores, slot_at(key));
    products_wait<0>();
    pin(scores);
    take_scores(scores, record_at(key.slot), info, rows);
    release(key);
    bool changed = softmax.update(scores, a.scaleLog2, rescale);
    take_weights(scores, changed, rescale, out, weights);
#pragma unroll 1
    while ((info.flags & kLastOfUnit) == 0) {
      key = next_slot();
      const Place nextValue = next_slot();
      const Info next = enter_step(key, record_at(key.slot));
      wait_values(value, info);
      pin(out);
      products_begin();
      start_scores(scores, slot_at(key));
      start_values(out, weights, slot_at(value));
      products_wait<1>();
      pin(scores);
      take_scores(scores, record_at(key.slot), next, rows);
      release(key);
      changed = softmax.update(scores, a.scaleLog2, rescale);
      products_wait<0>();
      pin(out);
      release(value);
      take_weights(scores, changed, rescale, out, weights);
      value = nextValue, info = next;
    }
    wait_values(value, info);
    pin(out);
    products_begin();
    start_values(out, weights, slot_at(value));
    products_wait<0>();
    pin(out);
    release(value);
  }

  __device__ __forceinline__ void attend_unit(const PlanUnit &unit, const TileRow &tileRow) {
    const int lane = threadIdx.x & 31;
    int rows[2];
#pragma unroll
    for (int r = 0; r < 2; r++) rows[r] = warp * unit.rowsPerTile + (lane / 4 + 8 * r) / unit.headCount;
    Sums out = {};
    RunningSoftmax softmax;
    softmax.reset();
    if constexpr (kIsMx8) {
      attend_steps_mx8(rows, softmax, out);
    } else {
      attend_steps(rows, softmax, out);
    }
    write_results(a, unit, tileRow, softmax, out);
    finish_unit(unit, tileRow);
  }

  /* Merges the rows whose last part this was; the warps share that work. */
  __device__ __forceinline__ void finish_unit(const PlanUnit &unit, const TileRow &tileRow) {
    const int lane = threadIdx.x & 31;
    if (isTogether && unit.item.isSmallAlone) {
      PlanMerge merge = {};
      if (tileRow.merge >= 0) merge = a.merges[tileRow.merge];
      if (__any_sync(kAllLanes, tileRow.merge >= 0)) finish_rows_together(a, unit, tileRow, merge);
      return;
    }
    bool isLast = false;
    if (__any_sync(kAllLanes, tileRow.merge >= 0)) {
      int partCount = 0;
      if (tileRow.merge >= 0) partCount = a.merges[tileRow.merge].partCount;
      __threadfence();
      __syncwarp();
      isLast = tileRow.merge >= 0 && arrive_at_merge(a, unit, tileRow.merge, partCount);
    }
    const uint32 told = shared + kMergesAt;
    if (lane < kTileRows) store_shared1(told + (warp * kTileRows + lane) * 4, isLast ? tileRow.merge : -1);
    meet(1, kProductWarps * 32);
    PlanMerge merge[2] = {};
    uint32 complete[2];
    int next = warp;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int at = int(load_shared1(told + (i * 32 + lane) * 4));
      complete[i] = __ballot_sync(kAllLanes, at >= 0);
      const int place = next + __popc(complete[i] & ((1u << lane) - 1));
      next += __popc(complete[i]);
      const bool isOurs = at >= 0 && place % kProductWarps == 0;
      if (isOurs) merge[i] = a.merges[at];
      complete[i] = __ballot_sync(kAllLanes, isOurs);
    }
    meet(1, kProductWarps * 32);
#pragma unroll 1
    for (int i = 0; i < 2; i++) merge_rows(a, unit, i == 0 ? merge[0] : merge[1], i == 0 ? complete[0] : complete[1]);
  }
};

__device__ __forceinline__ void init_barriers(uint32 shared) {
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; slot++) {
      barrier_init(shared + kFullAt + slot * 8, 1);
      barrier_init(shared + kEmptyAt + slot * 8, kProductWarps);
    }
    for (int tile = 0; tile < 2; tile++) {
      barrier_init(shared + kQueryFullAt + tile * 8, kQueryWarps * 32);
      barrier_init(shared + kQueryEmptyAt + tile * 8, kProductWarps);
    }
    order_before_products();
  }
  __syncthreads();
}
#endif

extern "C" __global__ void __launch_bounds__(256, 2) attention_packed_wgmma(PLAN_PARAMETERS) {
#ifdef HAS_PRODUCTS
  extern __shared__ __align__(1024) unsigned char memory[];
  const PlanArguments a = PLAN_ARGUMENTS;
  let_next_begin();
  const uint32 shared = shared_address(memory);
  require_shared_memory(kSharedBytes);
  if (shared % 1024 != 0 || blockTokens < kPartTokens || rotaryDim % 16 != 0) __trap();
  init_barriers(shared);
  /* The value is the same in all lanes; the shuffle lets the compiler know it. */
  const int warp = __shfl_sync(kAllLanes, int(threadIdx.x >> 5), 0);
  if (warp < kProductWarps) {
    grow_registers<kProductRegisters>();
    Attender(a, shared, warp).attend_all();
  } else {
    shrink_registers<kHelperRegisters>();
    if (warp < kProductWarps + kQueryWarps) {
      QueryWriter(a, shared, warp - kProductWarps).write_all();
    } else {
      copy_steps(a, shared);
    }
  }
#else
  __trap();
#endif
}
