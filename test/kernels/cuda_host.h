/*
 * Just enough of CUDA for a kernel to run as code of the host, one thread block after the other: its threads are contexts
 * that are switched where they wait for each other. Shared memory is static, and asynchronous copies are done when they are
 * asked for. test/kernels/host-cuda.ts puts the kernel's text behind this one, and a call of it behind that.
 */
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define __device__
#define __global__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct dim3 { unsigned x, y, z; };
struct int2 { int x, y; };
struct uint2 { unsigned x, y; };
struct int4 { int x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr size_t kStackBytes = 128 << 10;
constexpr int kWarpThreads = 32;

struct Waiting { int there = 0, generation = 0; };
/* Begun as a context and switched by jumps from then on, which ask nothing of the system. */
struct Thread {
  ucontext_t context;
  jmp_buf place;
  std::vector<char> stack;
  bool isBegun, isDone;
};

static std::vector<Thread> threads;
static jmp_buf scheduler;
/* The kernel with its arguments, and how it is called: the standard library's own would be compiled with every kernel. */
static const void *bodyKernel;
static void (*body)(const void *kernel);
static int current, left;
static Waiting block;
static std::vector<Waiting> warps;
static std::vector<int> warpLeft;
static std::vector<uint64_t> exchanged;
/* What a thread shows the others of its warp for a matrix instruction. */
struct Shown { const void *row; uint32_t words[8]; };
static std::vector<Shown> shown;
/* Dynamic shared memory of the thread block, which begins as no number. */
alignas(128) static char dynamicShared[256 << 10];
static uint32_t dynamicBytes;
template <class T> static T *dynamic_shared() { return reinterpret_cast<T *>(dynamicShared); }
/* Addresses of shared memory in 32 bits: all of it is static, so it lies near. */
constexpr intptr_t kNear = intptr_t(1) << 31;
static uint32_t address_of(const void *p) { return uint32_t(static_cast<const char *>(p) - dynamicShared + kNear); }
static void *at(uint32_t address) { return dynamicShared + (intptr_t(address) - kNear); }
static void *at(const void *p) { return const_cast<void *>(p); }

static void yield() {
  if (_setjmp(threads[current].place) == 0) _longjmp(scheduler, 1);
}

static void resume(Thread &thread) {
  if (_setjmp(scheduler) != 0) return;
  if (thread.isBegun) _longjmp(thread.place, 1);
  thread.isBegun = true;
  setcontext(&thread.context);
}

static void wait(Waiting &group, int count) {
  const int generation = group.generation;
  if (++group.there == count) {
    group.there = 0, group.generation++;
    return;
  }
  while (group.generation == generation) yield();
}

static void wait_warp() { const int warp = current / kWarpThreads; wait(warps[warp], warpLeft[warp]); }

static void run_thread() {
  body(bodyKernel);
  threads[current].isDone = true;
  const int warp = current / kWarpThreads;
  left--, warpLeft[warp]--;
  /* Who has ended is waited for no longer. */
  if (block.there > 0 && block.there == left) block.there = 0, block.generation++;
  if (warps[warp].there > 0 && warps[warp].there == warpLeft[warp]) warps[warp].there = 0, warps[warp].generation++;
  _longjmp(scheduler, 1);
}

static void run_block(int count) {
  if (int(threads.size()) < count) threads.resize(count);
  left = count, block = {};
  warps.assign(count / kWarpThreads, {}), warpLeft.assign(count / kWarpThreads, kWarpThreads);
  exchanged.assign(count, 0), shown.resize(count);
  memset(dynamicShared, 0xff, dynamicBytes);
  for (int i = 0; i < count; i++) {
    Thread &thread = threads[i];
    thread.stack.resize(kStackBytes), thread.isBegun = thread.isDone = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data(), thread.context.uc_stack.ss_size = kStackBytes;
    makecontext(&thread.context, run_thread, 0);
  }
  while (left > 0) {
    const int before = left;
    int generations = block.generation;
    for (const Waiting &warp : warps) generations += warp.generation;
    for (current = 0; current < count; current++) {
      if (threads[current].isDone) continue;
      threadIdx = {unsigned(current), 0, 0};
      resume(threads[current]);
    }
    for (const Waiting &warp : warps) generations -= warp.generation;
    if (left == before && generations == block.generation && left > 0) {
      fprintf(stderr, "threads wait for each other in vain\n");
      abort();
    }
  }
}

/* Threads run in turn, so threadIdx is set anew by the scheduler alone. */
template <class T>
static T exchange(T x, int from) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "at most 64 bits are exchanged");
  memcpy(&exchanged[current], &x, sizeof(T));
  wait_warp();
  T other;
  memcpy(&other, &exchanged[current / kWarpThreads * kWarpThreads + from], sizeof(T));
  wait_warp();
  return other;
}

static int lane() { return current % kWarpThreads; }

