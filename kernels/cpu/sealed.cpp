/* Sealed blocks of a KV file, opened into a pool: the C entry points, and whose instructions open them. */
#include <new>

#include "gcm.h"
#include "pool.h"

namespace {

using namespace spg;

/* Null where the processor has no instructions for it, or the context may not use them. */
const GcmTable *gcm_of(const spg_context &context) {
#if defined(__x86_64__)
  if (!context.kernels || !__builtin_cpu_supports("aes") || !__builtin_cpu_supports("pclmul")) return nullptr;
  const bool wide = context.isa != SPG_ISA_AVX2 && __builtin_cpu_supports("vaes") && __builtin_cpu_supports("vpclmulqdq");
  return wide ? vaes_gcm() : aesni_gcm();
#else
  (void)context;
  return nullptr;
#endif
}

struct OpenJob {
  const spg_pool *pool;
  const GcmTable *gcm;
  GcmKey key;
  SealedSegment first;
  const int32_t *blockIds;
  uint8_t *opened;
};

void open_one(void *argument, int task, int) {
  const OpenJob &job = *static_cast<OpenJob *>(argument);
  const PoolView &view = job.pool->view;
  SealedSegment segment = job.first;
  segment.sealed += static_cast<size_t>(task) * segment.span;
  segment.number += static_cast<uint32_t>(task);
  unsigned char *out = head_data(view, 0, job.blockIds[task], 0);
  job.opened[task] = job.gcm->open(job.key, segment, out, view.layerBytes) ? 1 : 0;
  if (job.opened[task]) shadow_block(*job.pool, job.blockIds[task]);
}

}

extern "C" {

int32_t spg_pool_opens_blocks(const spg_pool *pool) {
  return pool && gcm_of(*pool->context) && pool->view.blockBytes % kAesBlock == 0 ? 1 : 0;
}

int32_t spg_pool_open_blocks(spg_pool *pool, const uint8_t *key, const uint8_t *header, int32_t header_bytes,
                             const uint8_t *sealed, int64_t span, int32_t first_segment, const int32_t *block_ids,
                             int32_t block_count, uint8_t *opened) {
  if (!pool || !key || !header || !sealed || !block_ids || !opened) return SPG_E_NULL;
  if (!spg_pool_opens_blocks(pool)) return SPG_E_ISA;
  const PoolView &view = pool->view;
  const size_t bytes = view.blockBytes * view.layers;
  if (header_bytes < 0 || block_count < 1 || first_segment < 0 || first_segment > INT32_MAX - block_count) {
    return SPG_E_ROWS;
  }
  /* A counter has 32 bits, and the first two are taken. */
  if (span < 0 || static_cast<size_t>(span) < bytes + kTagBytes || bytes / kAesBlock > UINT32_MAX - 2) {
    return SPG_E_SHAPE;
  }
  for (int i = 0; i < block_count; i++) {
    if (block_ids[i] < 0 || block_ids[i] >= view.blocks) return SPG_E_BLOCK_ID;
    for (int before = 0; before < i; before++) {
      if (block_ids[before] == block_ids[i]) return SPG_E_BLOCK_ID;
    }
  }
  const SealedSegment first{header, static_cast<size_t>(header_bytes), sealed, static_cast<size_t>(span),
                            view.blockBytes, view.layers, static_cast<uint32_t>(first_segment)};
  OpenJob job{pool, gcm_of(*pool->context), {}, first, block_ids, opened};
  job.gcm->prepare(key, job.key);
  pool->context->threads->run(block_count, open_one, &job);
  return SPG_OK;
}

}
