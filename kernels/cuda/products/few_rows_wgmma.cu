/*
 * Products of 1 to 64 rows with weights of 8 bits (e4m3), as cuBLASLt has them: what a decode step of several requests
 * does, where reading weights is all that should take time.
 *
 *   weights [out][in] and input [rows][in] e4m3, by tensor maps whose columns are pairs of bytes, of boxes of 64 and of kRows
 *   rows; in a multiple of 128; output [rows][out] bf16, out a multiple of 4
 *   by blocks  weightScales [out / 128][scaleStride], inputScales [in / 128][rows], rows a multiple of 4
 *   by rows    scaleStride 0, weightScales [out], inputScales [rows]
 *
 * A thread block has 64 outputs, for a warpgroup, and all rows, of which its tile has place for kRows. One more warp copies
 * weights and input to a ring of `stages` steps of 128 inputs, and begins with the weights before the kernel before has
 * ended (common.cuh). The tensor cores sum up a step, and steps are added in float32, each with its scales. The kPeers
 * thread blocks of a cluster share the inputs of the same outputs; their sums are added in the order of the inputs, so that
 * a row's result does not depend on the rows beside it.
 *
 * few_rows_wgmma_RxP: kRows R and kPeers P. Grid: P * ceil(out / 64) blocks of 160 threads. Shared memory:
 * worker/backend/cuda/products/few-rows.ts. Bytes: 1 a weight. For sm_90a alone; launched elsewhere, it faults. Oracle:
 * test/backend/cuda/emulated-e4m3.ts.
 */
#include "cluster.cuh"
#include "wgmma_e4m3.cuh"

struct Product {
  const void *weightMap, *inputMap;
  const float *weightScales, *inputScales;
  int scaleStride, rows, in, out;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kStepInputs = 128, kOutputs = 64, kWeightBytes = kOutputs * kStepInputs;
/* Floats from one row of sums in shared memory to the next. */
constexpr int kSumStride = kOutputs + 4;

__device__ __forceinline__ float4 load_peer4(uint32 own, int peer) {
  float4 x;
  asm volatile(
      "{\n.reg .b32 address;\nmapa.shared::cluster.u32 address, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [address];\n}"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(own), "r"(peer)
      : "memory");
  return x;
}

/* The ring: of each stage the weights, the input and its scales, and the barriers that say which of them are there. */
template <int kRows>
struct Ring {
  static constexpr int kInputBytes = kRows * kStepInputs, kStageBytes = kWeightBytes + kInputBytes;
  uint32 memory;
  int stages;

