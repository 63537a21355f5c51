/*
 * Attention for items of up to four tiles ("few"), that is for decoding: bound by reading K and V (attention_plan.cuh
 * has the plan, rotation, softmax and the arguments; attention_walk.cuh how tokens are walked and copied).
 *
 * Slices shared by an item are copied once for all of its tiles, by four warps together, 64 tokens a step; private ones
 * by their tile's warps alone, 16 tokens a step and no barrier. One tile: four warps share its tokens; two: two warps
 * each; three or four: a warp each. Shared memory a warp: as many slots of 16 rows of K and of V as the launch gives
 * room for, 2 to 4; one slot is always free, and q is turned and warps' results are merged there.
 *
 * Grid: any number of blocks of 128 threads; block b takes units b, 2n - 1 - b, 2n + b, ... of n blocks, unit =
 * (item * kvHeads + kvHead) * chunks + chunk, so one launch serves any step. Floor: each token of K and V of a unit once.
 * Oracle: test/gpu/attention-oracle.ts.
 */
#include "attention_plan.cuh" /* and so HEAD_DIM */
#include "attention_walk.cuh"

/* A warp's results wait in its free slot for the merge. */
static_assert(kSlotSize * 2 >= kTileRows * kHeadDim * 4, "results do not fit");

struct Exchange {
  Step steps[kWarps][kMaxSlots];
  int sharedSlots[2][kWarps]; /* where each warp's part of a shared step lies; two steps in turn */
  int resultSlots[kWarps];
  float logSums[kWarps][kTileRows];
  uint32 complete[kWarps]; /* rows of a team's tile whose parts are all there */
};

struct TileState {
  float out[kHeadDim / 8][4];
  RunningSoftmax softmax;
  uint32 q[kHeadDim / 16][4];
};

/* Lane's place in the 16x16 corner of a matrix in shared memory for load_matrices. */
__device__ __forceinline__ int row_fragment_offset() { /* A row-major; B of V, transposed */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + ((lane >> 3) & 1) * 8) * kStride + (lane >> 4) * 8;
}
__device__ __forceinline__ int key_fragment_offset() { /* B of K: tokens are its columns */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + (lane >> 4) * 8) * kStride + ((lane >> 3) & 1) * 8;
}

/* Slots of kParts * 16 tokens; limits: how many of them the rows g and g + 8 see. */
template <int kParts>
__device__ __forceinline__ void attend_slots(const bf16 *const (&slots)[kParts], const int (&limits)[2],
                                             float scaleLog2, TileState &s) {
  const int lane = threadIdx.x & 31;
  float scores[2 * kParts][4] = {};
#pragma unroll
  for (int d = 0; d < kHeadDim; d += 16) {
#pragma unroll
    for (int i = 0; i < kParts; i++) {
      uint32 k[4];
      load_matrices(k, slots[i] + key_fragment_offset() + d);
      multiply_add(scores[2 * i], s.q[d / 16], k[0], k[1]);
      multiply_add(scores[2 * i + 1], s.q[d / 16], k[2], k[3]);
    }
  }
  if (__any_sync(kAllLanes, min(limits[0], limits[1]) < kParts * kStepTokens)) {
#pragma unroll
    for (int i = 0; i < 8 * kParts; i++) {
      const int token = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
      if (token >= limits[(i >> 1) & 1]) scores[i >> 2][i & 3] = -infinity();
    }
  }
  float rescale[2];
  if (__any_sync(kAllLanes, s.softmax.update(scores, scaleLog2, rescale))) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) s.out[n][i] *= rescale[i / 2];
    }
  }
#pragma unroll
  for (int i = 0; i < kParts; i++) {
    const auto &first = scores[2 * i], &second = scores[2 * i + 1];
    const uint32 p[4] = {pack_bf16(first[0], first[1]), pack_bf16(first[2], first[3]),
                         pack_bf16(second[0], second[1]), pack_bf16(second[2], second[3])};
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) {
      uint32 v[4];
      load_matrices_transposed(v, slots[i] + kPartSize + row_fragment_offset() + d);
      multiply_add(s.out[d / 8], p, v[0], v[1]);
      multiply_add(s.out[d / 8 + 1], p, v[2], v[3]);
    }
  }
}

/* A warp: its ring and where it stands in it. Between steps the slot before `slot` is free, all others are filled. */
class Attender {
 public:
  __device__ __forceinline__ Attender(const PlanArguments &a, bf16 *shared, Exchange &x)
      : a(a), x(x), shared(shared), warp(threadIdx.x >> 5), slots(slot_count()), slot(0), sharedStep(0),
        walk(a), reader(a) {
    walk.seek(a);
    wait_for_previous();
    for (int i = 0; i < slots - 1; i++) walk.load_step(a, slot_at(warp, i), &x.steps[warp][i]);
  }

  __device__ __forceinline__ void attend_all() {
    for (int turn = 0; reader.has(turn); turn++) {
      const PlanUnit unit = reader.read(a, turn);
      attend_unit(unit, team_of(unit), turn);
    }
    wait_copies<0>();
  }

