/*
 * A small thread pool. The calling thread takes part; workers spin for some microseconds after a job and then
 * sleep, because the threads of the dense algebra share the same cores.
 *
 * Each thread begins with a share of consecutive tasks, so that it reads what lies together, and then takes what is left
 * of the others' shares. A job needs no thread but the calling one: one that wakes late finds less to do.
 */
#ifndef SPANGATE_KERNELS_THREADS_H
#define SPANGATE_KERNELS_THREADS_H

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace spg {

/* body(argument, task, thread): thread 0 is the calling one. */
using TaskBody = void (*)(void *argument, int task, int thread);

class ThreadPool {
 public:
  /* Throws std::system_error when a thread cannot be started. */
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  /*
   * While held, workers wait for the next job awake, for a millisecond at most: between the jobs of one step waking them
   * takes longer than the jobs of a small model.
   */
  void hold(bool held) { held_.store(held, std::memory_order_relaxed); }
  bool held() const { return held_.load(std::memory_order_relaxed); }

  int size() const { return threads_; }
  /* Runs tasks 0 to count - 1, in any order, on all threads; returns when all are done. */
  void run(int count, TaskBody body, void *argument);

 private:
  /*
   * Of the tasks that a thread begins with, how many are not yet taken, and in the upper half the job's number. One
   * compare-and-swap takes a task of a known job, so a thread that wakes late cannot take a task of the next job with
   * this job's body. Each has a cache line of its own.
   */
  struct alignas(64) Share {
    std::atomic<uint64_t> state{0};
  };

  void work(int thread);
  void take_tasks(int thread, uint32_t job);
  int take_share(int owner, int thread, uint32_t job);
  /* The first task of a thread's share; of the thread after the last one, the number of tasks. */
  int share_start(int owner) const { return static_cast<int>(static_cast<int64_t>(count_) * owner / threads_); }
  bool wait_for_job(uint32_t &seen);
  void stop();

  const int threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::unique_ptr<Share[]> shares_;
  /* The number of the job that runs or ran last, and what it is. */
  alignas(64) std::atomic<uint32_t> job_{0};
  TaskBody body_ = nullptr;
  void *argument_ = nullptr;
  int count_ = 0;
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> held_{false};
};

}

#endif
