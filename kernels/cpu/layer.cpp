/* One layer's work, and copies within the pool, divided among the threads when there is enough of it. */
#include <deque>
#include <vector>

#include "internal.h"
#include "pool.h"

namespace spg {
namespace {

constexpr int kRowsPerTask = 16;
/*
 * Below these sizes a second thread costs more than it gains. It falls asleep during the dense algebra between two
 * layers, and waking it on a virtual machine costs the caller 7 microseconds and the sleeper 10 to 25. One that is held
 * waits awake.
 */
constexpr double kSerialNs = 60000, kSerialNsHeld = 4000;
constexpr int kSerialFloats = 65536;

struct Job {
  spg_pool &pool;
  const LayerCall &call;
};

/* Tasks of one attender. */
struct AttendPart {
  const Attender *attender;
  const StepView *view;
  SharedState shared;
  int tasks;
};

struct AttendJob {
  spg_pool &pool;
  const LayerCall &call;
  AttendPart parts[kMostAttenders];
};

void write_task(void *argument, int task, int) {
  const Job &job = *static_cast<const Job *>(argument);
  const int firstRow = task * kRowsPerTask, rows = job.pool.step.view.rows;
  const int endRow = firstRow + kRowsPerTask < rows ? firstRow + kRowsPerTask : rows;
  job.pool.kernels->writeRows(job.pool.view, job.pool.step.view, job.call, firstRow, endRow);
}

void attend_task(void *argument, int task, int thread) {
  const AttendJob &job = *static_cast<const AttendJob *>(argument);
  float *scratch = job.pool.scratch.data() + thread * job.pool.scratchFloats;
  const AttendPart *part = job.parts;
  for (; task >= part->tasks; part++) task -= part->tasks;
  const Attender &attender = *part->attender;
  attender.kernels->attendTask(attender.view, *part->view, job.call, part->shared, task, scratch);
}

void deviate_task(void *argument, int task, int) {
  const Job &job = *static_cast<const Job *>(argument);
  const int firstRow = task * kRowsPerTask, rows = job.pool.step.view.rows;
  const int endRow = firstRow + kRowsPerTask < rows ? firstRow + kRowsPerTask : rows;
  job.pool.kernels->deviateRows(job.pool.view, job.pool.step.view, job.call, firstRow, endRow);
}

struct CopyJob {
  const spg_pool &pool;
  const TokenCopies &copies;
  /* By each table. */
  std::vector<const float *> rotations[2];
};

/* task = layer * kvHeads + kvHead */
void copy_task(void *argument, int task, int) {
  const CopyJob &job = *static_cast<const CopyJob *>(argument);
  const PoolView &view = job.pool.view;
  const int layer = task / view.kvHeads;
  const float *const *rotations = job.rotations[rope_table(view, layer)].data();
  job.pool.kernels->copyTokens(view, job.copies, rotations, layer, task % view.kvHeads);
}

void run_tasks(const spg_pool &pool, void *job, int count, bool serial, TaskBody body) {
  if (serial) {
    for (int task = count - 1; task >= 0; task--) body(job, task, 0);
  } else {
    pool.context->threads->run(count, body, job);
  }
}

int row_tasks(const spg_pool &pool) {
  return (pool.step.view.rows + kRowsPerTask - 1) / kRowsPerTask;
}

bool is_small(const PoolView &view, int64_t heads) {
  return heads * view.headDim < kSerialFloats;
}


void write_rows(spg_pool &pool, const LayerCall &call) {
  if (!pool.kernels) return reference::write_kv(pool.view, pool.step.view, call);
  Job job{pool, call};
  const bool serial = is_small(pool.view, static_cast<int64_t>(pool.step.view.rows) * pool.view.kvHeads);
  run_tasks(pool, &job, row_tasks(pool), serial, write_task);
}

}

void run_write_kv(spg_pool &pool, const LayerCall &call) {
  write_rows(pool, call);
  shadow_rows(pool, call.layer);
}

void run_deviations(spg_pool &pool, const LayerCall &call) {
  if (!pool.kernels) return reference::deviations(pool.view, pool.step.view, call);
  Job job{pool, call};
  const bool serial = is_small(pool.view, static_cast<int64_t>(pool.step.view.rows) * pool.view.kvHeads);
  run_tasks(pool, &job, row_tasks(pool), serial, deviate_task);
}

namespace {

/* All tokens of a copied stretch have the same delta, so a rotation is computed only where the delta changes. */
void copy_all(spg_pool &pool, const TokenCopies &copies) {
  if (!pool.kernels) return reference::copy_tokens(pool.view, copies);
  const int half = pool.view.rotaryDim / 2;
  std::deque<std::vector<float>> rows;
  CopyJob job{pool, copies, {}};
  double rotation[kMaxHeadDim];
  for (int table = 0; table < 2 && pool.ropes[table]; table++) {
    job.rotations[table].resize(copies.count);
    for (int i = 0; i < copies.count; i++) {
      if (i == 0 || copies.deltas[i] != copies.deltas[i - 1]) {
        fill_rotation(pool.view.inverseFrequencies[table], half, copies.deltas[i], 1, rotation);
        rows.emplace_back(rotation, rotation + 2 * half);
      }
      job.rotations[table][i] = rows.back().data();
    }
  }
  const int tasks = pool.view.layers * pool.view.kvHeads;
  run_tasks(pool, &job, tasks, is_small(pool.view, static_cast<int64_t>(copies.count) * tasks), copy_task);
}

}

void run_copy_tokens(spg_pool &pool, const TokenCopies &copies) {
  copy_all(pool, copies);
  shadow_slots(pool, copies.targetSlots, copies.count);
}

void run_attend(spg_pool &pool, const LayerCall &call) {
  if (!pool.kernels) return reference::attend(pool.view, pool.step.view, call);
  AttendJob job{pool, call, {}};
  AttendPart *part = job.parts;
  float *partials = pool.partials.data();
  double costNs = 0;
  int tasks = 0;
  for (Attender &attender : pool.attenders) {
    Planned &work = slides(pool.view, call.layer) ? attender.sliding : attender.work;
    *part = {&attender, &work.view, {partials, work.list.pending.data()}, work.view.itemCount * pool.view.kvHeads};
    partials += work.list.partialFloats;
    costNs += work.list.costNs;
    tasks += part++->tasks;
  }
  const double least = pool.context->threads->held() ? kSerialNsHeld : kSerialNs;
  run_tasks(pool, &job, tasks, costNs < least, attend_task);
}

}
