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

ThreadPool::ThreadPool(int threads) : threads_(threads), shares_(new Share[threads]) {
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
  if (count <= 1 || threads_ == 1) {
    for (int task = 0; task < count; task++) body(argument, task, 0);
    return;
  }
  body_ = body;
  argument_ = argument;
  count_ = count;
  unfinished_.store(count, std::memory_order_relaxed);
  const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
  for (int owner = 0; owner < threads_; owner++) {
    const uint32_t tasks = share_start(owner + 1) - share_start(owner);
    shares_[owner].state.store(static_cast<uint64_t>(job) << 32 | tasks, std::memory_order_release);
  }
  job_.store(job, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    /* Taking the lock ensures that a worker either sees the new job or already waits and is woken. */
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  take_tasks(0, job);
  while (!spin([this] { return unfinished_.load(std::memory_order_acquire) == 0; })) std::this_thread::yield();
}

void ThreadPool::take_tasks(int thread, uint32_t job) {
  int done = 0;
  for (int i = 0; i < threads_; i++) done += take_share((thread + i) % threads_, thread, job);
  if (done > 0) unfinished_.fetch_sub(done, std::memory_order_release);
}

/* Takes what is left of a share; returns how many tasks that was. What the job is may be read once a task was taken. */
int ThreadPool::take_share(int owner, int thread, uint32_t job) {
  std::atomic<uint64_t> &share = shares_[owner].state;
  uint64_t state = share.load(std::memory_order_acquire);
  int done = 0;
  while (state >> 32 == job && static_cast<uint32_t>(state) > 0) {
    if (!share.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel)) continue;
    body_(argument_, share_start(owner + 1) - static_cast<int>(static_cast<uint32_t>(state)), thread);
    done++;
    state = share.load(std::memory_order_acquire);
  }
  return done;
}

bool ThreadPool::wait_for_job(uint32_t &seen) {
  auto ready = [this, seen] {
    return stopping_.load(std::memory_order_relaxed) || job_.load(std::memory_order_seq_cst) != seen;
  };
  if (held()) spin([this, ready] { return ready() || !held(); }, kHeldSpinTime);
  if (!spin(ready)) {
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, ready);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  seen = job_.load(std::memory_order_acquire);
  return !stopping_.load(std::memory_order_relaxed);
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (wait_for_job(seen)) take_tasks(thread, seen);
}

}
