/*
 * Just enough of CUDA for a kernel to run as code of the host, one thread block after the other: its threads are contexts
 * that are switched where they wait for each other. Shared memory is static. For tests of kernels without matrix
 * instructions; test/kernels/host-cuda.ts puts the kernel's text behind this one, and a call of it behind that.
 */
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
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
struct int4 { int x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static inline int2 make_int2(int x, int y) { return {x, y}; }
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
static std::function<void()> body;
static int current, left;
static Waiting block;
static std::vector<Waiting> warps;
static std::vector<int> warpLeft;
static std::vector<uint64_t> exchanged;

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
  body();
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
  exchanged.assign(count, 0);
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

template <class Kernel>
static void launch(const uint32_t *grid, int blockThreads, Kernel kernel) {
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {unsigned(blockThreads), 1, 1};
  body = kernel;
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
template <class T> static T __shfl_up_sync(unsigned, T x, int by) {
  return host::exchange(x, host::lane() < by ? host::lane() : host::lane() - by);
}
static inline void __syncthreads() { host::wait(host::block, host::left); }
static inline void __syncwarp() { host::wait_warp(); }
static inline void __threadfence() {}

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
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
static inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += int(int8_t(a >> i)) * int(int8_t(b >> i));
  return sum;
}
template <class T> static T __ldcs(const T *from) { return *from; }
template <class T> static T __ldcg(const T *from) { return *from; }
template <class T> static T atomicAdd(T *to, T x) { const T old = *to; *to += x; return old; }
static inline int atomicMin(int *to, int x) { const int old = *to; *to = std::min(old, x); return old; }
