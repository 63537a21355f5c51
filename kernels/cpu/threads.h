/*
 * A small thread pool. The calling thread takes part; workers spin for some microseconds after a job and then
 * sleep, because the threads of the dense algebra share the same cores.
 */
#ifndef SPANGATE_KERNELS_THREADS_H
#define SPANGATE_KERNELS_THREADS_H

#include <atomic>
#include <condition_variable>
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

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  /* Runs tasks count - 1 down to 0 on all threads; returns when all are done. */
  void run(int count, TaskBody body, void *argument);

 private:
  void work(int thread);
  void take_tasks(int thread);
  bool wait_for_job(uint32_t &seen);
  void stop();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  /*
   * The job number in the upper half, the number of tasks not yet taken in the lower. One compare-and-swap takes a task
   * of a known job, so a thread that wakes late cannot take a task of the next job with this job's body.
   */
  std::atomic<uint64_t> state_{0};
  std::atomic<int> unfinished_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> held_{false};
  TaskBody body_ = nullptr;
  void *argument_ = nullptr;
};

}

#endif
