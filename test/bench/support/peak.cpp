// What the machine can do at best: the yardstick of `bench kernels`. Compiled with -march=native.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#if defined(__AMX_TILE__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__AVX512F__)
typedef float Vec __attribute__((vector_size(64)));
#define IN_REGISTER(x) asm volatile("" : "+v"(x))
#elif defined(__AVX__)
typedef float Vec __attribute__((vector_size(32)));
#define IN_REGISTER(x) asm volatile("" : "+x"(x))
#else
typedef float Vec __attribute__((vector_size(16)));
#define IN_REGISTER(x) asm volatile("" : "+w"(x))
#endif

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* Runs `body` on all threads at once; answers the seconds of the slowest. */
template <class Body>
double on_threads(int threads, Body body) {
  std::vector<std::thread> others;
  std::vector<double> times(threads);
  auto timed = [&](int thread) {
    const double start = seconds();
    body(thread);
    times[thread] = seconds() - start;
  };
  for (int thread = 1; thread < threads; thread++) others.emplace_back(timed, thread);
  timed(0);
  for (std::thread &other : others) other.join();
  return *std::max_element(times.begin(), times.end());
}

/* 16 independent chains of fused-multiply-adds, which hide the latency of two units. */
void multiply_add(int rounds) {
  constexpr int kChains = 16;
  const Vec factor = Vec{} + 0.999f, addend = Vec{} + 0.001f;
  Vec sums[kChains], total = Vec{};
#pragma GCC unroll 16
  for (int i = 0; i < kChains; i++) sums[i] = addend;
  for (int round = 0; round < rounds; round++) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; i++) {
      sums[i] = sums[i] * factor + addend;
      IN_REGISTER(sums[i]); /* or the whole computation moves out of what is timed */
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kChains; i++) total += sums[i];
  volatile float keep = total[0];
  (void)keep;
}

void read_all(const char *data, size_t bytes) {
  typedef int64_t Words __attribute__((vector_size(32)));
  Words sums[4] = {};
  const Words *words = reinterpret_cast<const Words *>(data);
  for (size_t i = 0; i + 4 <= bytes / sizeof(Words); i += 4) {
    for (int k = 0; k < 4; k++) sums[k] |= words[i + k];
  }
  volatile int64_t keep = sums[0][0] | sums[1][0] | sums[2][0] | sums[3][0];
  (void)keep;
}

#if defined(__AMX_TILE__)
struct TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t rowBytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/* Four independent sums, from registers alone. */
void multiply_tiles(bool whole, int rounds) {
  const TileShapes shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int i = 0; i < rounds; i++) {
    if (whole) {
      _tile_dpbssd(0, 4, 5);
      _tile_dpbssd(1, 4, 5);
      _tile_dpbssd(2, 4, 5);
      _tile_dpbssd(3, 4, 5);
    } else {
      _tile_dpbf16ps(0, 4, 5);
      _tile_dpbf16ps(1, 4, 5);
      _tile_dpbf16ps(2, 4, 5);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_release();
}
#endif

}

extern "C" {

/*
 * Greatest rate of AMX, in billions of multiplications and additions a second, in int8 or bfloat16; 0 where there is
 * none or the system refuses it.
 */
double probe_tiles(int threads, int whole, int repeats) {
#if defined(__AMX_TILE__)
  if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return 0;
  const int rounds = 100000;
  double best = 0;
  for (int i = 0; i < repeats; i++) {
    const double time = on_threads(threads, [&](int) { multiply_tiles(whole != 0, rounds); });
    best = std::max(best, 4.0 * (whole ? 32768 : 16384) * rounds * threads / time / 1e9);
  }
  return best;
#else
  (void)threads, (void)whole, (void)repeats;
  return 0;
#endif
}

/* Greatest float32 fused-multiply-add rate of `threads` threads, in GFLOP/s, of `repeats` tries. */
double probe_gflops(int threads, int repeats) {
  const int rounds = 200000;
  double best = 0;
  for (int i = 0; i < repeats; i++) {
    const double time = on_threads(threads, [&](int) { multiply_add(rounds); });
    best = std::max(best, 2.0 * 16 * sizeof(Vec) / sizeof(float) * rounds * threads / time / 1e9);
  }
  return best;
}

/* Greatest rate of reading `bytes` a thread from memory, in GB/s. */
double probe_gigabytes(int threads, int64_t bytes, int repeats) {
  char *data = static_cast<char *>(aligned_alloc(1 << 21, bytes * threads));
  if (!data) return 0;
  memset(data, 1, bytes * threads);
  double best = 0;
  for (int i = 0; i < repeats; i++) {
    const double time = on_threads(threads, [&](int thread) { read_all(data + thread * bytes, bytes); });
    best = std::max(best, 1e-9 * bytes * threads / time);
  }
  free(data);
  return best;
}
}
