/*
 * AES-256-GCM by AES-NI and PCLMULQDQ, or by their forms for registers of 512 bits. A tag is compared before anything is
 * decrypted. GHASH is computed as POLYVAL over blocks with their bytes reversed (RFC 8452, appendix A), whose product
 * needs no reflection of bits; kVectors registers are multiplied, added and reduced at once.
 */
#include "gcm.h"

#include <immintrin.h>
#include <string.h>

namespace spg {
namespace {

#if defined(__VAES__) && defined(__VPCLMULQDQ__) && defined(__AVX512F__)
using Vector = __m512i;
constexpr int kLanes = 4, kVectors = 4;

inline Vector load(const void *at) { return _mm512_loadu_si512(at); }
inline void store(void *at, Vector value) { _mm512_storeu_si512(at, value); }
inline Vector spread(__m128i block) { return _mm512_broadcast_i32x4(block); }
inline Vector add(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
inline Vector shuffle(Vector a, __m128i order) { return _mm512_shuffle_epi8(a, spread(order)); }
inline Vector count_up(Vector counters, int by) { return _mm512_add_epi32(counters, spread(_mm_set_epi32(by, 0, 0, 0))); }
inline Vector first_counters(__m128i counter) {
  const Vector lanes = _mm512_set_epi32(3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_add_epi32(spread(counter), lanes);
}
inline Vector round(Vector a, Vector key) { return _mm512_aesenc_epi128(a, key); }
inline Vector last_round(Vector a, Vector key) { return _mm512_aesenclast_epi128(a, key); }
template <int kHalves>
inline Vector multiply(Vector a, Vector b) { return _mm512_clmulepi64_epi128(a, b, kHalves); }
inline Vector in_first_lane(__m128i block) { return _mm512_zextsi128_si512(block); }
inline __m128i sum_of_lanes(Vector a) {
  const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  return _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
#else
using Vector = __m128i;
constexpr int kLanes = 1, kVectors = 8;

inline Vector load(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }
inline void store(void *at, Vector value) { _mm_storeu_si128(static_cast<__m128i *>(at), value); }
inline Vector spread(__m128i block) { return block; }
inline Vector add(Vector a, Vector b) { return _mm_xor_si128(a, b); }
inline Vector shuffle(Vector a, __m128i order) { return _mm_shuffle_epi8(a, order); }
inline Vector count_up(Vector counters, int by) { return _mm_add_epi32(counters, _mm_set_epi32(by, 0, 0, 0)); }
inline Vector first_counters(__m128i counter) { return counter; }
inline Vector round(Vector a, Vector key) { return _mm_aesenc_si128(a, key); }
inline Vector last_round(Vector a, Vector key) { return _mm_aesenclast_si128(a, key); }
template <int kHalves>
inline Vector multiply(Vector a, Vector b) { return _mm_clmulepi64_si128(a, b, kHalves); }
inline Vector in_first_lane(__m128i block) { return block; }
inline __m128i sum_of_lanes(Vector a) { return a; }
#endif

constexpr int kGroupBlocks = kLanes * kVectors;
/* Registers of counters that are encrypted side by side. */
constexpr int kStreams = 8;
static_assert(kGroupBlocks <= kHashPowers, "there are powers for all blocks of a group");

inline __m128i load_block(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }
inline __m128i reversed_order() { return _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

/* One round key of AES-256 from the one two before it; `word` is what the schedule makes of the last one. */
inline __m128i next_key(__m128i before, __m128i word) {
  before = _mm_xor_si128(before, _mm_slli_si128(before, 4));
  before = _mm_xor_si128(before, _mm_slli_si128(before, 8));
  return _mm_xor_si128(before, word);
}

template <int kRoundConstant>
inline void next_keys(__m128i *keys) {
  keys[2] = next_key(keys[0], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[1], kRoundConstant), 0xff));
  keys[3] = next_key(keys[1], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[2], 0), 0xaa));
}

inline void expand_key(const unsigned char *key, __m128i *keys) {
  keys[0] = load_block(key);
  keys[1] = load_block(key + kAesBlock);
  next_keys<0x01>(keys);
  next_keys<0x02>(keys + 2);
  next_keys<0x04>(keys + 4);
  next_keys<0x08>(keys + 6);
  next_keys<0x10>(keys + 8);
  next_keys<0x20>(keys + 10);
  /* The last key is half of a pair. */
  keys[14] = next_key(keys[12], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[13], 0x40), 0xff));
}

