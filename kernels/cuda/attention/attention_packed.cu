/*
 * Attention for small items (up to four tiles), which means decoding. Its time is that of reading K and V.
 * (attention_plan.cuh has the plan, rotation, softmax and the arguments; attention_walk.cuh walks and copies tokens.)
 *
 * The shared slices of an item are copied once for all its tiles, by four warps together, 64 tokens a step. Private
 * slices are copied for their tile's warps alone, 16 tokens a step and without a barrier. With one tile, four warps
 * share its tokens; with two, each has two warps; with three or four, each has one. As many warps walk and copy for
 * them. Shared memory: for each of the four computing warps 2 to 4 slots of 16 rows of K and of V, as many as the
 * launch has space for.
 *
 * Grid: any number of blocks of 256 threads. Of n blocks, block b takes units b, 2n - 1 - b, 2n + b, ..., where unit =
 * (item * kvHeads + kvHead) * headTiles + headTile; so one launch size serves any step. Floor: reading K and V of each
 * unit's tokens once.
 * Oracle: test/gpu/attention-oracle.ts.
 */
#include "heads.cuh" /* HEAD_DIM */
#include "attention_plan.cuh"
#include "attention_softmax.cuh" /* SCORE_CAP */
#include "attention_team.cuh"

/* Slots of kParts * 16 tokens, from `first` of the step on; itemRows: the item rows of packed rows g and g + 8. */
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

__device__ __forceinline__ int slot_count() {
  uint32 bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return min(kMaxSlots, int(bytes / (kWarps * kSlotSize * sizeof(bf16))));
}

/* A computing warp: its ring and its place in it. It always holds the slot before `slot`. */
class Attender {
 public:
  __device__ __forceinline__ Attender(const PlanArguments &a, bf16 *shared, Exchange &x)
      : a(a), x(x), shared(shared), warp(threadIdx.x >> 5), slots(slot_count()), slot(0), parity(0), sharedStep(0) {}

  __device__ __forceinline__ void attend_all() {
    UnitReader reader(a);
    wait_for_previous();
    for (int visit = 0; reader.has(visit); visit++) {
      const PlanUnit unit = reader.read(a, visit);
      attend_unit(unit, team_of(unit, warp), visit);
    }
  }

 private:
  const PlanArguments &a;
  Exchange &x;
  bf16 *shared;
  int warp, slots, slot, parity, sharedStep;

  __device__ __forceinline__ bf16 *slot_at(int ofWarp, int i) const {
    return shared + (ofWarp * slots + i) * kSlotSize;
  }
  __device__ __forceinline__ int free_slot() const { return slot == 0 ? slots - 1 : slot - 1; }

  /* Barrier of the computing warps. */
  __device__ __forceinline__ void join_all() const {
    asm volatile("barrier.sync 4, %0;" ::"n"(kWarps * 32) : "memory");
  }

  __device__ __forceinline__ void attend_unit(const PlanUnit &unit, const Team &team, int visit) {
    const int lane = threadIdx.x & 31;
    const bool hasTile = team.tile < unit.tileCount;
    const TileRow tileRow = tile_row_at(a, unit, team.tile);
    LaneRows rows = lane_rows(a, unit, team.tile, tileRow);
    TileState state = {};
    state.softmax.reset();
    int turnedSlice = -1;
    bool wasShared = false;
    while (true) {
      phase_wait(x.rings[warp].full + slot, parity);
      const Step &step = x.rings[warp].steps[slot];
      const bool isOurs = step.unit == visit, isShared = isOurs && step.isShared;
      if (isShared && lane == 0) x.sharedSlots[sharedStep & 1][warp] = slot;
      /* After it the other warps' parts are filled, and nobody reads the shared step before, so its slots are free. */
      if (isShared || wasShared) join_all();
      wasShared = isShared;
      if (!isOurs) break;
      if (hasTile && step.index != turnedSlice) {
        rotate_queries(a, unit, team.tile, tileRow, step, slot_at(warp, free_slot()), rows, state.q);
      }
      turnedSlice = step.index;
      __syncwarp();
      if (lane == 0) phase_arrive(x.rings[warp].empty + free_slot());
      if (!isShared) {
        attend_slots<1>({slot_at(warp, slot)}, step, 0, rows.itemRow, a.scaleLog2, state);
      } else if (hasTile) {
        attend_shared(team, step, rows.itemRow, state);
      }
      sharedStep += isShared;
      __syncwarp();
      parity ^= slot + 1 == slots;
      slot = slot + 1 == slots ? 0 : slot + 1;
    }
    if (hasTile) finish_tile(a, unit, team, tileRow, rows, state, slot_at(warp, free_slot()), x);
  }

  /* Computes the four parts of a shared step, two at a time; a team of two warps shares them. */
  __device__ __forceinline__ void attend_shared(const Team &team, const Step &step, const int (&itemRows)[2],
                                                TileState &s) {
    const int *at = x.sharedSlots[sharedStep & 1];
    const int count = (step.tokenCount - step.token + kStepTokens - 1) / kStepTokens;
#pragma unroll 1
    for (int i = team.part * 2; i < min(count, team.size == 2 ? team.part * 2 + 2 : kWarps); i += 2) {
      attend_slots<2>({slot_at(i, at[i]), slot_at(i + 1, at[i + 1])}, step, i * kStepTokens, itemRows, a.scaleLog2, s);
    }
  }
};

/*
 * Two blocks fit on a multiprocessor where copying warps can give registers to computing ones (sm_90a), but for long
 * heads, whose sums alone are 128 registers.
 */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && HEAD_DIM <= 128
#define BLOCKS 2
#define COPY_REGISTERS() asm volatile("setmaxnreg.dec.sync.aligned.u32 72;")
#define ATTEND_REGISTERS() asm volatile("setmaxnreg.inc.sync.aligned.u32 184;")
#else
#define BLOCKS 1
#define COPY_REGISTERS()
#define ATTEND_REGISTERS()
#endif

extern "C" __global__ void __launch_bounds__(2 * kWarps * 32, BLOCKS) attention_packed(PLAN_PARAMETERS) {
  extern __shared__ __align__(16) bf16 shared[];
  __shared__ Exchange exchange;
  let_next_begin();
  const PlanArguments a = PLAN_ARGUMENTS;
  require_shared_memory(kWarps * 2 * kSlotSize * sizeof(bf16));
  if (blockDim.x != 2 * kWarps * 32) __trap(); /* without the second four warps nothing would be copied */
  if (threadIdx.x < kWarps) init_ring(exchange.rings[threadIdx.x]);
  __syncthreads();
  const int warp = __shfl_sync(kAllLanes, int(threadIdx.x >> 5), 0);
  if (warp >= kWarps) {
    COPY_REGISTERS();
    const int of = warp - kWarps, slots = slot_count();
    Walk(a, of).fill(a, shared + of * slots * kSlotSize, exchange.rings[of], slots);
  } else {
    ATTEND_REGISTERS();
    Attender(a, shared, exchange).attend_all();
  }
}
