/*
 * Products of many rows with the weights of their experts, on Hopper: what a prompt does, limited by arithmetic.
 *
 * As expert_rows.cuh has them, weights in bf16, tiles (expert_tiles.cuh) of at most 128 assignments. A block has 128
 * rows by 256 outputs: 128 gates and their ups, or 256 outputs of down. Each of its two warpgroups has 64 rows and
 * two products of 128 outputs, so that a lane has the gate and the up of the same place. Shared memory holds four
 * steps of 64 inputs of rows and of outputs (wgmma.cuh, TILES); all threads gather them, two steps ahead, while the
 * products of a step run.
 *
 *   gated   input [rows][in] bf16, out [assignments][ffn] bf16
 *   down    input [assignments][in] bf16, out [assignments][outputs] bf16
 *   in, ffn and outputs are multiples of 8
 *
 * Compiled for sm_90a; launched elsewhere, it faults. Grid: (ceil(ffn / 128) or ceil(outputs / 256), tiles) blocks of
 * 256 threads. Floor: 2 * in FLOP for each assignment and output. Oracle: test/backend/cuda/emulated-experts.ts.
 */
#include "activation.cuh"
#include "expert_tiles.cuh"
#include "wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kThreads = 256, kRows = 128, kOutputs = 256, kInputs = 64;
constexpr int kSlots = 4, kAhead = 2;
constexpr uint32 kRowBytes = kRows * kInputs * 2, kSlotBytes = (kRows + kOutputs) * kInputs * 2;
constexpr uint32 kSharedBytes = kSlots * kSlotBytes;

using Sums = float[16][4];

/* The slots' address; too little shared memory is a fault instead of a wrong result. */
__device__ __forceinline__ uint32 slots_at(const unsigned char *memory) {
  uint32 bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  const uint32 shared = shared_address(memory);
  if (bytes < kSharedBytes || shared % 1024 != 0) __trap();
  return shared;
}

__device__ __forceinline__ void copy_vector(uint32 to, const bf16 *from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

/* What a thread gathers: vector tid % 8 of rows tid / 8 + 32 i, and of as many outputs. */
struct Gatherer {
  static constexpr int kStep = kThreads / 8;
  const bf16 *rows[kRows / kStep], *outputs[kOutputs / kStep];
  uint32 to;
  int column, in;

  /* @param rowAt, outputAt where the inputs of a row and of an output begin */
  template <class RowAt, class OutputAt>
  __device__ __forceinline__ Gatherer(uint32 shared, int in, RowAt rowAt, OutputAt outputAt) : in(in) {
    const int vector = threadIdx.x % 8, first = threadIdx.x / 8;
    column = vector * 8;
#pragma unroll
    for (int i = 0; i < kRows / kStep; i++) rows[i] = rowAt(first + i * kStep) + column;
#pragma unroll
    for (int i = 0; i < kOutputs / kStep; i++) outputs[i] = outputAt(first + i * kStep) + column;
    /* kStep is a multiple of 8: the swizzle is the same for all of the thread's rows. */
    to = shared + tile_byte(first, column, 0);
  }

  __device__ __forceinline__ void copy(int step) const {
    const int at = step * kInputs;
    const bool valid = at + column < in;
    const uint32 slot = to + step % kSlots * kSlotBytes;
    const int from = valid ? at : 0;
    if (at < in) {
#pragma unroll
      for (int i = 0; i < kRows / kStep; i++) copy_vector(slot + i * kStep * 128, rows[i] + from, valid);
#pragma unroll
      for (int i = 0; i < kOutputs / kStep; i++) {
        copy_vector(slot + kRowBytes + i * kStep * 128, outputs[i] + from, valid);
      }
    }
    commit_copies();
  }
};

/* Sums of the warpgroup's rows with outputs 0 to 127 of the block, and with 128 to 255. */
__device__ __forceinline__ void multiply_tile(const Gatherer &gatherer, uint32 shared, Sums &first, Sums &second) {
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x >> 7), 0), steps = (gatherer.in + kInputs - 1) / kInputs;
#pragma unroll
  for (int step = 0; step < kAhead; step++) gatherer.copy(step);
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    wait_copies<kAhead - 1>();
    order_before_products();
    /* All have this step, and no product reads the step two before any more, whose slot is filled now. */
    __syncthreads();
    const uint32 slot = shared + step % kSlots * kSlotBytes;
    const uint64 a = matrix_descriptor(slot + group * 64 * 128, 0);
    const uint64 b = matrix_descriptor(slot + kRowBytes, 0), c = matrix_descriptor(slot + kRowBytes + 128 * 128, 0);
    pin(first), pin(second);
    products_begin();
