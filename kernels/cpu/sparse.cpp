/* Shadows of the pool's K, and the seats beside it. */
#include "sparse.h"

#include <string.h>

#include <new>

#include "pool.h"

namespace spg {
namespace {

/* Shadows of a block's last panel are read in whole vectors, up to this many bytes past their end. */
constexpr size_t kTailBytes = 64;
/* Tokens whose shadows cost less than waking a thread. */
constexpr int kSerialTokens = 256;

template <class T>
T *map_array(size_t count, size_t &bytes) {
  bytes = count * sizeof(T);
  if (bytes == 0) return nullptr;
  void *data = map_zero_pages(bytes, false);
  if (!data) throw std::bad_alloc();
  return static_cast<T *>(data);
}

/* Tokens [first, end) of a panel, in one layer and head. */
void shadow_panel(const spg_pool &pool, int layer, int block, int kvHead, int panel, int first, int end) {
  const SparseState &sparse = *pool.sparse;
  alignas(64) float keys[kMaxHeadDim * kPanelTokens];
  const unsigned char *head = head_data(pool.view, layer, block, kvHead);
  sparse.table->loadPanel(pool.view, head, panel * kPanelTokens, keys);
  unsigned char *shadows = shadow_head(sparse.shadows, layer, block, kvHead) + panel * sparse.shadows.panelBytes;
  sparse.table->writeShadows(pool.view.headDim, keys, first, end, shadows);
}

/* Tokens in slots, of which those of a panel that follow each other are written at once. */
struct SlotJob {
  const spg_pool *pool;
  const int32_t *slots;
  int count, firstLayer;
};

/* task = (layer - firstLayer) * kvHeads + kvHead */
void shadow_task(void *argument, int task, int) {
  const SlotJob &job = *static_cast<const SlotJob *>(argument);
  const PoolView &view = job.pool->view;
  const int layer = job.firstLayer + task / view.kvHeads, kvHead = task % view.kvHeads;
  for (int i = 0; i < job.count;) {
    const int slot = job.slots[i], first = slot % kPanelTokens;
    int tokens = 1;
    while (i + tokens < job.count && first + tokens < kPanelTokens && job.slots[i + tokens] == slot + tokens) tokens++;
    const int inBlock = slot % view.blockTokens;
    shadow_panel(*job.pool, layer, slot / view.blockTokens, kvHead, inBlock / kPanelTokens, first, first + tokens);
    i += tokens;
  }
}

void run_shadows(spg_pool &pool, SlotJob job, int layers) {
  const int tasks = layers * pool.view.kvHeads;
  if (static_cast<int64_t>(job.count) * tasks < kSerialTokens) {
    for (int task = 0; task < tasks; task++) shadow_task(&job, task, 0);
  } else {
    pool.context->threads->run(tasks, shadow_task, &job);
  }
}

}

SparseState::~SparseState() {
  unmap_pages(shadows.data, shadowBytes);
  unmap_pages(lists, listBytes);
  unmap_pages(refs, refBytes);
  unmap_pages(ring, ringBytes);
}

int32_t open_sparse(spg_pool &pool, int32_t seats, int32_t listTokens, int32_t rings) {
  const PoolView &view = pool.view;
  const bool inRange = seats >= 1 && seats <= 4096 && listTokens >= 1 && listTokens <= 1 << 20 && (rings == 0 || rings == 1);
  /* Windows, caps and sinks change what a score is worth, which is not worked out here. */
  const bool fits = view.blockTokens >= kPanelTokens && view.window == 0 && view.scoreCap == 0 && !view.sinks;
  if (!inRange || !fits) return SPG_E_SPARSE;
  if (pool.sparse) return SPG_E_SPARSE;
  auto sparse = std::make_unique<SparseState>();
  sparse->table = pool.context->choose;
  ShadowView &shadows = sparse->shadows;
  shadows.panelBytes = shadow_code_bytes(view.headDim) + kPanelTokens * sizeof(uint16_t);
  shadows.blockBytes = shadows.panelBytes * (view.blockTokens / kPanelTokens);
  shadows.headBytes = shadows.blockBytes * view.blocks;
  shadows.layerBytes = shadows.headBytes * view.kvHeads;
  size_t bytes = shadows.layerBytes * view.layers + kTailBytes;
  shadows.data = static_cast<unsigned char *>(map_zero_pages(bytes, true));
  if (!shadows.data) return SPG_E_MEMORY;
  sparse->shadowBytes = bytes;
  sparse->seats = seats, sparse->listTokens = listTokens, sparse->rings = rings;
  const size_t seatLayers = static_cast<size_t>(seats) * view.layers;
  const size_t queryFloats = static_cast<size_t>(view.queryHeads) * view.headDim;
  sparse->lists = map_array<int32_t>(seatLayers * view.kvHeads * listTokens, sparse->listBytes);
  sparse->refs = map_array<float>(rings ? seatLayers * queryFloats : 0, sparse->refBytes);
  sparse->ring = map_array<float>(rings ? seatLayers * queryFloats * kRingQueries : 0, sparse->ringBytes);
  sparse->seatLayers.resize(seatLayers);
  sparse->blockStamps.resize(view.blocks);
  sparse->scratch.resize(pool.context->threads->size());
  make_rope_tables(pool);
  pool.sparse = std::move(sparse);
  return SPG_OK;
}

void shadow_rows(spg_pool &pool, int layer) {
  if (!pool.sparse) return;
  run_shadows(pool, {&pool, pool.step.view.slots, pool.step.view.rows, layer}, 1);
}

void shadow_slots(spg_pool &pool, const int32_t *slots, int count) {
  if (!pool.sparse) return;
  run_shadows(pool, {&pool, slots, count, 0}, pool.view.layers);
}

void shadow_block(const spg_pool &pool, int block) {
  if (!pool.sparse) return;
  const PoolView &view = pool.view;
  for (int layer = 0; layer < view.layers; layer++) {
    for (int kvHead = 0; kvHead < view.kvHeads; kvHead++) {
      for (int panel = 0; panel < view.blockTokens / kPanelTokens; panel++) {
        shadow_panel(pool, layer, block, kvHead, panel, 0, kPanelTokens);
      }
    }
  }
}

}