inline __m128i encrypt(const GcmKey &key, __m128i block) {
  block = _mm_xor_si128(block, load_block(key.rounds[0]));
  for (int i = 1; i < kAesRounds; i++) block = _mm_aesenc_si128(block, load_block(key.rounds[i]));
  return _mm_aesenclast_si128(block, load_block(key.rounds[kAesRounds]));
}

/* The product low + mid * x^64 + high * x^128, reduced as POLYVAL has it. */
inline __m128i reduce(__m128i low, __m128i mid, __m128i high) {
  const __m128i polynomial = _mm_set_epi32(static_cast<int>(0xc2000000u), 0, 0, 1);
  low = _mm_xor_si128(low, _mm_slli_si128(mid, 8));
  high = _mm_xor_si128(high, _mm_srli_si128(mid, 8));
  for (int i = 0; i < 2; i++) {
    low = _mm_xor_si128(_mm_shuffle_epi32(low, 0x4e), _mm_clmulepi64_si128(polynomial, low, 0x01));
  }
  return _mm_xor_si128(high, low);
}

inline __m128i product(__m128i a, __m128i b) {
  const __m128i mid = _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01), _mm_clmulepi64_si128(a, b, 0x10));
  return reduce(_mm_clmulepi64_si128(a, b, 0x00), mid, _mm_clmulepi64_si128(a, b, 0x11));
}

/* A block times x, in POLYVAL's field. */
inline __m128i times_x(__m128i block) {
  const __m128i carries = _mm_srli_epi64(block, 63);
  const __m128i shifted = _mm_or_si128(_mm_slli_epi64(block, 1), _mm_slli_si128(carries, 8));
  const __m128i overflow = _mm_sub_epi64(_mm_setzero_si128(), _mm_srli_si128(carries, 8));
  const __m128i mask = _mm_unpacklo_epi64(overflow, overflow);
  const __m128i polynomial = _mm_set_epi32(static_cast<int>(0xc2000000u), 0, 0, 1);
  return _mm_xor_si128(shifted, _mm_and_si128(mask, polynomial));
}

void prepare(const unsigned char *bytes, GcmKey &key) {
  __m128i rounds[kAesRounds + 1];
  expand_key(bytes, rounds);
  memcpy(key.rounds, rounds, sizeof rounds);
  const __m128i hashKey = times_x(_mm_shuffle_epi8(encrypt(key, _mm_setzero_si128()), reversed_order()));
  __m128i power = hashKey;
  for (int i = kHashPowers - 1; i >= 0; i--) {
    memcpy(key.powers[i], &power, kAesBlock);
    power = product(power, hashKey);
  }
}

/* `state` after `blocks` more blocks. */
__m128i hash(const GcmKey &key, __m128i state, const unsigned char *data, size_t blocks) {
  const __m128i order = reversed_order();
  const unsigned char *powers = key.powers[kHashPowers - kGroupBlocks];
  for (; blocks >= kGroupBlocks; blocks -= kGroupBlocks, data += kGroupBlocks * kAesBlock) {
    Vector low = spread(_mm_setzero_si128()), mid = low, high = low;
    for (int i = 0; i < kVectors; i++) {
      Vector x = shuffle(load(data + i * sizeof(Vector)), order);
      if (i == 0) x = add(x, in_first_lane(state));
      const Vector power = load(powers + i * sizeof(Vector));
      low = add(low, multiply<0x00>(x, power));
      mid = add(mid, add(multiply<0x01>(x, power), multiply<0x10>(x, power)));
      high = add(high, multiply<0x11>(x, power));
    }
    state = reduce(sum_of_lanes(low), sum_of_lanes(mid), sum_of_lanes(high));
  }
  const __m128i hashKey = load_block(key.powers[kHashPowers - 1]);
  for (; blocks > 0; blocks--, data += kAesBlock) {
    state = product(_mm_xor_si128(state, _mm_shuffle_epi8(load_block(data), order)), hashKey);
  }
  return state;
}

