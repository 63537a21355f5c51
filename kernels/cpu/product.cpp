/*
 * One product on the threads of a context: of few rows weights are dealt out, and each thread packs a panel of rows for
 * itself; more panels are packed before. Of many rows, rows are dealt out.
 */
#include <new>

#include "product.h"

namespace spg {
namespace {

/* Rows of one task at most: packed they stay in the second-level cache while all weights pass by. */
constexpr int kPanelsPerTask = 16;
/* Each thread keeps rows of its own from here on: fewer do not make up for the weights that each reads then. */
constexpr int kOwnPanels = 4;
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

struct Job {
  const Product &product;
  int panelsPerTask, pairsPerTask;
  /*
   * By thread: what each has packed for itself, or null where rows are packed before. Packing 16 rows takes less time
   * than waiting for another thread's, and no row crosses from core to core.
   */
  OwnPanel *own;
  uint64_t number;
};

/* A thread's own copy of the only panel, with its scales one after the other. */
PackedRows own_rows(const Job &job, int thread) {
  const Product &product = job.product;
  PackedRows rows = product.rows;
  rows.data += thread * rows.panelBytes;
  rows.scales += static_cast<size_t>(thread) * product.matrix.groups * kPanelRows;
  if (job.own[thread].product == job.number) return rows;
  product.kernels.packRows(product.matrix, product.plain, rows, 0);
  job.own[thread].product = job.number;
  return rows;
}

void pack_task(void *argument, int task, int) {
  const Product &product = static_cast<const Job *>(argument)->product;
  product.kernels.packRows(product.matrix, product.plain, product.rows, task);
}

/* Tasks of the same pairs follow each other, so that their weights are in a cache. */
void multiply_task(void *argument, int task, int thread) {
  const Job &job = *static_cast<const Job *>(argument);
  const int panels = job.product.panels, pairs = job.product.matrix.pairs;
  const int slices = divide_up(panels, job.panelsPerTask);
  const int firstPair = task / slices * job.pairsPerTask, firstPanel = task % slices * job.panelsPerTask;
  const int endPair = firstPair + job.pairsPerTask, endPanel = firstPanel + job.panelsPerTask;
  const PackedRows rows = job.own ? own_rows(job, thread) : job.product.rows;
  multiply_range(job.product, rows,
                 {firstPair, endPair < pairs ? endPair : pairs, firstPanel, endPanel < panels ? endPanel : panels},
                 thread);
}

/* Packs some rows and multiplies them at once, so that they stay in this thread's caches. */
void whole_task(void *argument, int task, int thread) {
  const Job &job = *static_cast<const Job *>(argument);
  const int end = (task + 1) * job.panelsPerTask, panels = job.product.panels;
  for (int panel = task * job.panelsPerTask; panel < end && panel < panels; panel++) pack_task(argument, panel, thread);
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
  const MatrixView &matrix = job.product.matrix;
  const int panels = job.product.panels, few = static_cast<int>(kBytesPerTask / pair_bytes(matrix)) + 1;
  const int equal = divide_up(matrix.pairs, kTasksPerThread * threads);
  job.pairsPerTask = panels > 2 ? 1 : even_pairs(matrix.pairs, threads, few < equal ? few : equal);
  job.panelsPerTask = panels < kPanelsPerTask ? panels : kPanelsPerTask;
}

/* Deals a product of many rows out by rows, the same number for each thread. */
void deal_out_rows(int threads, Job &job) {
  const int panels = job.product.panels, turns = divide_up(panels, kPanelsPerTask * threads);
  job.pairsPerTask = job.product.matrix.pairs;
  job.panelsPerTask = divide_up(divide_up(panels, turns * threads), 2) * 2;
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
  const int threads = context.threads->size();
  const int panels = divide_up(rows, kPanelRows), used = parts > matrix.parts ? parts : matrix.parts;
  const ProductTable &kernels = *context.products;
  const size_t panelBytes = kernels.panelBytes(matrix, used);
  Narrow narrow{};
  const int copies = panels == 1 ? threads : panels;
  try {
    context.packedRows.reserve(copies * panelBytes / sizeof(float));
    context.rowScales.reserve(static_cast<size_t>(copies) * matrix.groups * kPanelRows);
    context.ownPanels.resize(threads);
    narrow = narrow_of(context, stored);
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
  const PackedRows packed{reinterpret_cast<unsigned char *>(context.packedRows.data()), panelBytes,
                          context.rowScales.data(), used, rows};
  const Product product{kernels, matrix, narrow, plain, packed, call, panels};
  OwnPanel *own = panels == 1 ? context.ownPanels.data() : nullptr;
  Job job{product, 0, 0, own, ++context.product};
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
