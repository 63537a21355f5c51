/*
 * One product on the threads of a context: of few rows weights are dealt out, and each thread packs a panel of rows for
 * itself; more panels are packed before. Of many rows, rows are dealt out.
 */
#include <new>

#include "matrix.h"

namespace spg {
namespace {

/* Rows of one task at most: packed they stay in the second-level cache while all weights pass by. */
constexpr int kPanelsPerTask = 16;
/* Each thread keeps rows of its own from here on: fewer do not make up for the weights that each reads then. */
constexpr int kOwnPanels = 4;
/* Weights of one task when there are so few rows that reading weights is the work. */
constexpr size_t kBytesPerTask = 128 * 1024;
/*
 * A product of fewer weights and rows than this is done at once. Waking a thread takes longer (25 microseconds, measured
 * on a virtual machine); one that waits awake takes its first task after half a microsecond, and two cores fetch weights
 * from the last cache twice as fast as one.
 */
constexpr double kSerialProducts = 1000000, kSerialProductsHeld = 30000;
/* How many tasks each thread should find when rows are few. */
constexpr int kTasksPerThread = 4;

/* Rows of a norm that one task takes, and how many numbers are done at once. */
constexpr int kNormRows = 16, kSerialNormNumbers = 65536;

struct NormJob {
  const ProductTable &kernels;
  const NormCall &call;
  int rows;
};

void norm_task(void *argument, int task, int) {
  const NormJob &job = *static_cast<const NormJob *>(argument);
  const int first = task * kNormRows, end = first + kNormRows;
  job.kernels.normRows(job.call, first, end < job.rows ? end : job.rows);
}

/* Weights in mx4, and memory of each thread for some pairs of them in b16; none: the matrix is multiplied by as it is. */
struct Narrow {
  const MatrixView *weights;
  unsigned char *memory;
};

struct Job {
  const ProductTable &kernels;
  const MatrixView &matrix;
  const PlainRows &plain;
  const PackedRows &rows;
  const ProductCall &call;
  Narrow narrow;
  int panels, panelsPerTask, pairsPerTask;
  /*
   * By thread: what each has packed for itself, or null where rows are packed before. Packing 16 rows takes less time
   * than waiting for another thread's, and no row crosses from core to core.
   */
  OwnPanel *own;
  uint64_t product;
};

/* A thread's own copy of the only panel, with its scales one after the other. */
PackedRows own_rows(const Job &job, int thread) {
  PackedRows rows = job.rows;
  rows.data += thread * rows.panelBytes;
  rows.scales += static_cast<size_t>(thread) * job.matrix.groups * kPanelRows;
  if (job.own[thread].product == job.product) return rows;
  job.kernels.packRows(job.matrix, job.plain, rows, 0);
  job.own[thread].product = job.product;
  return rows;
}

/* Pairs that a thread widens at a time: two stay in the second cache beside rows, and one row reads each but once. */
constexpr int kWidenedPairs = 2;

/* The matrix as products see it: mx4 as b16, whose data come in parts. */
MatrixView wide_view(const MatrixView &matrix) {
  MatrixView view = matrix;
  if (matrix.form != SPG_MX4) return view;
  view.form = SPG_B16;
  view.data = nullptr;
  return view;
}

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

void pack_task(void *argument, int task, int) {
  const Job &job = *static_cast<const Job *>(argument);
  job.kernels.packRows(job.matrix, job.plain, job.rows, task);
}

/* Multiplies by some pairs; those in mx4 are widened in this thread's memory before. */
void multiply_range(const Job &job, const ProductRange &range, int thread) {
  const PackedRows rows = job.own ? own_rows(job, thread) : job.rows;
  if (!job.narrow.weights) return job.kernels.multiply(job.matrix, rows, job.call, range);
  unsigned char *memory = job.narrow.memory + thread * kWidenedPairs * pair_bytes(job.matrix);
  MatrixView some = job.matrix;
  some.data = memory;
  for (int pair = range.firstPair; pair < range.endPair; pair += kWidenedPairs) {
    const int end = pair + kWidenedPairs < range.endPair ? pair + kWidenedPairs : range.endPair;
    job.kernels.widenPairs(*job.narrow.weights, pair, end, memory);
    some.firstPair = pair;
    job.kernels.multiply(some, rows, job.call, {pair, end, range.firstPanel, range.endPanel});
  }
}

/* Tasks of the same pairs follow each other, so that their weights are in a cache. */
void multiply_task(void *argument, int task, int thread) {
  const Job &job = *static_cast<const Job *>(argument);
  const int slices = divide_up(job.panels, job.panelsPerTask);
  const int firstPair = task / slices * job.pairsPerTask, firstPanel = task % slices * job.panelsPerTask;
  const int endPair = firstPair + job.pairsPerTask, endPanel = firstPanel + job.panelsPerTask;
  multiply_range(job,
                 {firstPair, endPair < job.matrix.pairs ? endPair : job.matrix.pairs, firstPanel,
                  endPanel < job.panels ? endPanel : job.panels},
                 thread);
}

/* Packs some rows and multiplies them at once, so that they stay in this thread's caches. */
void whole_task(void *argument, int task, int thread) {
  const Job &job = *static_cast<const Job *>(argument);
  const int end = (task + 1) * job.panelsPerTask;
  for (int panel = task * job.panelsPerTask; panel < end && panel < job.panels; panel++) pack_task(argument, panel, thread);
  multiply_task(argument, task, thread);
}

template <class Task>
void run_tasks(spg_context &context, bool serial, int count, TaskBody body, Task &job) {
  if (!serial) return context.threads->run(count, body, &job);
  for (int task = 0; task < count; task++) body(&job, task, 0);
}

/* Pairs of a task, `most` or fewer, so that no thread has many more than the others. */
int even_pairs(int pairs, int threads, int most) {
  int best = most, least = pairs + 1;
  for (int each = most; each > 0; each--) {
    const int share = each * divide_up(divide_up(pairs, each), threads);
    if (share < least) best = each, least = share;
  }
  return best;
}

/* Deals a product of few rows out, by weights, so that each thread finds some tasks that are worth dealing out. */
void deal_out_weights(int threads, Job &job) {
  const int few = static_cast<int>(kBytesPerTask / pair_bytes(job.matrix)) + 1;
  const int equal = divide_up(job.matrix.pairs, kTasksPerThread * threads);
  job.pairsPerTask = job.panels > 2 ? 1 : even_pairs(job.matrix.pairs, threads, few < equal ? few : equal);
  job.panelsPerTask = job.panels < kPanelsPerTask ? job.panels : kPanelsPerTask;
}

/* Deals a product of many rows out by rows, the same number for each thread. */
void deal_out_rows(int threads, Job &job) {
  const int turns = divide_up(job.panels, kPanelsPerTask * threads);
  job.pairsPerTask = job.matrix.pairs;
  job.panelsPerTask = divide_up(divide_up(job.panels, turns * threads), 2) * 2;
}

}

void run_norm(spg_context &context, const NormCall &call, int rows) {
  NormJob job{*context.products, call, rows};
  const bool serial = static_cast<int64_t>(rows) * call.width < kSerialNormNumbers;
  run_tasks(context, serial, divide_up(rows, kNormRows), norm_task, job);
}

int32_t run_product(spg_context &context, const MatrixView &stored, const PlainRows &plain, int rows, int parts,
                    const ProductCall &call) {
  const MatrixView matrix = wide_view(stored);
  const bool isNarrow = stored.form == SPG_MX4;
  const int threads = context.threads->size();
  const int panels = divide_up(rows, kPanelRows), used = parts > matrix.parts ? parts : matrix.parts;
  const ProductTable &kernels = *context.products;
  const size_t panelBytes = kernels.panelBytes(matrix, used);
  const int copies = panels == 1 ? threads : panels;
  try {
    context.packedRows.reserve(copies * panelBytes / sizeof(float));
    context.rowScales.reserve(static_cast<size_t>(copies) * matrix.groups * kPanelRows);
    context.ownPanels.resize(threads);
    if (isNarrow) context.widened.reserve(threads * kWidenedPairs * pair_bytes(matrix) / sizeof(float));
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
  const PackedRows packed{reinterpret_cast<unsigned char *>(context.packedRows.data()), panelBytes,
                          context.rowScales.data(), used, rows};
  const Narrow narrow{isNarrow ? &stored : nullptr, reinterpret_cast<unsigned char *>(context.widened.data())};
  OwnPanel *own = panels == 1 ? context.ownPanels.data() : nullptr;
  Job job{kernels, matrix, plain, packed, call, narrow, panels, 0, 0, own, ++context.product};
  if (panels >= kOwnPanels * threads) {
    deal_out_rows(threads, job);
    run_tasks(context, false, divide_up(panels, job.panelsPerTask), whole_task, job);
    return SPG_OK;
  }
  deal_out_weights(threads, job);
  const double least = context.threads->held() ? kSerialProductsHeld : kSerialProducts;
  const bool serial = static_cast<double>(matrix.inputs) * matrix.outputs * rows < least;
  if (!own) run_tasks(context, serial, panels, pack_task, job);
  const int tasks = divide_up(matrix.pairs, job.pairsPerTask) * divide_up(panels, job.panelsPerTask);
  run_tasks(context, serial, tasks, multiply_task, job);
  return SPG_OK;
}

}
