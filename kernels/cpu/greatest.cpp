/* The greatest number of each of some rows, on the threads of a context. */
#include <math.h>

#include <new>
#include <vector>

#include "matrix.h"

namespace {

using namespace spg;

/* Numbers of one task, and how many are done at once. */
constexpr int kSlice = 16384, kSerialNumbers = 65536;
constexpr int kMostRows = 1 << 20, kMostWidth = 1 << 24;

struct Job {
  const ProductTable &kernels;
  const float *x;
  int width, slices;
  std::vector<Greatest> found;
};

void slice_task(void *argument, int task, int) {
  Job &job = *static_cast<Job *>(argument);
  const int row = task / job.slices, first = task % job.slices * kSlice;
  const int count = job.width - first < kSlice ? job.width - first : kSlice;
  job.found[task] = job.kernels.greatest(job.x + static_cast<size_t>(row) * job.width + first, count);
}

/* Of a row's slices in their order, so that the first of equal numbers stays. */
int32_t greatest_of_row(const Greatest *slices, int count) {
  int32_t index = -1;
  float value = -INFINITY;
  for (int i = 0; i < count; i++) {
    if (slices[i].isNan) return -1;
    if (!(slices[i].value > value)) continue;
    value = slices[i].value;
    index = i * kSlice + slices[i].index;
  }
  return isfinite(value) ? index : -1;
}

}

extern "C" int32_t spg_greatest(spg_context *context, const float *x, int32_t row_count, int32_t width, int32_t *out) {
  if (!context || !x || !out) return SPG_E_NULL;
  if (row_count < 1 || row_count > kMostRows || width < 1 || width > kMostWidth) return SPG_E_ROWS;
  try {
    const int slices = (width + kSlice - 1) / kSlice, tasks = row_count * slices;
    Job job{*context->products, x, width, slices, std::vector<Greatest>(tasks)};
    if (static_cast<int64_t>(row_count) * width < kSerialNumbers) {
      for (int task = 0; task < tasks; task++) slice_task(&job, task, 0);
    } else {
      context->threads->run(tasks, slice_task, &job);
    }
    for (int row = 0; row < row_count; row++) out[row] = greatest_of_row(job.found.data() + row * slices, slices);
    return SPG_OK;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}
