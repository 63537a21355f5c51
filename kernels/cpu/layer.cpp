/* One layer's work, dealt out to the threads when there is enough of it. */
#include "internal.h"
#include "pool.h"

namespace spg {
namespace {

constexpr int kRowsPerTask = 16;
/*
 * Below these a second thread costs more than it brings. The dense algebra between two layers lets it fall asleep,
 * and waking it on a virtual machine takes the caller 7 microseconds and the sleeper 10 to 25.
 */
constexpr double kSerialNs = 60000;
constexpr int kSerialFloats = 65536;

struct Job {
  spg_pool &pool;
  const LayerCall &call;
  SharedState shared;
};

void write_task(void *argument, int task, int) {
  const Job &job = *static_cast<const Job *>(argument);
  const int firstRow = task * kRowsPerTask, rows = job.pool.step.view.rows;
  const int endRow = firstRow + kRowsPerTask < rows ? firstRow + kRowsPerTask : rows;
  job.pool.context->kernels->writeRows(job.pool.view, job.pool.step.view, job.call, firstRow, endRow);
}

void attend_task(void *argument, int task, int thread) {
  const Job &job = *static_cast<const Job *>(argument);
  float *scratch = job.pool.scratch.data() + thread * job.pool.scratchFloats;
  job.pool.context->kernels->attendTask(job.pool.view, job.pool.step.view, job.call, job.shared, task, scratch);
}

void run_tasks(Job &job, int count, bool serial, TaskBody body) {
  if (serial) {
    for (int task = count - 1; task >= 0; task--) body(&job, task, 0);
  } else {
    job.pool.context->threads->run(count, body, &job);
  }
}

}

void run_write_kv(spg_pool &pool, const LayerCall &call) {
  if (!pool.context->kernels) return reference::write_kv(pool.view, pool.step.view, call);
  Job job{pool, call, {}};
  const int rows = pool.step.view.rows;
  const bool serial = static_cast<int64_t>(rows) * pool.view.kvHeads * pool.view.headDim < kSerialFloats;
  run_tasks(job, (rows + kRowsPerTask - 1) / kRowsPerTask, serial, write_task);
}

void run_attend(spg_pool &pool, const LayerCall &call) {
  if (!pool.context->kernels) return reference::attend(pool.view, pool.step.view, call);
  Job job{pool, call, {pool.partials.data(), pool.step.pending.data()}};
  run_tasks(job, pool.step.view.itemCount * pool.view.kvHeads, pool.step.costNs < kSerialNs, attend_task);
}

void run_rerope(spg_pool &pool, const int32_t *blockIds, int count, int delta) {
  if (!pool.context->kernels) return reference::rerope(pool.view, blockIds, count, delta);
  const int half = pool.view.rotaryDim / 2;
  if (half == 0) return;
  double turn[kMaxHeadDim];
  float row[kMaxHeadDim];
  fill_turn(pool.view.inverseFrequencies, half, delta, 1, turn);
  for (int i = 0; i < 2 * half; i++) row[i] = static_cast<float>(turn[i]);
  for (int layer = 0; layer < pool.view.layers; layer++) {
    for (int i = 0; i < count * pool.view.kvHeads; i++) {
      unsigned char *head = head_data(pool.view, layer, blockIds[i / pool.view.kvHeads], i % pool.view.kvHeads);
      pool.context->kernels->reropeHead(pool.view, head, row);
    }
  }
}

}
