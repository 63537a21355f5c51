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

/* The packed rows g and g + 8 of a lane, g = lane / 4. */
struct LaneRows {
  int tileRow[2]; /* which row of the tile, whose numbers the lane of that number has */
  int itemRow[2];
  const bf16 *q[2]; /* nullptr: padding */
  int position[2];
  int turned[2]; /* what q was turned by last */
};
constexpr int kNotTurned = 0x80000000;

/* Lane's place in the 16x16 corner of a matrix in shared memory for load_matrices. */
__device__ __forceinline__ int row_fragment_offset() { /* A row-major; B of V, transposed */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + ((lane >> 3) & 1) * 8) * kStride + (lane >> 4) * 8;
}
__device__ __forceinline__ int key_fragment_offset() { /* B of K: tokens are its columns */
  const int lane = threadIdx.x & 31;
  return ((lane & 7) + (lane >> 4) * 8) * kStride + ((lane >> 3) & 1) * 8;
}

/* Slots of kParts * 16 tokens, from `first` of the step on; itemRows: of the packed rows g and g + 8. */
template <int kParts>
__device__ __forceinline__ void attend_slots(const bf16 *const (&slots)[kParts], const Step &step, int first,
                                             const int (&itemRows)[2], float scaleLog2, TileState &s) {
  const int limits[2] = {visible_tokens(step, itemRows[0]) - step.token - first,
                         visible_tokens(step, itemRows[1]) - step.token - first};
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
      : a(a), x(x), shared(shared), warp(threadIdx.x >> 5), slots(slot_count()), lead(slots - 1), slot(1), sharedStep(0),
        walk(a), reader(a) {}

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
  int warp, slots;
  int lead; /* slots still to be filled before the first step */
  int slot, sharedStep;
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
    LaneRows rows = lane_rows(unit, team.tile, tileRow);
    TileState state = {};
    state.softmax.reset();
    int turnedSlice = -1;
    bool wasShared = false;
    while (true) {
      /* One place in the code for all copies: a kernel that is not in the instruction caches is read from memory. */
      const bool isLead = lead > 0;
      const Step &step = x.steps[warp][slot];
      bool isShared = false;
      if (!isLead) {
        wait_step();
        const bool isOurs = step.unit == turn;
        isShared = isOurs && step.isShared;
        if (isShared && lane == 0) x.sharedSlots[sharedStep & 1][warp] = slot;
        /* Other warps' parts are there, and all have done with the shared step before, so its slots are free. */
        if (isShared || wasShared) __syncthreads();
        wasShared = isShared;
        if (!isOurs) break;
        if (hasTile && step.index != turnedSlice) turn_queries(unit, team.tile, tileRow, step, rows, state);
        turnedSlice = step.index;
      }
      walk.load_step(a, slot_at(warp, free_slot()), &x.steps[warp][free_slot()], lead == slots - 1);
      if (isLead) {
        lead--;
      } else if (isShared) {
        if (hasTile) attend_shared(team, step, rows.itemRow, state);
        sharedStep++;
      } else {
        attend_slots<1>({slot_at(warp, slot)}, step, 0, rows.itemRow, a.scaleLog2, state);
      }
      __syncwarp();
      slot = slot + 1 == slots ? 0 : slot + 1;
    }
    if (hasTile) finish_tile(unit, team, tileRow, rows, state);
  }

  __device__ __forceinline__ LaneRows lane_rows(const PlanUnit &unit, int tile, const TileRow &tileRow) const {
    LaneRows rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int packed = (threadIdx.x & 31) / 4 + 8 * r, of = packed / unit.headCount;
      const int row = __shfl_sync(kAllLanes, tileRow.row, of);
      const size_t head = size_t(row) * (a.queryHeads + 2 * a.kvHeads) + unit.firstHead + packed % unit.headCount;
      rows.tileRow[r] = of;
      rows.itemRow[r] = tile * unit.rowsPerTile + of;
      rows.q[r] = row < 0 ? nullptr : a.qkv + head * kHeadDim;
      rows.position[r] = __shfl_sync(kAllLanes, tileRow.position, of);
      rows.turned[r] = kNotTurned;
    }
    return rows;
  }

  /* q of the rows that take part in the step's slice, turned for it. */
  __device__ __forceinline__ void turn_queries(const PlanUnit &unit, int tile, const TileRow &tileRow, const Step &step,
                                               LaneRows &rows, TileState &s) const {
    if (a.rotaryDim != 0 && a.rotaryDim != kHeadDim) return turn_in_shared(unit, tile, tileRow, step, s);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int inSlice = rows.itemRow[r] - step.firstRow;
      if (rows.q[r] == nullptr || inSlice < 0 || inSlice >= step.rowCount) continue;
      const int turned = a.rotaryDim == 0 ? 0 : rows.position[r] - step.offsets[rows.tileRow[r]];
      if (turned == rows.turned[r]) continue;
      rows.turned[r] = turned;
      turn_row(r, rows.q[r], a.turns + (long long)turned * (kHeadDim / 2), s);
    }
    __syncwarp();
  }

  /* The pairs that are turned together lie in the same lane: dimensions i and i + kHeadDim / 2. */
  __device__ __forceinline__ void turn_row(int r, const bf16 *from, const float2 *turns, TileState &s) const {
    constexpr int kHalf = kHeadDim / 16; /* groups of eight dimensions in half a head */
    const int column = (threadIdx.x & 3) * 2;
    uint32 low[kHalf], high[kHalf];
    float4 turn[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; i++) {
      low[i] = *reinterpret_cast<const uint32 *>(from + i * 8 + column);
      high[i] = *reinterpret_cast<const uint32 *>(from + (i + kHalf) * 8 + column);
      turn[i] = make_float4(1, 0, 1, 0);
      if (a.rotaryDim != 0) turn[i] = *reinterpret_cast<const float4 *>(turns + i * 8 + column);
    }
#pragma unroll
    for (int i = 0; i < kHalf; i++) {
      const float x[2] = {low_float(low[i]), high_float(low[i])}, y[2] = {low_float(high[i]), high_float(high[i])};
      const float4 t = turn[i];
      s.q[i / 2][i % 2 * 2 + r] = pack_bf16(x[0] * t.x - y[0] * t.y, x[1] * t.z - y[1] * t.w);
      const int j = i + kHalf;
      s.q[j / 2][j % 2 * 2 + r] = pack_bf16(y[0] * t.x + x[0] * t.y, y[1] * t.z + x[1] * t.w);
    }
  }

  /* Heads that are turned in part: pairs may lie in two lanes. */
  __device__ __forceinline__ void turn_in_shared(const PlanUnit &unit, int tile, const TileRow &tileRow,
                                                 const Step &step, TileState &s) const {
    bf16 *queries = slot_at(warp, free_slot());
    const int offset = step.offsets[threadIdx.x % kTileRows];
    write_tile_queries<kStride>(a, unit, tile, tileRow, step, offset, queries);
    __syncwarp();
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) load_matrices(s.q[d / 16], queries + row_fragment_offset() + d);
    __syncwarp();
  }

  /* The four parts of a shared step, two at a time; a team of two shares them. */
  __device__ __forceinline__ void attend_shared(const Team &team, const Step &step, const int (&itemRows)[2],
                                                TileState &s) {
    const int *at = x.sharedSlots[sharedStep & 1];
    const int count = (step.tokenCount - step.token + kStepTokens - 1) / kStepTokens;
#pragma unroll 1
    for (int i = team.part * 2; i < min(count, team.size == 2 ? team.part * 2 + 2 : kWarps); i += 2) {
      attend_slots<2>({slot_at(i, at[i]), slot_at(i + 1, at[i + 1])}, step, i * kStepTokens, itemRows, a.scaleLog2, s);
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
                                              const LaneRows &rows, TileState &s) {
    s.softmax.finish();
    if (team.size == 1) {
      write_tile(unit, rows, tileRow, s);
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

  __device__ __forceinline__ void write_tile(const PlanUnit &unit, const LaneRows &rows, const TileRow &tileRow,
                                             const TileState &s) const {
    const int lane = threadIdx.x & 31, column = (lane & 3) * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = __shfl_sync(kAllLanes, tileRow.row, rows.tileRow[r]);
      const int partial = __shfl_sync(kAllLanes, tileRow.partial, rows.tileRow[r]);
      if (row < 0) continue;
      const int head = unit.firstHead + (r * 8 + lane / 4) % unit.headCount;
      const float sum = s.softmax.sum[r], inverse = sum > 0 ? 1.0f / sum : 0.0f;
      uint32 *result = reinterpret_cast<uint32 *>(result_at(a, row, head) + column);
      float2 *part = reinterpret_cast<float2 *>(partial_at(a, partial, head) + column);
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n++) {
        const float x = s.out[n][2 * r] * inverse, y = s.out[n][2 * r + 1] * inverse;
        if (partial < 0) {
          result[n * 4] = pack_bf16(x, y);
        } else {
          part[n * 4] = make_float2(x, y);
        }
      }
      if ((lane & 3) == 0) write_log_sum(a, partial, head, s.softmax.log_sum(r));
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
      if ((lane & 3) == 0) x.logSums[warp][packed] = s.softmax.log_sum(r);
    }
    if (lane == 0) x.resultSlots[warp] = free_slot();
  }

  /* The warps' results weighed by their sums; a warp writes every size-th packed row. */
  __device__ __forceinline__ void write_team(const PlanUnit &unit, const Team &team, const TileRow &tileRow) const {
    const int lane = threadIdx.x & 31, first = team.tile * team.size, column = lane * 4;
    const float *results[kWarps];
    float weights[kWarps]; /* of packed row `lane`, over their sum */
    float top = -infinity(), sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      const int of = first + min(w, team.size - 1);
      results[w] = reinterpret_cast<const float *>(slot_at(of, x.resultSlots[of])) + (column < kHeadDim ? column : 0);
      weights[w] = w < team.size ? x.logSums[of][lane % kTileRows] : -infinity();
      top = fmaxf(top, weights[w]);
    }
    const float base = top == -infinity() ? 0.0f : top;
#pragma unroll
    for (int w = 0; w < kWarps; w++) sum += weights[w] = exp2_fast(weights[w] - base);
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f, logSum = sum > 0 ? base + log2f(sum) : -infinity();
#pragma unroll 2
    for (int packed = team.part; packed < unit.rowsPerTile * unit.headCount; packed += team.size) {
      const int of = packed / unit.headCount, head = unit.firstHead + packed % unit.headCount;
      const int row = __shfl_sync(kAllLanes, tileRow.row, of), partial = __shfl_sync(kAllLanes, tileRow.partial, of);
      const float rowSum = __shfl_sync(kAllLanes, logSum, packed);
      float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int w = 0; w < kWarps; w++) {
        const float weight = __shfl_sync(kAllLanes, weights[w] * inverse, packed);
        const float4 value = *reinterpret_cast<const float4 *>(results[w] + packed * kHeadDim);
        if (w >= team.size) break;
        out.x += weight * value.x, out.y += weight * value.y, out.z += weight * value.z, out.w += weight * value.w;
      }
      if (row < 0 || column >= kHeadDim) continue;
      if (partial < 0) {
        const uint2 words = make_uint2(pack_bf16(out.x, out.y), pack_bf16(out.z, out.w));
        *reinterpret_cast<uint2 *>(result_at(a, row, head) + column) = words;
      } else {
        *reinterpret_cast<float4 *>(partial_at(a, partial, head) + column) = out;
        if (lane == 0) write_log_sum(a, partial, head, rowSum);
      }
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
#pragma unroll 1
    for (; complete != 0; complete &= complete - 1) {
      const int merge = __shfl_sync(kAllLanes, tileRow.merge, __ffs(complete) - 1);
#pragma unroll 1
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
