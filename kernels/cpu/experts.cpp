/* The experts of a layer: products of many matrices, each by a few rows, whose tasks are dealt out together. */
#include <math.h>
#include <string.h>

#include <memory>
#include <new>
#include <vector>

#include "product.h"

/* One expert's MLP. */
struct spg_expert {
  const spg_matrix *gateUp, *down;
  std::vector<float> gateUpBias, downBias;
};

struct spg_experts {
  spg_context *context = nullptr;
  std::vector<spg_expert> all;
};

namespace {

using namespace spg;

constexpr int kMostRows = 1 << 20;

/* Which experts, and the rows that each was given: those of its stretch of the list. */
struct Given {
  int first, end;
  const int32_t *starts, *rows;
};

bool rows_fit(const spg_experts &experts, const Given &given) {
  const int count = static_cast<int>(experts.all.size());
  if (given.first < 0 || given.end <= given.first || given.end > count || given.starts[0] != 0) return false;
  for (int i = 0; i < count; i++) {
    if (given.starts[i + 1] < given.starts[i]) return false;
  }
  if (given.starts[count] > kMostRows) return false;
  for (int expert = given.first; expert < given.end; expert++) {
    for (int i = given.starts[expert]; i < given.starts[expert + 1]; i++) {
      const int32_t least = i > given.starts[expert] ? given.rows[i - 1] + 1 : 0;
      if (given.rows[i] < least || given.rows[i] >= kMostRows) return false;
    }
  }
  return true;
}

struct Work {
  std::vector<Product> products;
  /* The first panel of rows of each product among all that are packed; of the one behind the last, how many there are. */
  std::vector<int> firstPanels;
  int pairsPerTask;
  /* Products of one part of the outputs follow each other in one task, since they add to the same rows. */
  bool adds;
};

void pack_task(void *argument, int task, int) {
  const Work &work = *static_cast<const Work *>(argument);
  size_t index = 0;
  while (work.firstPanels[index + 1] <= task) index++;
  const Product &product = work.products[index];
  product.kernels.packRows(product.matrix, product.plain, product.rows, task - work.firstPanels[index]);
}

void multiply_pairs(const Product &product, int firstPair, int pairs, int thread) {
  const int end = firstPair + pairs < product.matrix.pairs ? firstPair + pairs : product.matrix.pairs;
  multiply_range(product, product.rows, {firstPair, end, 0, product.panels}, thread);
}

void multiply_task(void *argument, int task, int thread) {
  const Work &work = *static_cast<const Work *>(argument);
  const int slices = divide_up(work.products[0].matrix.pairs, work.pairsPerTask);
  const int firstPair = task % slices * work.pairsPerTask;
  if (!work.adds) return multiply_pairs(work.products[task / slices], firstPair, work.pairsPerTask, thread);
  for (const Product &product : work.products) multiply_pairs(product, firstPair, work.pairsPerTask, thread);
}

bool same_rows(const PlainRows &a, const PlainRows &b, int count) {
  return a.data == b.data && memcmp(a.places, b.places, count * sizeof(int32_t)) == 0;
}

/* Lays the packed rows of all products out, which are of one size; the next product's rows may be the same. */
void lay_out_rows(spg_context &context, size_t panelBytes, Work &work) {
  int panels = 0;
  for (size_t i = 0; i < work.products.size(); i++) {
    Product &product = work.products[i];
    work.firstPanels.push_back(panels);
    const bool isSame = i > 0 && !work.adds && product.rows.rows == work.products[i - 1].rows.rows &&
                        same_rows(product.plain, work.products[i - 1].plain, product.rows.rows);
    /* Until the memory is there, `panelBytes` counts panels before the product's. */
    product.rows.panelBytes = isSame ? work.products[i - 1].rows.panelBytes : panels;
    if (!isSame) panels += product.panels;
  }
  work.firstPanels.push_back(panels);
  const int groups = work.products[0].matrix.groups;
  context.packedRows.reserve(panels * panelBytes / sizeof(float));
  context.rowScales.reserve(static_cast<size_t>(panels) * groups * kPanelRows);
  for (Product &product : work.products) {
    const size_t before = product.rows.panelBytes;
    product.rows.data = reinterpret_cast<unsigned char *>(context.packedRows.data()) + before * panelBytes;
    product.rows.scales = context.rowScales.data() + before * groups * kPanelRows;
    product.rows.panelBytes = panelBytes;
  }
}

void run_tasks(spg_context &context, bool serial, int count, TaskBody body, Work &work) {
  if (!serial) return context.threads->run(count, body, &work);
  for (int task = 0; task < count; task++) body(&work, task, 0);
}

/* All products have matrices of one shape. May throw std::bad_alloc. */
void run_work(spg_context &context, size_t panelBytes, Work &work) {
  if (work.products.empty()) return;
  lay_out_rows(context, panelBytes, work);
  const int count = static_cast<int>(work.products.size()), threads = context.threads->size();
  const MatrixView &matrix = work.products[0].matrix;
  const int few = static_cast<int>(kBytesPerTask / pair_bytes(matrix)) + 1, together = work.adds ? 1 : count;
  const int equal = divide_up(matrix.pairs * together, kTasksPerThread * threads);
  const int most = work.adds ? divide_up(few, count) : few;
  work.pairsPerTask = most < equal ? most : equal;
  double rows = 0;
  for (const Product &product : work.products) rows += product.rows.rows;
  const double least = context.threads->held() ? kSerialProductsHeld : kSerialProducts;
  const bool serial = static_cast<double>(matrix.inputs) * matrix.outputs * rows < least;
  run_tasks(context, serial, work.firstPanels.back(), pack_task, work);
  run_tasks(context, serial, divide_up(matrix.pairs, work.pairsPerTask) * together, multiply_task, work);
}

/* The product of one expert, whose packed rows are still to be laid out. */
Product product_of(spg_context &context, const spg_matrix &matrix, const PlainRows &plain, int rows, int parts,
                   const ProductCall &call) {
  const MatrixView view = wide_view(matrix.view);
  const PackedRows packed{nullptr, 0, nullptr, parts > view.parts ? parts : view.parts, rows};
  return {*context.products, view, narrow_of(context, matrix.view), plain, packed, call, divide_up(rows, kPanelRows)};
}

const float *bias_of(const std::vector<float> &bias) {
  return bias.empty() ? nullptr : bias.data();
}

bool same_shape(const MatrixView &a, const MatrixView &b) {
  return a.form == b.form && a.parts == b.parts && a.outputs == b.outputs && a.inputs == b.inputs;
}

}