  __device__ __forceinline__ uint32 weights(int stage) const { return memory + stage * kStageBytes; }
  __device__ __forceinline__ uint32 input(int stage) const { return weights(stage) + kWeightBytes; }
  __device__ __forceinline__ uint32 input_scales(int stage) const {
    return memory + stages * kStageBytes + stage * kRows * 4;
  }
  __device__ __forceinline__ uint32 full(int stage) const { return input_scales(stages) + stage * 16; }
  __device__ __forceinline__ uint32 empty(int stage) const { return full(stage) + 8; }
};

/* What the copying warp's first lane does for steps [first, end). */
template <int kRows>
__device__ __forceinline__ void copy_steps(const Product &p, const Ring<kRows> &ring, int firstOutput, int first, int end) {
  const bool byBlocks = p.scaleStride > 0;
  const int bytes = Ring<kRows>::kStageBytes + (byBlocks ? p.rows * 4 : 0);
  const auto copy_weights = [&](int step, int stage) {
    barrier_arrive_expecting(ring.full(stage), bytes);
    copy_box(ring.weights(stage), p.weightMap, step * (kStepInputs / 2), firstOutput, ring.full(stage));
  };
  const auto copy_input = [&](int step, int stage) {
    copy_box(ring.input(stage), p.inputMap, step * (kStepInputs / 2), 0, ring.full(stage));
    if (byBlocks) copy_stretch(ring.input_scales(stage), p.inputScales + size_t(step) * p.rows, p.rows * 4, ring.full(stage));
  };
  const int ahead = min(ring.stages, end - first);
  for (int i = 0; i < ahead; i++) copy_weights(first + i, i);
  wait_for_previous();
  for (int i = 0; i < ahead; i++) copy_input(first + i, i);
  int stage = 0;
  uint32 parity = 0;
  for (int step = first + ahead; step < end; step++) {
    barrier_wait(ring.empty(stage), parity);
    copy_weights(step, stage);
    copy_input(step, stage);
    if (++stage == ring.stages) stage = 0, parity ^= 1;
  }
}

/* The warpgroup's sums of its outputs and all rows. */
template <int kRows>
__device__ __forceinline__ void multiply_steps(const Product &p, const Ring<kRows> &ring, int output, int first, int end,
                                               float (&sums)[kRows / 8][4]) {
  const bool byBlocks = p.scaleStride > 0;
  const int lane = threadIdx.x & 31;
  const float *weightScales = p.weightScales + size_t(min(output, p.out - 1) >> 7) * p.scaleStride;
  float scales = 1.0f;
#pragma unroll
  for (int n = 0; n < kRows / 8; n++) sums[n][0] = 0, sums[n][1] = 0, sums[n][2] = 0, sums[n][3] = 0;
  int stage = 0;
  uint32 parity = 0;
#pragma unroll 1
  for (int step = first; step < end; step++) {
    const int own = (step - first) & 31;
    if (byBlocks && own == 0 && step + lane < end) scales = __ldg(weightScales + step + lane);
    const float scale = __shfl_sync(kAllLanes, scales, own);
    barrier_wait(ring.full(stage), parity);
    float2 inputScales[kRows / 8];
#pragma unroll
    for (int n = 0; n < kRows / 8; n++) {
      inputScales[n] = make_float2(1.0f, 1.0f);
      if (byBlocks) {
        const uint32 from = ring.input_scales(stage) + (n * 8 + (lane & 3) * 2) * 4;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(inputScales[n].x), "=f"(inputScales[n].y) : "r"(from) : "memory");
      }
    }
    float part[kRows / 8][4];
    const uint64 a = matrix_descriptor(ring.weights(stage), 0);
    const uint64 b = matrix_descriptor(ring.input(stage), 0);
    pin(part);
    products_begin();
#pragma unroll
    for (int k = 0; k < kStepInputs; k += 32) multiply_bytes(part, a + (k >> 4), b + (k >> 4), k > 0);
    products_commit();
    products_wait<0>();
    pin(part);
    if (lane == 0) barrier_arrive(ring.empty(stage));
#pragma unroll
    for (int n = 0; n < kRows / 8; n++) {
      const float x = scale * inputScales[n].x, y = scale * inputScales[n].y;
      sums[n][0] = fmaf(part[n][0], x, sums[n][0]), sums[n][1] = fmaf(part[n][1], y, sums[n][1]);
      sums[n][2] = fmaf(part[n][2], x, sums[n][2]), sums[n][3] = fmaf(part[n][3], y, sums[n][3]);
    }
    if (++stage == ring.stages) stage = 0, parity ^= 1;
  }
}

/* The sums times the scales of whole rows, where it is these that are given. */
template <int kRows>
__device__ __forceinline__ void scale_rows(const Product &p, int output, float (&sums)[kRows / 8][4]) {
  if (p.scaleStride > 0) return;
  const float low = p.weightScales[min(output, p.out - 1)], high = p.weightScales[min(output + 8, p.out - 1)];
#pragma unroll
  for (int n = 0; n < kRows / 8; n++) {
    const int row = n * 8 + (threadIdx.x & 3) * 2;
    const float x = p.inputScales[min(row, p.rows - 1)], y = p.inputScales[min(row + 1, p.rows - 1)];
    sums[n][0] *= low * x, sums[n][1] *= low * y, sums[n][2] *= high * x, sums[n][3] *= high * y;
  }
}

/* Stores a thread's sums of outputs `output` and `output + 8`: lanes of neighbouring outputs exchange a row for a row. */
template <int kRows>
__device__ __forceinline__ void store_sums(const Product &p, int output, const float (&sums)[kRows / 8][4], bf16 *to) {
  const bool isOdd = threadIdx.x & 4;
#pragma unroll
  for (int n = 0; n < kRows / 8; n++) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float other = __shfl_xor_sync(kAllLanes, isOdd ? sums[n][i] : sums[n][i + 1], 4);
      const uint32 pair = isOdd ? pack_bf16(other, sums[n][i + 1]) : pack_bf16(sums[n][i], other);
      const int row = n * 8 + (threadIdx.x & 3) * 2 + isOdd, o = output - isOdd + i * 4;
      if (row < p.rows && o < p.out) *reinterpret_cast<uint32 *>(to + size_t(row) * p.out + o) = pair;
    }
  }
}