#pragma unroll
    for (int k = 0; k < kInputs; k += 16) {
      multiply_rows(first, a + (k * 2 >> 4), b + (k * 2 >> 4), step > 0 || k > 0);
      multiply_rows(second, a + (k * 2 >> 4), c + (k * 2 >> 4), step > 0 || k > 0);
    }
    products_commit();
    gatherer.copy(step + kAhead);
    products_wait<1>();
  }
  products_wait<0>();
  pin(first), pin(second);
}

/* Row 16 * warp + lane / 4 (+ 8) of the tile, and how a lane stores eight neighbouring columns of it. */
__device__ __forceinline__ int tile_row(int r) { return (threadIdx.x >> 5) * 16 + (threadIdx.x & 31) / 4 + 8 * r; }

/* Stores a row's 128 columns from `to` on, of which `columns` exist; `value` gives the column's number. */
template <class Value>
__device__ __forceinline__ void store_columns(bf16 *to, bool exists, int columns, Value value) {
#pragma unroll
  for (int m = 0; m < 16; m += 4) {
    uint32 words[4];
#pragma unroll
    for (int n = 0; n < 4; n++) words[n] = pack_bf16(value(m + n, 0), value(m + n, 1));
    const uint4 eight = transpose_words(words);
    const int column = (m + int(threadIdx.x & 3)) * 8;
    if (exists && column < columns) *reinterpret_cast<uint4 *>(to + column) = eight;
  }
}
#endif

extern "C" __global__ void __launch_bounds__(256, 1)
experts_gated_wgmma(const bf16 *input, const bf16 *weights, const bf16 *__restrict__ bias, const ExpertTile *tiles,
                    const int *order, int perToken, int in, int ffn, int gateStep, int upOffset, int activation,
                    bf16 *out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  let_next_begin();
  wait_for_previous();
  const ExpertTile tile = tiles[blockIdx.y];
  if (tile.count == 0) return;
  const uint32 shared = slots_at(memory);
  const int firstGate = blockIdx.x * 128, firstRow = tile.expert * 2 * ffn;
  const auto rowAt = [&](int row) {
    return input + size_t(order[tile.first + min(row, tile.count - 1)] / perToken) * in;
  };
  const auto outputAt = [&](int output) {
    const int gate = min(firstGate + output % 128, ffn - 1) * gateStep;
    return weights + size_t(firstRow + gate + (output < 128 ? 0 : upOffset)) * in;
  };
  Sums gates, ups;
  multiply_tile(Gatherer(shared, in, rowAt, outputAt), shared, gates, ups);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = tile_row(r);
    const auto value = [&](int n, int i) {
      float gate = gates[n][2 * r + i], up = ups[n][2 * r + i];
      if (bias) {
        const int own = min(firstGate + n * 8 + int(threadIdx.x & 3) * 2 + i, ffn - 1);
        const bf16 *of = bias + firstRow + own * gateStep;
        gate += to_float(of[0]), up += to_float(of[upOffset]);
      }
      return gated(gate, up, activation);
    };
    store_columns(out + size_t(tile.first + row) * ffn + firstGate, row < tile.count, ffn - firstGate, value);
  }
#else
  __trap();
#endif
}

extern "C" __global__ void __launch_bounds__(256, 1)
experts_down_wgmma(const bf16 *input, const bf16 *weights, const bf16 *__restrict__ bias, const ExpertTile *tiles,
                   const int *order, int in, int outputs, bf16 *out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  let_next_begin();
  wait_for_previous();
  const ExpertTile tile = tiles[blockIdx.y];
  if (tile.count == 0) return;
  const uint32 shared = slots_at(memory);
  const int firstOutput = blockIdx.x * kOutputs, firstRow = tile.expert * outputs;
  const auto rowAt = [&](int row) { return input + size_t(tile.first + min(row, tile.count - 1)) * in; };
  const auto outputAt = [&](int output) {
    return weights + size_t(firstRow + min(firstOutput + output, outputs - 1)) * in;
  };
  Sums halves[2];
  multiply_tile(Gatherer(shared, in, rowAt, outputAt), shared, halves[0], halves[1]);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = tile_row(r);
    const bool exists = row < tile.count;
    bf16 *to = out + size_t(exists ? order[tile.first + row] : 0) * outputs;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int first = firstOutput + half * 128;
      const auto value = [&](int n, int i) {
        const int own = min(first + n * 8 + int(threadIdx.x & 3) * 2 + i, outputs - 1);
        return halves[half][n][2 * r + i] + (bias ? to_float(bias[firstRow + own]) : 0.0f);
      };
      store_columns(to + first, exists, outputs - first, value);
    }
  }
#else
  __trap();
#endif
}