 private:
  const PlanArguments &a;
  Exchange &x;
  bf16 *shared;
  int warp, slots, slot, sharedStep;
  Walk walk;
  UnitReader reader; /* of the use, which the walk is ahead of */

  static __device__ __forceinline__ int slot_count() {
    uint32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return min(kMaxSlots, int(bytes / (kWarps * kSlotSize * sizeof(bf16))));
  }

  __device__ __forceinline__ bf16 *slot_at(int ofWarp, int i) const {
    return shared + (ofWarp * slots + i) * kSlotSize;
  }
  __device__ __forceinline__ int free_slot() const { return slot == 0 ? slots - 1 : slot - 1; }

  /* Until this warp's copies for the current step are there. */
  __device__ __forceinline__ void wait_step() const {
    if (slots == 2) {
      wait_copies<0>();
    } else if (slots == 3) {
      wait_copies<1>();
    } else {
      wait_copies<2>();
    }
    __syncwarp();
  }

  __device__ __forceinline__ void attend_unit(const PlanUnit &unit, const Team &team, int turn) {
    const int lane = threadIdx.x & 31;
    const bool hasTile = team.tile < unit.tileCount;
    const TileRow tileRow = tile_row_at(a, unit, team.tile);
    /* Of the packed rows g and g + 8. */
    const int firstRow = team.tile * unit.rowsPerTile;
    const int itemRows[2] = {firstRow + lane / 4 / unit.headCount, firstRow + (lane / 4 + 8) / unit.headCount};
    TileState state = {};
    state.softmax.reset();
    int turnedSlice = -1;
    bool wasShared = false;
    while (true) {
      wait_step();
      const Step step = x.steps[warp][slot];
      const bool isOurs = step.unit == turn, isShared = isOurs && step.isShared;
      if (isShared && lane == 0) x.sharedSlots[sharedStep & 1][warp] = slot;
      /* Other warps' parts are there, and all have done with the shared step before, so its slots are free. */
      if (isShared || wasShared) __syncthreads();
      wasShared = isShared;
      if (!isOurs) break;
      if (hasTile && step.index != turnedSlice) turn_queries(unit, team.tile, tileRow, step.slice, state);
      turnedSlice = step.index;
      walk.load_step(a, slot_at(warp, free_slot()), &x.steps[warp][free_slot()]);
      const int limits[2] = {visible_tokens(step.slice, itemRows[0]) - step.token,
                             visible_tokens(step.slice, itemRows[1]) - step.token};
      if (isShared) {
        if (hasTile) attend_shared(team, step.slice.tokenCount - step.token, limits, state);
        sharedStep++;
      } else {
        const bf16 *const own[1] = {slot_at(warp, slot)};
        attend_slots(own, limits, a.scaleLog2, state);
      }
      __syncwarp();
      slot = slot + 1 == slots ? 0 : slot + 1;
    }
    if (hasTile) finish_tile(unit, team, tileRow, state);
  }