/* The same where the cluster's thread blocks each have a part of the sums; one adds up its share of the rows. */
template <int kRows, int kPeers>
__device__ __forceinline__ void store_shared_sums(const Product &p, uint32 shared, int peer, int firstOutput, bf16 *to) {
  constexpr int kVectors = kOutputs / 4, kShare = kRows / kPeers * kVectors;
  for (int i = threadIdx.x; i < kShare; i += 160) {
    const int row = peer * (kRows / kPeers) + i / kVectors, o = i % kVectors * 4;
    if (row >= p.rows || firstOutput + o >= p.out) continue;
    float4 parts[kPeers];
#pragma unroll
    for (int other = 0; other < kPeers; other++) parts[other] = load_peer4(shared + (row * kSumStride + o) * 4, other);
#pragma unroll
    for (int other = 1; other < kPeers; other++) {
      parts[0].x += parts[other].x, parts[0].y += parts[other].y;
      parts[0].z += parts[other].z, parts[0].w += parts[other].w;
    }
    *reinterpret_cast<uint2 *>(to + size_t(row) * p.out + firstOutput + o) =
        make_uint2(pack_bf16(parts[0].x, parts[0].y), pack_bf16(parts[0].z, parts[0].w));
  }
}
#endif

template <int kRows, int kPeers>
__device__ __forceinline__ void few_rows(const Product &p, int stages, bf16 *output) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, peer = blockIdx.x % kPeers;
  const int firstOutput = blockIdx.x / kPeers * kOutputs, steps = p.in / kStepInputs;
  const int first = peer * steps / kPeers, end = (peer + 1) * steps / kPeers;
  const Ring<kRows> ring = {(shared_address(memory) + 1023) & ~1023u, stages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) barrier_init(ring.full(i), 1), barrier_init(ring.empty(i), 4);
    publish_barriers();
  }
  __syncthreads();
  let_next_begin();
  float sums[kRows / 8][4];
  const int own = warp * 16 + lane / 4;
  if (warp == 4) {
    if (lane == 0) {
      acquire_tensor_map(p.weightMap);
      acquire_tensor_map(p.inputMap);
      copy_steps<kRows>(p, ring, firstOutput, first, end);
    }
    __syncwarp();
    wait_for_previous();
  } else {
    wait_for_previous();
    multiply_steps<kRows>(p, ring, firstOutput, first, end, sums);
    scale_rows<kRows>(p, firstOutput + own, sums);
    if (kPeers == 1) store_sums<kRows>(p, firstOutput + own, sums, output);
  }
  if (kPeers == 1) return;
  /* Sums lie [row][output] over the ring, from which nothing is read any more. */
  __syncthreads();
  if (warp < 4) {
#pragma unroll
    for (int n = 0; n < kRows / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = n * 8 + (lane & 3) * 2 + (i & 1), o = own + (i >> 1) * 8;
        store_shared1(ring.memory + (row * kSumStride + o) * 4, __float_as_uint(sums[n][i]));
      }
    }
  }
  cluster_sync<kPeers>();
  store_shared_sums<kRows, kPeers>(p, ring.memory, peer, firstOutput, output);
  /* None ends while others read its sums. */
  cluster_sync<kPeers>();
#else
  __trap();
#endif
}

#define KERNEL(name, rowTile, peers)                                                                               \
  extern "C" __global__ void __launch_bounds__(160, 4) CLUSTER_OF(peers)                                           \
  few_rows_wgmma_##name(const void *weightMap, const void *inputMap, const float *__restrict__ weightScales,       \
                        const float *inputScales, int scaleStride, int rows, int in, int out, int stages,          \
                        bf16 *output) {                                                                            \
    few_rows<rowTile, peers>({weightMap, inputMap, weightScales, inputScales, scaleStride, rows, in, out}, stages, \
                             output);                                                                              \
  }
#define KERNELS(rowTile) KERNEL(rowTile##x1, rowTile, 1) KERNEL(rowTile##x2, rowTile, 2) KERNEL(rowTile##x4, rowTile, 4)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
