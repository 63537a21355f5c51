/* Owners of native state: the context (threads, instruction set) and the pool (KV memory, the plan of one step). */
#ifndef SPANGATE_KERNELS_POOL_H
#define SPANGATE_KERNELS_POOL_H

#include <memory>
#include <vector>

#include "internal.h"
#include "memory.h"
#include "products.h"
#include "rope_table.h"
#include "sparse.h"
#include "step.h"
#include "threads.h"

namespace spg {

/* Which product a thread has packed its own panel of rows for. On a cache line of its own. */
struct alignas(64) OwnPanel {
  uint64_t product = 0;
};

}

struct spg_context {
  int32_t isa = 0;
  /* Null when the reference kernels run. */
  const spg::KernelTable *kernels = nullptr;
  /* By AMX, or null. */
  const spg::KernelTable *tileKernels = nullptr;
  const spg::ProductTable *products = nullptr;
  const spg::ChooseTable *choose = nullptr;
  std::unique_ptr<spg::ThreadPool> threads;
  /* The rows of the product that runs, packed, and the scales of int8 rows. */
  spg::FloatBuffer packedRows, rowScales;
  /* Of each thread; and the number of the product that runs. */
  std::vector<spg::OwnPanel> ownPanels;
  uint64_t product = 0;
  /* For each thread some pairs of weights in mx4 or e4m3 as bfloat16 numbers. */
  spg::FloatBuffer widened;
  /* For each thread a sealed segment that it has read from a file. */
  spg::FloatBuffer segments;
};

struct spg_pool {
  ~spg_pool() { spg::unmap_pages(view.data, bytes); }

  spg_context *context = nullptr;
  /* Null when the reference kernels run. */
  const spg::KernelTable *kernels = nullptr;
  /* Who attends: one for all rows, or one for prompts' and one for generated ones. None with the reference kernels. */
  std::vector<spg::Attender> attenders;
  spg::PoolView view{};
  size_t bytes = 0;
  std::vector<double> inverseFrequencies;
  std::vector<uint8_t> layerKinds;
  std::vector<float> sinks;
  /* One table, or two. */
  int tables = 1;
  std::unique_ptr<spg::RopeTable> ropes[2];
  spg::Step step;
  /* Null: every row reads all it sees, and K has no shadows. */
  std::unique_ptr<spg::SparseState> sparse;
  spg::FloatBuffer partials;
  /* For each thread one stretch of scratchFloats floats. */
  spg::FloatBuffer scratch;
  size_t scratchFloats = 0;
};

namespace spg {

/* Tables of rotations for all layers, where there are none yet. Throws std::bad_alloc. */
void make_rope_tables(spg_pool &pool);

/* One layer's work, done by the kernels of the pool's context. */
void run_write_kv(spg_pool &pool, const LayerCall &call);
void run_attend(spg_pool &pool, const LayerCall &call);
void run_copy_tokens(spg_pool &pool, const TokenCopies &copies);
void run_deviations(spg_pool &pool, const LayerCall &call);

/* Checks a configuration and derives the geometry; the caller still has to set `data` and the tables. */
int32_t make_view(const spg_pool_config &config, PoolView &view, size_t &bytes);

}

#endif