  __device__ __forceinline__ void turn_queries(const PlanUnit &unit, int tile, const TileRow &tileRow,
                                               const PlanSlice &slice, TileState &s) const {
    bf16 *queries = slot_at(warp, free_slot());
    write_tile_queries<kStride>(a, unit, tile, tileRow, slice, queries);
    __syncwarp();
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) load_matrices(s.q[d / 16], queries + row_fragment_offset() + d);
    __syncwarp();
  }

  /* A team of two shares the four parts of a shared step. */
  __device__ __forceinline__ void attend_shared(const Team &team, int tokens, const int (&limits)[2], TileState &s) {
    const int *at = x.sharedSlots[sharedStep & 1];
    const int first = team.part * 2;
    const int rest[2] = {limits[0] - first * kStepTokens, limits[1] - first * kStepTokens};
    if (tokens <= first * kStepTokens) return;
    if (team.size == 1 && tokens > 2 * kStepTokens) {
      const bf16 *const parts[4] = {slot_at(0, at[0]), slot_at(1, at[1]), slot_at(2, at[2]), slot_at(3, at[3])};
      attend_slots(parts, rest, a.scaleLog2, s);
    } else {
      const bf16 *const parts[2] = {slot_at(first, at[first]), slot_at(first + 1, at[first + 1])};
      attend_slots(parts, rest, a.scaleLog2, s);
    }
  }

  /* Barrier of a team's warps. */
  __device__ __forceinline__ void join(const Team &team) const {
    if (team.size == 1) {
      __syncwarp();
    } else {
      asm volatile("barrier.sync %0, %1;" ::"r"(team.size == 4 ? 3 : 1 + team.tile), "r"(team.size * 32) : "memory");
    }
  }

  __device__ __forceinline__ void finish_tile(const PlanUnit &unit, const Team &team, const TileRow &tileRow,
                                              TileState &s) {
    s.softmax.finish();
    if (team.size == 1) {
      write_tile(unit, tileRow, s);
    } else {
      keep_results(s);
      join(team);
      write_team(unit, team, tileRow);
    }
    const bool isPart = __any_sync(kAllLanes, tileRow.merge >= 0);
    if (isPart) __threadfence();
    join(team); /* all have written, and have done with the others' results */
    if (isPart) merge_rows(unit, team, tileRow);
  }

  __device__ __forceinline__ void write_tile(const PlanUnit &unit, const TileRow &tileRow, const TileState &s) const {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int packed = r * 8 + lane / 4, of = min(packed / unit.headCount, 31);
      const int row = __shfl_sync(kAllLanes, tileRow.row, of), partial = __shfl_sync(kAllLanes, tileRow.partial, of);
      if (row < 0) continue;
      const int head = unit.firstHead + packed % unit.headCount;
      const float sum = s.softmax.sum[r], inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n++) {
        const float *pair = &s.out[n][2 * r];
        write_result(a, row, partial, head, n * 8 + (lane & 3) * 2, pair[0] * inverse, pair[1] * inverse);
      }
      if ((lane & 3) == 0) write_log_sum(a, partial, head, s.softmax.log_sum(r, a.scaleLog2));
    }
  }

  __device__ __forceinline__ void keep_results(const TileState &s) {
    const int lane = threadIdx.x & 31;
    float *results = reinterpret_cast<float *>(slot_at(warp, free_slot()));
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int packed = r * 8 + lane / 4;
      const float sum = s.softmax.sum[r], inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n++) {
        float2 *to = reinterpret_cast<float2 *>(results + packed * kHeadDim + n * 8 + (lane & 3) * 2);
        *to = make_float2(s.out[n][2 * r] * inverse, s.out[n][2 * r + 1] * inverse);
      }
      if ((lane & 3) == 0) x.logSums[warp][packed] = s.softmax.log_sum(r, a.scaleLog2);
    }
    if (lane == 0) x.resultSlots[warp] = free_slot();
  }

  /* The warps' results weighed by their sums; a warp writes every size-th packed row. */
  __device__ __forceinline__ void write_team(const PlanUnit &unit, const Team &team, const TileRow &tileRow) const {
    const int lane = threadIdx.x & 31, first = team.tile * team.size;
    for (int packed = team.part; packed < unit.rowsPerTile * unit.headCount; packed += team.size) {
      const int of = packed / unit.headCount, head = unit.firstHead + packed % unit.headCount;
      const int row = __shfl_sync(kAllLanes, tileRow.row, of), partial = __shfl_sync(kAllLanes, tileRow.partial, of);
      if (row < 0) break;
      float top = -infinity(), sum = 0;
      for (int w = 0; w < team.size; w++) top = fmaxf(top, x.logSums[first + w][packed]);
      const float base = top == -infinity() ? 0.0f : top;
      float2 out[2] = {};
      for (int w = 0; w < team.size; w++) {
        const float *results = reinterpret_cast<const float *>(slot_at(first + w, x.resultSlots[first + w]));
        const float weight = exp2_fast(x.logSums[first + w][packed] - base);
        sum += weight;
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const int column = c * 64 + lane * 2;
          if (column >= kHeadDim) break;
          const float2 value = *reinterpret_cast<const float2 *>(results + packed * kHeadDim + column);
          out[c].x += weight * value.x, out[c].y += weight * value.y;
        }
      }
      const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int column = c * 64 + lane * 2;
        if (column < kHeadDim) write_result(a, row, partial, head, column, out[c].x * inverse, out[c].y * inverse);
      }
      if (lane == 0) write_log_sum(a, partial, head, sum > 0 ? base + log2f(sum) : -infinity());
    }
  }

  /* Of the tile's rows, those whose last part this was. */
  __device__ __forceinline__ void merge_rows(const PlanUnit &unit, const Team &team, const TileRow &tileRow) {
    const int lane = threadIdx.x & 31;
    uint32 complete = 0;
    if (team.part == 0) {
      const bool isLast = tileRow.merge >= 0 && arrive_at_merge(a, unit, tileRow.merge);
      complete = __ballot_sync(kAllLanes, isLast);
      if (lane == 0) x.complete[team.tile] = complete;
    }
    if (team.size > 1) {
      join(team);
      complete = x.complete[team.tile];
    }
    if (complete == 0) return;
    __threadfence();
    for (; complete != 0; complete &= complete - 1) {
      const int merge = __shfl_sync(kAllLanes, tileRow.merge, __ffs(complete) - 1);
      for (int h = team.part; h < unit.headCount; h += team.size) merge_head(a, merge, unit.firstHead + h);
    }
  }
};

extern "C" __global__ void __launch_bounds__(kWarps * 32, 2) attention_packed(PLAN_PARAMETERS) {
  extern __shared__ __align__(16) bf16 shared[];
  __shared__ Exchange exchange;
  let_next_begin();
  const PlanArguments a = PLAN_ARGUMENTS;
  require_shared_memory(kWarps * 2 * kSlotSize * sizeof(bf16));
  Attender(a, shared, exchange).attend_all();
}
