/*
 * AES-256-GCM (NIST SP 800-38D) of the segments of a KV file, as worker/tiers/object-file.ts describes them. Like
 * internal.h it is plain data, since gcm.cpp is compiled once for each set of instructions.
 */
#ifndef SPANGATE_KERNELS_GCM_H
#define SPANGATE_KERNELS_GCM_H

#include <stddef.h>
#include <stdint.h>

namespace spg {

constexpr int kAesRounds = 14, kAesBlock = 16, kTagBytes = 16;
/* Blocks that are multiplied by powers of the hash key before one reduction. */
constexpr int kHashPowers = 16;

/* A key as the instructions want it. powers[i]: the hash key to the power kHashPowers - i. */
struct GcmKey {
  alignas(64) unsigned char rounds[kAesRounds + 1][kAesBlock];
  alignas(64) unsigned char powers[kHashPowers][kAesBlock];
};

/* One segment: ciphertext of partCount * partBytes bytes and its tag, behind it zeros up to `span`. */
struct SealedSegment {
  const unsigned char *header; /* additional data */
  size_t headerBytes;
  const unsigned char *sealed;
  size_t span, partBytes;
  int partCount;
  uint32_t number;
};

struct GcmTable {
  void (*prepare)(const unsigned char *key, GcmKey &out);
  /* Writes the parts, `stride` bytes apart, when the tag is right; otherwise returns false and writes nothing. */
  bool (*open)(const GcmKey &key, const SealedSegment &segment, unsigned char *out, size_t stride);
};

const GcmTable *vaes_gcm();
const GcmTable *aesni_gcm();

}

#endif
