#include "threads.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace spg {
namespace {

constexpr std::chrono::microseconds kSpinTime(5), kHeldSpinTime(1000);

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

uint32_t job_of(uint64_t state) {
  return static_cast<uint32_t>(state >> 32);
}

/* Spins until `done` returns true or the time is over. */
template <class Done>
bool spin(Done done, std::chrono::microseconds time = kSpinTime) {
  const auto end = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < 32; i++) {
      if (done()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}

ThreadPool::ThreadPool(int threads) {
  try {
    for (int thread = 1; thread < threads; thread++) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread &worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::run(int count, TaskBody body, void *argument) {
  if (count <= 1 || workers_.empty()) {
    for (int task = count - 1; task >= 0; task--) body(argument, task, 0);
    return;
  }
  body_ = body;
  argument_ = argument;
  unfinished_.store(count, std::memory_order_relaxed);
  const uint64_t job = job_of(state_.load(std::memory_order_relaxed)) + 1u;
  state_.store(job << 32 | static_cast<uint32_t>(count), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    /* Taking the lock ensures that a worker either sees the new state_ or already waits and is woken. */
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  take_tasks(0);
  while (!spin([this] { return unfinished_.load(std::memory_order_acquire) == 0; })) std::this_thread::yield();
}

void ThreadPool::take_tasks(int thread) {
  uint64_t state = state_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(state) > 0) {
    if (!state_.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel)) continue;
    body_(argument_, static_cast<int>(static_cast<uint32_t>(state)) - 1, thread);
    unfinished_.fetch_sub(1, std::memory_order_release);
    state = state_.load(std::memory_order_acquire);
  }
}

bool ThreadPool::wait_for_job(uint32_t &seen) {
  auto ready = [this, seen] {
    return stopping_.load(std::memory_order_relaxed) || job_of(state_.load(std::memory_order_seq_cst)) != seen;
  };
  if (held()) spin([this, ready] { return ready() || !held(); }, kHeldSpinTime);
  if (!spin(ready)) {
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, ready);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  seen = job_of(state_.load(std::memory_order_relaxed));
  return !stopping_.load(std::memory_order_relaxed);
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (wait_for_job(seen)) take_tasks(thread);
}

}