/* Counter blocks are kept with the bytes of the counter, their last word, reversed. */
inline __m128i counter_order() { return _mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }

/* The nonce is the segment's number and 8 zeros; data begins at counter 2. */
inline __m128i counter_of(const SealedSegment &segment, uint32_t counter) {
  return _mm_set_epi32(static_cast<int>(counter), 0, 0, static_cast<int>(segment.number));
}

void decrypt(const GcmKey &key, __m128i counter, const unsigned char *in, unsigned char *out, size_t blocks) {
  constexpr size_t kStreamBlocks = static_cast<size_t>(kStreams) * kLanes;
  const __m128i order = counter_order();
  Vector counters = first_counters(counter);
  size_t done = 0;
  for (; done + kStreamBlocks <= blocks; done += kStreamBlocks) {
    Vector state[kStreams];
    const Vector first = spread(load_block(key.rounds[0]));
    for (int i = 0; i < kStreams; i++) {
      state[i] = add(shuffle(counters, order), first);
      counters = count_up(counters, kLanes);
    }
    for (int r = 1; r < kAesRounds; r++) {
      const Vector roundKey = spread(load_block(key.rounds[r]));
      for (int i = 0; i < kStreams; i++) state[i] = round(state[i], roundKey);
    }
    const Vector last = spread(load_block(key.rounds[kAesRounds]));
    for (int i = 0; i < kStreams; i++) {
      const size_t at = done * kAesBlock + i * sizeof(Vector);
      store(out + at, add(last_round(state[i], last), load(in + at)));
    }
  }
  for (; done < blocks; done++) {
    const __m128i own = _mm_add_epi32(counter, _mm_set_epi32(static_cast<int>(done), 0, 0, 0));
    const __m128i pad = encrypt(key, _mm_shuffle_epi8(own, order));
    const __m128i plain = _mm_xor_si128(pad, load_block(in + done * kAesBlock));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(out + done * kAesBlock), plain);
  }
}

/* A last block that is not full is hashed with zeros behind it. */
__m128i hash_header(const GcmKey &key, const SealedSegment &segment) {
  const size_t whole = segment.headerBytes / kAesBlock, rest = segment.headerBytes % kAesBlock;
  const __m128i state = hash(key, _mm_setzero_si128(), segment.header, whole);
  if (rest == 0) return state;
  unsigned char last[kAesBlock] = {0};
  memcpy(last, segment.header + whole * kAesBlock, rest);
  return hash(key, state, last, 1);
}

bool has_right_tag(const GcmKey &key, const SealedSegment &segment, size_t bytes) {
  const __m128i state = hash(key, hash_header(key, segment), segment.sealed, bytes / kAesBlock);
  const __m128i lengths = _mm_set_epi64x(static_cast<long long>(segment.headerBytes) * 8, static_cast<long long>(bytes) * 8);
  const __m128i hashed = product(_mm_xor_si128(state, lengths), load_block(key.powers[kHashPowers - 1]));
  const __m128i pad = encrypt(key, _mm_shuffle_epi8(counter_of(segment, 1), counter_order()));
  const __m128i tag = _mm_xor_si128(_mm_shuffle_epi8(hashed, reversed_order()), pad);
  const __m128i wrong = _mm_xor_si128(tag, load_block(segment.sealed + bytes));
  unsigned char rest = 0;
  for (size_t at = bytes + kTagBytes; at < segment.span; at++) rest |= segment.sealed[at];
  return _mm_testz_si128(wrong, wrong) != 0 && rest == 0;
}

bool open(const GcmKey &key, const SealedSegment &segment, unsigned char *out, size_t stride) {
  if (!has_right_tag(key, segment, segment.partBytes * segment.partCount)) return false;
  const size_t partBlocks = segment.partBytes / kAesBlock;
  for (int part = 0; part < segment.partCount; part++) {
    const __m128i counter = counter_of(segment, static_cast<uint32_t>(2 + part * partBlocks));
    decrypt(key, counter, segment.sealed + part * segment.partBytes, out + part * stride, partBlocks);
  }
  return true;
}

constexpr GcmTable table = {prepare, open};

}

const GcmTable *SPG_GCM_TABLE() {
  return &table;
}

}
