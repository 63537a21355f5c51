/* Owners of native state: the context (threads, instruction set) and the pool (KV memory, one step's plan). */
#ifndef SPANGATE_KERNELS_POOL_H
#define SPANGATE_KERNELS_POOL_H

#include <vector>

#include "internal.h"
#include "step.h"

struct spg_context {
  int32_t isa;
  int32_t threads;
};

struct spg_pool {
  spg_context *context;
  spg::PoolView view;
  size_t bytes;
  std::vector<double> inverseFrequencies;
  spg::Step step;
};

namespace spg {

/* Anonymous zero pages, 64-byte (page) aligned, on huge pages where `huge`; nullptr when there is no room. */
void *map_zero_pages(size_t bytes, bool huge);
void unmap_pages(void *data, size_t bytes);
int64_t resident_bytes(void *data, size_t bytes);

/* Checks a configuration and derives the geometry; `data` and the tables are still to be set. */
int32_t make_view(const spg_pool_config &config, PoolView &view, size_t &bytes);

}

#endif
