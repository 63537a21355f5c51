/* Sealed blocks of a KV file, opened into a pool: the C entry points, and whose instructions open them. */
#if defined(__linux__)
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

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

/* Reads what the system has in memory; false when it would have to wait for the disk, or when the file ends before. */
bool read_at_hand(int file, unsigned char *into, size_t bytes, int64_t at) {
#if defined(RWF_NOWAIT) && defined(SYS_preadv2)
  while (bytes > 0) {
    const iovec part{into, bytes};
    /* Without the library's function, which old systems do not have. The place's upper half is for 32 bits. */
    const long count = syscall(SYS_preadv2, file, &part, 1, static_cast<long>(at), 0L, RWF_NOWAIT);
    if (count <= 0) return false;
    into += count;
    at += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
#else
  (void)file, (void)into, (void)bytes, (void)at;
  return false;
#endif
}

enum : uint8_t { kDamaged = 0, kOpened = 1, kNotAtHand = 2 };

struct OpenJob {
  const spg_pool *pool;
  const GcmTable *gcm;
  GcmKey key;
  /* In a file: `sealed` is null. */
  SealedSegment first;
  const int32_t *blockIds;
  uint8_t *opened;
  int file;
  int64_t at;
  /* For each thread room for a segment of the file. */
  unsigned char *segments;
  size_t stride;
};

void open_one(void *argument, int task, int thread) {
  const OpenJob &job = *static_cast<OpenJob *>(argument);
  const PoolView &view = job.pool->view;
  SealedSegment segment = job.first;
  const size_t from = static_cast<size_t>(task) * segment.span;
  segment.number += static_cast<uint32_t>(task);
  if (segment.sealed) {
    segment.sealed += from;
  } else {
    unsigned char *room = job.segments + static_cast<size_t>(thread) * job.stride;
    job.opened[task] = kNotAtHand;
    if (!read_at_hand(job.file, room, segment.span, job.at + static_cast<int64_t>(from))) return;
    segment.sealed = room;
  }
  unsigned char *out = head_data(view, 0, job.blockIds[task], 0);
  job.opened[task] = job.gcm->open(job.key, segment, out, view.layerBytes) ? kOpened : kDamaged;
  if (job.opened[task] == kOpened) shadow_block(*job.pool, job.blockIds[task]);
}

/* What both entry points are given. */
struct Sealed {
  const uint8_t *key, *header;
  int32_t headerBytes;
  int64_t span;
  int32_t firstSegment;
  const int32_t *blockIds;
  int32_t blockCount;
  uint8_t *opened;
};

int32_t check(const spg_pool *pool, const Sealed &given) {
  if (!pool || !given.key || !given.header || !given.blockIds || !given.opened) return SPG_E_NULL;
  if (!spg_pool_opens_blocks(pool)) return SPG_E_ISA;
  const PoolView &view = pool->view;
  const size_t bytes = view.blockBytes * view.layers;
  if (given.headerBytes < 0 || given.blockCount < 1 || given.firstSegment < 0 ||
      given.firstSegment > INT32_MAX - given.blockCount) {
    return SPG_E_ROWS;
  }
  /* A counter has 32 bits, and the first two are taken. */
  if (given.span < 0 || given.span > INT32_MAX || static_cast<size_t>(given.span) < bytes + kTagBytes ||
      bytes / kAesBlock > UINT32_MAX - 2) {
    return SPG_E_SHAPE;
  }
  for (int i = 0; i < given.blockCount; i++) {
    if (given.blockIds[i] < 0 || given.blockIds[i] >= view.blocks) return SPG_E_BLOCK_ID;
    for (int before = 0; before < i; before++) {
      if (given.blockIds[before] == given.blockIds[i]) return SPG_E_BLOCK_ID;
    }
  }
  return SPG_OK;
}

OpenJob job_of(const spg_pool &pool, const Sealed &given, const uint8_t *sealed) {
  const PoolView &view = pool.view;
  const SealedSegment first{given.header, static_cast<size_t>(given.headerBytes), sealed, static_cast<size_t>(given.span),
                            view.blockBytes, view.layers, static_cast<uint32_t>(given.firstSegment)};
  OpenJob job{&pool, gcm_of(*pool.context), {}, first, given.blockIds, given.opened, -1, 0, nullptr, 0};
  job.gcm->prepare(given.key, job.key);
  return job;
}

}

extern "C" {

int32_t spg_pool_opens_blocks(const spg_pool *pool) {
  return pool && gcm_of(*pool->context) && pool->view.blockBytes % kAesBlock == 0 ? 1 : 0;
}

int32_t spg_pool_open_blocks(spg_pool *pool, const uint8_t *key, const uint8_t *header, int32_t header_bytes,
                             const uint8_t *sealed, int64_t span, int32_t first_segment, const int32_t *block_ids,
                             int32_t block_count, uint8_t *opened) {
  const Sealed given{key, header, header_bytes, span, first_segment, block_ids, block_count, opened};
  if (!sealed) return SPG_E_NULL;
  const int32_t status = check(pool, given);
  if (status != SPG_OK) return status;
  OpenJob job = job_of(*pool, given, sealed);
  pool->context->threads->run(block_count, open_one, &job);
  return SPG_OK;
}

int32_t spg_pool_open_file_blocks(spg_pool *pool, const uint8_t *key, const uint8_t *header, int32_t header_bytes,
                                  int32_t file, int64_t at, int64_t span, int32_t first_segment, const int32_t *block_ids,
                                  int32_t block_count, uint8_t *opened) {
  const Sealed given{key, header, header_bytes, span, first_segment, block_ids, block_count, opened};
  const int32_t status = check(pool, given);
  if (status != SPG_OK) return status;
  /* No sum of places in the file overflows. */
  if (file < 0 || at < 0 || at > INT64_MAX / 2) return SPG_E_SEGMENT;
  OpenJob job = job_of(*pool, given, nullptr);
  FloatBuffer &segments = pool->context->segments;
  const size_t floats = (static_cast<size_t>(span) / sizeof(float) / 16 + 1) * 16;
  try {
    segments.reserve(floats * pool->context->threads->size());
  } catch (const std::bad_alloc &) {
    return SPG_E_MEMORY;
  }
  job.file = file;
  job.at = at;
  job.segments = reinterpret_cast<unsigned char *>(segments.data());
  job.stride = floats * sizeof(float);
  pool->context->threads->run(block_count, open_one, &job);
  return SPG_OK;
}

int32_t spg_file_at_hand(int32_t file, int64_t at, int64_t bytes) {
  if (file < 0 || at < 0 || bytes < 1 || at > INT64_MAX - bytes) return 0;
  unsigned char byte;
  return read_at_hand(file, &byte, 1, at) && read_at_hand(file, &byte, 1, at + bytes / 2) &&
                 read_at_hand(file, &byte, 1, at + bytes - 1)
             ? 1
             : 0;
}

}
