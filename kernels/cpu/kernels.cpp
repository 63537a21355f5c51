/*
 * The vector kernels, compiled for AVX2, for AVX-512, and for AVX-512 with AMX (kernels/manifest.ts), each under a name of
 * its own. Everything else in this file has internal linkage.
 */
#include "attend.h"
#include "attend_tiles.h"
#include "blend.h"
#include "copies.h"
#include "heads.h"
#include "internal.h"
#include "vector.h"

namespace {

using spg::Member;

#if defined(__AMX_TILE__)
/* Eight pairs of 32 queries (attend_tiles.h). Measured on one core of an Intel Xeon with AMX. */
constexpr spg::KernelCosts kCosts = {256, 10, 0.6};
#else
/*
 * Sixteen micro panels of six, or eight where the second cache may be small. Measured on one Zen 4 core; with sixteen an
 * Intel Xeon takes a twentieth to a tenth less for prompts than with eight.
 */
constexpr spg::KernelCosts kCosts = {kLanes == 16 ? 96 : 48, 0, 2.6};
inline size_t tile_floats(const PoolView &) { return 0; }
inline void pack_queries(const PoolView &, const Scratch &, int, int) {}
#endif

size_t scratch_floats(const PoolView &pool) {
  float *end = nullptr;
  const Scratch scratch = lay_out(pool, end);
  return static_cast<size_t>(scratch.tiles - end) + tile_floats(pool);
}

/* One thread's view of a task: the rows of an item's members, one after the other, for one KV head. */
struct Task {
  const PoolView &pool;
  const StepView &step;
  const LayerCall &call;
  const Item &item;
  int kvHead;
  Scratch scratch;