extern "C" {

int32_t spg_experts_open(spg_context *context, const spg_matrix *const *gate_ups, const spg_matrix *const *downs,
                         int32_t count, spg_experts **out) {
  if (!context || !gate_ups || !downs || !out) return SPG_E_NULL;
  if (count < 1 || count > 1 << 16) return SPG_E_MATRIX;
  for (int32_t i = 0; i < count; i++) {
    if (!gate_ups[i] || !downs[i]) return SPG_E_NULL;
    if (gate_ups[i]->context != context || downs[i]->context != context) return SPG_E_MATRIX;
    if (!same_shape(gate_ups[i]->view, gate_ups[0]->view) || !same_shape(downs[i]->view, downs[0]->view)) return SPG_E_MATRIX;
  }
  const MatrixView &gateUp = gate_ups[0]->view, &down = downs[0]->view;
  if (gateUp.outputs % kPairOutputs != 0 || down.inputs > gateUp.outputs / 2) return SPG_E_MATRIX;
  try {
    auto experts = std::make_unique<spg_experts>();
    experts->context = context;
    for (int32_t i = 0; i < count; i++) experts->all.push_back({gate_ups[i], downs[i], {}, {}});
    *out = experts.release();
    return SPG_OK;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

void spg_experts_close(spg_experts *experts) {
  delete experts;
}

int32_t spg_experts_bias(spg_experts *experts, int32_t expert, const float *gate_up, const float *down) {
  if (!experts || !gate_up || !down) return SPG_E_NULL;
  if (expert < 0 || expert >= static_cast<int32_t>(experts->all.size())) return SPG_E_MATRIX;
  try {
    spg_expert &each = experts->all[expert];
    each.gateUpBias.assign(gate_up, gate_up + each.gateUp->view.outputs);
    each.downBias.assign(down, down + each.down->view.outputs);
    return SPG_OK;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

int32_t spg_experts_gate(const spg_experts *experts, int32_t first, int32_t end, const int32_t *starts,
                         const int32_t *rows, const float *x, int32_t x_stride, const float *norm, float norm_eps,
                         int32_t parts, int32_t finish, float *gated, int32_t gated_stride) {
  if (!experts || !starts || !rows || !x || !gated) return SPG_E_NULL;
  const Given given{first, end, starts, rows};
  const MatrixView &view = experts->all[0].gateUp->view;
  if (!is_gate(finish) || parts < 1 || parts > 3 || x_stride < view.inputs || gated_stride < view.outputs / 2 ||
      !rows_fit(*experts, given)) {
    return SPG_E_PRODUCT;
  }
  spg_context &context = *experts->context;
  try {
    Work work{};
    for (int32_t i = first; i < end; i++) {
      const spg_expert &expert = experts->all[i];
      if (starts[i + 1] == starts[i]) continue;
      const size_t stride = static_cast<size_t>(gated_stride);
      const ProductCall call{finish, gated + starts[i] * stride, stride, bias_of(expert.gateUpBias), 1, nullptr, nullptr};
      const PlainRows plain{x, static_cast<size_t>(x_stride), rows + starts[i], norm, norm_eps};
      work.products.push_back(product_of(context, *expert.gateUp, plain, starts[i + 1] - starts[i], parts, call));
    }
    const int used = work.products.empty() ? parts : work.products[0].rows.parts;
    run_work(context, context.products->panelBytes(wide_view(view), used), work);
    return SPG_OK;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

int32_t spg_experts_add(const spg_experts *experts, int32_t first, int32_t end, const int32_t *starts,
                        const int32_t *rows, const float *row_factors, float factor, int32_t parts, const float *gated,
                        int32_t gated_stride, float *out, int32_t out_stride) {
  if (!experts || !starts || !rows || !row_factors || !gated || !out) return SPG_E_NULL;
  const Given given{first, end, starts, rows};
  const MatrixView &view = experts->all[0].down->view;
  if (!isfinite(factor) || parts < 1 || parts > 3 || gated_stride < view.inputs || out_stride < view.outputs ||
      !rows_fit(*experts, given)) {
    return SPG_E_PRODUCT;
  }
  spg_context &context = *experts->context;
  try {
    Work work{};
    work.adds = true;
    for (int32_t i = first; i < end; i++) {
      const spg_expert &expert = experts->all[i];
      if (starts[i + 1] == starts[i]) continue;
      const size_t stride = static_cast<size_t>(gated_stride);
      const ProductCall call{SPG_ADD, out, static_cast<size_t>(out_stride), bias_of(expert.downBias), factor,
                             rows + starts[i], row_factors + starts[i]};
      const PlainRows plain{gated + starts[i] * stride, stride, nullptr, nullptr, 0};
      work.products.push_back(product_of(context, *expert.down, plain, starts[i + 1] - starts[i], parts, call));
    }
    const int used = work.products.empty() ? parts : work.products[0].rows.parts;
    run_work(context, context.products->panelBytes(wide_view(view), used), work);
    return SPG_OK;
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
}

}