/* mma.m16n8k32 of unsigned codes and signed numbers, as PTX lays its operands out over the lanes. */
static void multiply_codes(int (&sums)[4], const unsigned (&codes)[4], int first, int second) {
  const int g = lane() / 4, t = lane() % 4;
  for (int quarter = 0; quarter < 4; quarter++) {
    unsigned own[4];
    for (int i = 0; i < 4; i++) own[i] = exchange(codes[i], g * 4 + quarter);
    for (int column = 0; column < 2; column++) {
      const int from = (2 * t + column) * 4 + quarter;
      const int numbers[2] = {exchange(first, from), exchange(second, from)};
      for (int byte = 0; byte < 32; byte += 8) {
        for (int half = 0; half < 2; half++) {
          const int number = int8_t(numbers[half] >> byte);
          sums[column] += int(own[2 * half] >> byte & 255) * number;
          sums[2 + column] += int(own[2 * half + 1] >> byte & 255) * number;
        }
      }
    }
  }
}

/* What all lanes show, in the order of the lanes; valid until `wait_warp`. */
static const Shown *show(const Shown &own) {
  shown[current] = own;
  wait_warp();
  return &shown[current / kWarpThreads * kWarpThreads];
}

/* ldmatrix.x4: lane i gives row i % 8 of matrix i / 8, eight numbers of 16 bits. */
static void load_matrices(unsigned (&to)[4], const void *row, bool isTransposed) {
  const int g = lane() / 4, t = lane() % 4;
  const Shown *lanes = show({row, {}});
  for (int m = 0; m < 4; m++) {
    unsigned short pair[2];
    for (int i = 0; i < 2; i++) {
      const int at = 2 * t + i;
      const void *from = lanes[8 * m + (isTransposed ? at : g)].row;
      memcpy(&pair[i], static_cast<const unsigned short *>(from) + (isTransposed ? g : at), 2);
    }
    to[m] = pair[0] | unsigned(pair[1]) << 16;
  }
  wait_warp();
}

/* mma.m16n8k16 of bf16, as PTX lays its operands out over the lanes; sums are those of float32 in rising order. */
static void multiply_bf16(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const auto number = [](unsigned word, int half) {
    const unsigned bits = half ? word & 0xffff0000u : word << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
  };
  const int g = lane() / 4, t = lane() % 4;
  const Shown *lanes = show({nullptr, {a[0], a[1], a[2], a[3], b0, b1}});
  for (int i = 0; i < 4; i++) {
    for (int k = 0; k < 16; k++) {
      const uint32_t *row = lanes[4 * g + k % 8 / 2].words, *column = lanes[4 * (2 * t + i % 2) + k % 8 / 2].words;
      sum[i] += number(row[i / 2 + 2 * (k / 8)], k % 2) * number(column[4 + k / 8], k % 2);
    }
  }
  wait_warp();
}

static void copy(void *to, const void *from, int bytes) {
  memset(to, 0, 16);
  memcpy(to, from, bytes);
}

template <class Kernel>
static void launch(const uint32_t *grid, int blockThreads, uint32_t sharedBytes, Kernel kernel) {
  if (sharedBytes > sizeof(dynamicShared)) abort();
  dynamicBytes = sharedBytes;
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {unsigned(blockThreads), 1, 1};
  bodyKernel = &kernel;
  body = [](const void *at) { (*static_cast<const Kernel *>(at))(); };
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) blockIdx = {x, y, z}, run_block(blockThreads);
}

static inline unsigned short half_of(float x) { const _Float16 half = _Float16(x); unsigned short bits; memcpy(&bits, &half, 2); return bits; }
static inline float of_half(unsigned short bits) { _Float16 half; memcpy(&half, &bits, 2); return float(half); }
static inline unsigned bf16_of(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}

template <class T> static T __shfl_xor_sync(unsigned, T x, int mask) { return host::exchange(x, host::lane() ^ mask); }
template <class T> static T __shfl_sync(unsigned, T x, int from) { return host::exchange(x, from); }
template <class T> static T __shfl_up_sync(unsigned, T x, int by) {
  return host::exchange(x, host::lane() < by ? host::lane() : host::lane() - by);
}
static inline unsigned __ballot_sync(unsigned, bool isSet) {
  unsigned lanes = 0;
  for (int from = 0; from < host::kWarpThreads; from++) lanes |= unsigned(host::exchange(int(isSet), from)) << from;
  return lanes;
}
static inline void __syncthreads() { host::wait(host::block, host::left); }
static inline void __syncwarp() { host::wait_warp(); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

using std::max;
using std::min;
/* Nothing is fused: the library is compiled without contraction. */
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
static inline int __popcll(uint64_t x) { return __builtin_popcountll(x); }
static inline int __ffsll(uint64_t x) { return __builtin_ffsll(int64_t(x)); }
static inline void __trap() { abort(); }
static inline uint32_t __cvta_generic_to_shared(const void *p) { return host::address_of(p); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
static inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += int(int8_t(a >> i)) * int(int8_t(b >> i));
  return sum;
}
template <class T> static T __ldcs(const T *from) { return *from; }
template <class T> static T __ldcg(const T *from) { return *from; }
template <class T> static T atomicAdd(T *to, T x) { const T old = *to; *to += x; return old; }
static inline int atomicMin(int *to, int x) { const int old = *to; *to = std::min(old, x); return old; }