  const Member &member(int m) const { return step.members[item.firstMember + m]; }
  const Tile &tile(int m) const { return step.tiles[member(m).tile]; }
  const Section &section(int m, int c) const {
    return step.sections[tile(m).firstSection + member(m).firstSection + c];
  }
};

/* Writes normalised and scaled q of a tile's rows into scratch.bare, from query `first` on. */
void load_queries(const Task &task, const Tile &tile, int first) {
  const PoolView &pool = task.pool;
  const float log2e = 1.44269504088896340736f;
  for (int r = 0; r < tile.rowCount; r++) {
    const float *row = task.call.qkv + (tile.firstRow + r) * task.call.qkvStride;
    for (int g = 0; g < pool.group; g++) {
      const float *q = row + static_cast<size_t>(task.kvHead * pool.group + g) * pool.headDim;
      scale_head(q, task.call.qNorm, pool.headDim, pool.normEps, pool.softmaxScale * log2e,
                 task.scratch.bare + (first + r * pool.group + g) * pool.headDim);
    }
  }
}

/* Writes the same q, rotated to where the rows stand as seen from a segment at `offset`, into scratch.rotated. */
void rotate_queries(const Task &task, const Tile &tile, int first, int offset) {
  const PoolView &pool = task.pool;
  for (int r = 0; r < tile.rowCount; r++) {
    const float *row = rope_row(pool, task.call.layer, task.step.positions[tile.firstRow + r] - offset);
    for (int g = 0; g < pool.group; g++) {
      const int i = (first + r * pool.group + g) * pool.headDim;
      rotate_head(pool, task.scratch.bare + i, row, task.scratch.rotated + i);
    }
  }
}

/*
 * Loads q at the item's first section; rotates it there and wherever a member's offset changes. Returns the row count.
 */
int ready_queries(const Task &task, int c) {
  int rows = 0;
  for (int m = 0; m < task.item.memberCount; m++) {
    const Tile &tile = task.tile(m);
    const int first = rows * task.pool.group;
    if (c == 0) load_queries(task, tile, first);
    const int offset = task.section(m, c).offset;
    if (c == 0 || offset != task.section(m, c - 1).offset) {
      rotate_queries(task, tile, first, offset);
      pack_queries(task.pool, task.scratch, first, tile.rowCount * task.pool.group);
    }
    rows += tile.rowCount;
  }
  return rows;
}

#if defined(__AMX_TILE__)

template <class T>
void run_section_of(const Task &task, const Section &section, const Section *next, const Window &window) {
  const PoolView &pool = task.pool;
  const int layer = task.call.layer, end = query_end(window, query_count(window) - 1);
  const NextBlocks blocks(pool, task.step, next, layer, task.kvHead);
  if (pool.blockTokens < kPanelTokens) {
    Panels<float> panels = {};
    stage<T>(pool, task.step, section, layer, task.kvHead, end, task.scratch, panels);
    return SectionWork<float>(pool, window, panels, task.scratch, blocks).attend();
  }
  Panels<T> panels;
  point_at_pool(pool, task.step, section, layer, task.kvHead, panels_of(end), panels);
  SectionWork<T>(pool, window, panels, task.scratch, blocks).attend();
}

#else

/* Reads K and V where they lie in the pool. */
template <class T>
void run_in_pool(const Task &task, const Section &section, const Section *next, const Window &window) {
  Panels<T> panels;
  const int endPanel = end_panel(window), layer = task.call.layer;
  constexpr bool kIsNarrow = sizeof(T) < sizeof(float);
  point_at_pool(task.pool, task.step, section, layer, task.kvHead, endPanel, panels);
  if (query_count(window) <= kMicroQueries) {
    look_ahead(task.pool, task.step, next, layer, task.kvHead, window.firstPanel, endPanel, panels);
    return attend_section<Reading<sizeof(T), false, false>>(task.pool, window, panels, task.scratch);
  }
  look_to_next<T>(task.pool, task.step, next, layer, task.kvHead, window.firstPanel, endPanel, panels);
  attend_section<Reading<sizeof(T), true, kIsNarrow>>(task.pool, window, panels, task.scratch);
}

/* Reads a float32 copy of K and V. */
template <class T>
void run_staged(const Task &task, const Section &section, const Window &window) {
  Panels<float> panels;
  const int end = query_end(window, query_count(window) - 1);
  const int staged = task.pool.blockTokens < kPanelTokens ? end : panels_of(end) * kPanelTokens;
  stage<T>(task.pool, task.step, section, task.call.layer, task.kvHead, staged, task.scratch, panels);
  attend_section<Reading<0, false, false>>(task.pool, window, panels, task.scratch);
}

template <class T>
void run_section_of(const Task &task, const Section &section, const Section *next, const Window &window) {
  const bool tiny = task.pool.blockTokens < kPanelTokens, shared = query_count(window) > kMicroQueries;
  if (sizeof(T) == sizeof(float)) {
    tiny ? run_staged<T>(task, section, window) : run_in_pool<T>(task, section, next, window);
  } else {
    /* The first queries cannot copy for all if later ones see more, or if vectors reach into the next token. */
    const bool reaches = task.pool.headDim != spg::padded_dim(task.pool);
    const bool copies = tiny || (shared && (window.causal || reaches));
    copies ? run_staged<T>(task, section, window) : run_in_pool<T>(task, section, next, window);
  }
}

#endif

void run_section(const Task &task, const Section &section, const Section *next, const Window &window) {
  switch (task.pool.elementBytes) {
    case 4: return run_section_of<float>(task, section, next, window);
    case 2: return run_section_of<Half>(task, section, next, window);
    default: return run_section_of<Mx8>(task, section, next, window);
  }
}

/* The running result before any token: of a head with a sink that of the sink, which has no value. */
void begin(const Task &task, const Tile &tile) {
  const PoolView &pool = task.pool;
  const int queries = tile.rowCount * pool.group;
  clear(task.scratch.running, queries, spg::padded_dim(pool));
  if (!pool.sinks) return;
  for (int i = 0; i < queries; i++) {
    const float sink = spg::sink_of(pool, task.call.layer, task.kvHead * pool.group + i % pool.group);
    task.scratch.running.maximum[i] = sink * 1.44269504088896340736f;
    task.scratch.running.sum[i] = 1;
  }
}

/* Merges a section's result into the running one, for each query that saw a token of it. */
void merge_section(const Task &task, const Window &window, const Softmax &section) {
  const int padded = spg::padded_dim(task.pool);
  for (int i = 0; i < query_count(window); i++) {
    if (query_end(window, i) <= query_first(window, i)) continue;
    merge(query_at(task.scratch.running, i, padded), query_at(section, i, padded), padded);
  }
}

void write_out(const Task &task, const Tile &tile) {
  const PoolView &pool = task.pool;
  const int padded = spg::padded_dim(pool), group = pool.group;
  for (int i = 0; i < tile.rowCount * group; i++) {
    const Softmax result = query_at(task.scratch.running, i, padded);
    const size_t head = static_cast<size_t>(tile.firstRow + i / group) * pool.queryHeads + task.kvHead * group +
                        i % group;
    scale_head(result.values, nullptr, pool.headDim, 0, 1.0f / *result.sum, task.call.out + head * pool.headDim);
  }
}

/* Where the result of section `c` of a tile is kept until the tile's other items are done. */
Softmax partial_at(const Task &task, const Tile &tile, const spg::SharedState &shared, int c) {
  const int queries = tile.rowCount * task.pool.group;
  const size_t index = static_cast<size_t>(task.kvHead) * tile.sectionCount + c;
  float *start = shared.partials + tile.partialStart + index * spg::partial_floats(task.pool, queries);
  const size_t values = static_cast<size_t>(queries) * spg::padded_dim(task.pool);
  return {start + values, start + values + queries, start};
}

/* Copies each member's part of scratch.section, section `c` of the item, to where the tile's last item finds it. */
void keep_partials(const Task &task, const spg::SharedState &shared, int c) {
  const int padded = spg::padded_dim(task.pool);
  int first = 0;
  for (int m = 0; m < task.item.memberCount; m++) {
    const size_t queries = task.tile(m).rowCount * task.pool.group;
    const Softmax from = query_at(task.scratch.section, first, padded);
    const Softmax to = partial_at(task, task.tile(m), shared, task.member(m).firstSection + c);
    memcpy(to.maximum, from.maximum, queries * sizeof(float));
    memcpy(to.sum, from.sum, queries * sizeof(float));
    memcpy(to.values, from.values, queries * padded * sizeof(float));
    first += static_cast<int>(queries);
  }
}

/* Called by whoever finishes a tile's last item: merges all its sections, in their order. */
void finish_tile(const Task &task, const Tile &tile, const spg::SharedState &shared) {
  int32_t *pending = shared.pending + tile.counter + task.kvHead;
  if (__atomic_sub_fetch(pending, 1, __ATOMIC_ACQ_REL) != 0) return;
  __atomic_store_n(pending, tile.itemCount, __ATOMIC_RELAXED); /* reset for the next layer */
  begin(task, tile);
  for (int c = 0; c < tile.sectionCount; c++) {
    const Section &section = task.step.sections[tile.firstSection + c];
    const Window window = window_of(task.pool, task.step, section, tile, tile.rowCount);
    merge_section(task, window, partial_at(task, tile, shared, c));
  }
  write_out(task, tile);
}

void attend_task(const PoolView &pool, const StepView &step, const LayerCall &call, const spg::SharedState &shared,
                 int index, float *memory) {
  const Item &item = step.items[index / pool.kvHeads];
  const Task task{pool, step, call, item, index % pool.kvHeads, lay_out(pool, memory)};
  const Tile &tile = task.tile(0);
  const bool whole = item.memberCount == 1 && tile.itemCount == 1; /* then no other result has to be merged */
  if (whole) begin(task, tile);
  for (int c = 0; c < item.sectionCount; c++) {
    const int rows = ready_queries(task, c);
    const Section &section = task.section(0, c);
    const Window window = window_of(pool, step, section, tile, rows);
    run_section(task, section, c + 1 < item.sectionCount ? &section + 1 : nullptr, window);
    whole ? merge_section(task, window, task.scratch.section) : keep_partials(task, shared, c);
  }
  if (whole) return write_out(task, tile);
  for (int m = 0; m < item.memberCount; m++) finish_tile(task, task.tile(m), shared);
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

}

namespace spg {

const KernelTable *SPG_KERNEL_TABLE() {
  static const KernelTable table = {kCosts,      scratch_floats, write_rows, attend_task,
                                    copy_tokens, deviate_rows,   embed_row};
  return &table;
}

}
