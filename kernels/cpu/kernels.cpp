/*
 * The vector kernels: compiled once for AVX2 and once for AVX-512 (kernels/manifest.ts), each under a name of
 * its own. Everything else in here has internal linkage.
 */
#include "attend.h"
#include "heads.h"
#include "internal.h"
#include "vector.h"

namespace {

size_t scratch_floats(const PoolView &pool) {
  float *end = nullptr;
  const Scratch scratch = lay_out(pool, end);
  return static_cast<size_t>(scratch.values - end) + static_cast<size_t>(kChunkTokens) * pool.headDim + 32;
}

/* One thread's view of a task. */
struct TaskContext {
  const PoolView &pool;
  const StepView &step;
  const LayerCall &call;
  const Tile &tile;
  int kvHead;
  Scratch scratch;
};

void load_queries(const TaskContext &task) {
  const PoolView &pool = task.pool;
  const float log2e = 1.44269504088896340736f;
  for (int r = 0; r < task.tile.rowCount; r++) {
    const float *row = task.call.qkv + (task.tile.firstRow + r) * task.call.qkvStride;
    for (int g = 0; g < pool.group; g++) {
      const float *q = row + static_cast<size_t>(task.kvHead * pool.group + g) * pool.headDim;
      scale_head(q, task.call.qNorm, pool.headDim, pool.normEps, pool.softmaxScale * log2e,
                 task.scratch.bare + (r * pool.group + g) * pool.headDim);
    }
  }
}

void turn_queries(const TaskContext &task, int offset) {
  const PoolView &pool = task.pool;
  for (int r = 0; r < task.tile.rowCount; r++) {
    const float *row = rope_row(pool, task.step.positions[task.tile.firstRow + r] - offset);
    for (int i = r * pool.group; i < (r + 1) * pool.group; i++) {
      rotate_head(pool, task.scratch.bare + i * pool.headDim, row, task.scratch.turned + i * pool.headDim);
    }
  }
}

/* One micro panel of queries reads K and V from memory but once: there the next panels are fetched ahead. */
template <class T>
void run_in_pool(const TaskContext &task, const Chunk &chunk, const Chunk *next, const Window &window, int endPanel) {
  Panels<T> panels;
  point_at_pool(task.pool, task.step, chunk, task.call.layer, task.kvHead, endPanel, panels);
  if (task.tile.rowCount * task.pool.group <= kMicroQueries) {
    look_ahead(task.pool, task.step, next, task.call.layer, task.kvHead, window.firstPanel, endPanel, panels);
    attend_chunk<true>(task.pool, task.tile, window, panels, task.scratch);
  } else {
    attend_chunk<false>(task.pool, task.tile, window, panels, task.scratch);
  }
}

void run_chunk(const TaskContext &task, const Chunk &chunk, const Chunk *next, const Window &window) {
  const PoolView &pool = task.pool;
  const int end = row_end(window, task.tile, task.tile.rowCount - 1);
  const int layer = task.call.layer, endPanel = (end + kPanelTokens - 1) / kPanelTokens;
  const bool shared = task.tile.rowCount * pool.group > kMicroQueries;
  if (pool.blockTokens < kPanelTokens || (pool.elementBytes == 2 && shared)) {
    Panels<float> panels;
    const int staged = pool.blockTokens < kPanelTokens ? end : endPanel * kPanelTokens;
    if (pool.elementBytes == 4) {
      stage<float>(pool, task.step, chunk, layer, task.kvHead, staged, task.scratch, panels);
    } else {
      stage<Half>(pool, task.step, chunk, layer, task.kvHead, staged, task.scratch, panels);
    }
    attend_chunk<false>(pool, task.tile, window, panels, task.scratch);
  } else if (pool.elementBytes == 4) {
    run_in_pool<float>(task, chunk, next, window, endPanel);
  } else {
    run_in_pool<Half>(task, chunk, next, window, endPanel);
  }
}

/* Merges the chunk's result into the running one, for each query that saw a token of it. */
void merge_chunk(const TaskContext &task, const Window &window, const Softmax &chunk) {
  const int padded = spg::padded_dim(task.pool), group = task.pool.group;
  for (int i = 0; i < task.tile.rowCount * group; i++) {
    if (row_end(window, task.tile, i / group) <= window.firstToken) continue;
    merge(query_at(task.scratch.running, i, padded), query_at(chunk, i, padded), padded);
  }
}

void write_out(const TaskContext &task) {
  const PoolView &pool = task.pool;
  const int padded = spg::padded_dim(pool), group = pool.group;
  for (int i = 0; i < task.tile.rowCount * group; i++) {
    const Softmax result = query_at(task.scratch.running, i, padded);
    const size_t head = static_cast<size_t>(task.tile.firstRow + i / group) * pool.queryHeads +
                        task.kvHead * group + i % group;
    scale_head(result.values, nullptr, pool.headDim, 0, 1.0f / *result.sum, task.call.out + head * pool.headDim);
  }
}

Softmax partial_at(const TaskContext &task, const spg::SharedState &shared, int chunk) {
  const int queries = task.tile.rowCount * task.pool.group;
  const size_t index = static_cast<size_t>(task.kvHead) * task.tile.chunkCount + chunk;
  float *start = shared.partials + task.tile.partialStart + index * spg::partial_floats(task.pool, queries);
  const size_t values = static_cast<size_t>(queries) * spg::padded_dim(task.pool);
  return {start + values, start + values + queries, start};
}

void attend_task(const PoolView &pool, const StepView &step, const LayerCall &call, const spg::SharedState &shared,
                 int index, float *memory) {
  const Item &item = step.items[index / pool.kvHeads];
  const Tile &tile = step.tiles[item.tile];
  TaskContext task{pool, step, call, tile, index % pool.kvHeads, lay_out(pool, memory)};
  const int queries = tile.rowCount * pool.group, padded = spg::padded_dim(pool);
  const bool split = tile.itemCount > 1;
  load_queries(task);
  if (!split) clear(task.scratch.running, queries, padded);
  const Chunk *turnedFor = nullptr;
  for (int c = item.firstChunk; c < item.firstChunk + item.chunkCount; c++) {
    const Chunk &chunk = step.chunks[tile.firstChunk + c];
    if (!turnedFor || turnedFor->offset != chunk.offset) turn_queries(task, chunk.offset);
    turnedFor = &chunk;
    const Window window = window_of(chunk, tile);
    if (split) task.scratch.chunk = partial_at(task, shared, c);
    run_chunk(task, chunk, c + 1 < item.firstChunk + item.chunkCount ? &chunk + 1 : nullptr, window);
    if (!split) merge_chunk(task, window, task.scratch.chunk);
  }
  if (split) {
    /* Whoever finishes the tile's last item merges all chunks, in their order. */
    int32_t *pending = shared.pending + tile.counter + task.kvHead;
    if (__atomic_sub_fetch(pending, 1, __ATOMIC_ACQ_REL) > 0) return;
    __atomic_store_n(pending, tile.itemCount, __ATOMIC_RELAXED); /* for the next layer */
    clear(task.scratch.running, queries, padded);
    for (int c = 0; c < tile.chunkCount; c++) {
      merge_chunk(task, window_of(step.chunks[tile.firstChunk + c], tile), partial_at(task, shared, c));
    }
  }
  write_out(task);
}

void embed_row(const void *table, int type, size_t start, int width, float *out) {
  if (type == SPG_FLOAT32) {
    memcpy(out, static_cast<const float *>(table) + start, static_cast<size_t>(width) * sizeof(float));
  } else if (type == SPG_FLOAT16) {
    widen(static_cast<const Half *>(table) + start, width, out);
  } else {
    const uint16_t *row = static_cast<const uint16_t *>(table) + start;
    int i = 0;
    for (; i + kLanes <= width; i += kLanes) store(out + i, from_bfloat16(row + i));
    for (; i < width; i++) {
      const uint32_t bits = static_cast<uint32_t>(row[i]) << 16;
      memcpy(out + i, &bits, sizeof bits);
    }
  }
}

/* First the greatest value, then its first place. */
int argmax(const float *logits, int count) {
  Vec greatest = broadcast(-INFINITY);
  float top = -INFINITY;
  uint32_t nan = 0;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec x = load(logits + i);
    nan |= lanes_nan(x);
    greatest = max(greatest, x);
  }
  for (; i < count; i++) {
    nan |= __builtin_isnan(logits[i]);
    top = logits[i] > top ? logits[i] : top;
  }
  if (nan) return -1;
  const float inVectors = reduce<true>(greatest);
  top = inVectors > top ? inVectors : top;
  for (i = 0; i + kLanes <= count; i += kLanes) {
    const uint32_t equal = lanes_equal(load(logits + i), broadcast(top));
    if (equal) return i + __builtin_ctz(equal);
  }
  while (logits[i] != top) i++;
  return i;
}

}

namespace spg {

const KernelTable *SPG_KERNEL_TABLE() {
  static const KernelTable table = {scratch_floats, write_rows, attend_task, rerope_head, embed_row, argmax};
  return &table;
}

}
