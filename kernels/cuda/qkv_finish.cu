/*
 * Finishes the fused projection to q, k and v: adds the bias, applies RMSNorm to each q and k head, rotates k by RoPE
 * to the row's chain position, and stores K and V in the paged pool. q stays where it is, normalised but not rotated:
 * attention rotates it once for each segment that it reads.
 *
 *   qkv [rows][(queryHeads + 2 * kvHeads) * headDim] bf16, a row holding q, k and v side by side; q is changed in place
 *   bias [(queryHeads + 2 * kvHeads) * headDim] bf16 or null; qNorm, kNorm [headDim] bf16 or null, to whose numbers
 *   normOffset is added: 1 where a model stores a norm's weights less one, else 0
 *   rotations: (cos, sin) rows of rotaryDim / 2 from rope_table.cu, at position 0; layers without RoPE pass rotaryDim 0
 *   positions, slots [rows]; pool: this layer's part of the KV pool (heads.cuh; in mx8 as mx8.cuh has it, where K and V
 *   are rounded from float32 before anything attends to them)
 *
 * Grid: (rows, ceil(heads / 8)) of 256 threads, a warp a head; heads = queryHeads + 2 * kvHeads.
 * Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "heads.cuh"
#include "mx8.cuh"

/* Stores a head of K or V. The whole warp must call it. */
__device__ __forceinline__ void store_kv(bf16 *pool, const HeadShape &shape, int slot, int kvHead, bool isValue,
                                         const LanePlace &place, const LaneValues &v) {
#if KV_MX8
  __shared__ float heads[8][128];
  float *head = heads[threadIdx.x >> 5];
  if (place.used[0]) {
    const int a = place.a[0], b = place.b[0];
    head[a] = v.x[0], head[a + 1] = v.x[1], head[b] = v.x[2], head[b + 1] = v.x[3];
  }
  __syncwarp();
  const int block = slot / shape.blockTokens, token = slot % shape.blockTokens;
  const size_t part = mx8_part_at(block, token, kvHead, shape.kvHeads, shape.blockTokens);
  unsigned char *to = reinterpret_cast<unsigned char *>(pool) + part * mx8_part_bytes(shape.headDim);
  store_mx8(to, token % kMx8PartTokens, head, shape.headDim, isValue);
#else
  const size_t at = isValue ? value_offset(shape, slot, kvHead) : key_offset(shape, slot, kvHead);
  store_head(pool + at, place, v);
#endif
}

extern "C" __global__ void __launch_bounds__(256)
qkv_finish(bf16 *qkv, const bf16 *__restrict__ bias, const bf16 *__restrict__ qNorm, const bf16 *__restrict__ kNorm,
           float normOffset, float epsilon, const float2 *__restrict__ rotations, const int *__restrict__ positions,
           const int *__restrict__ slots, const int *rowCount, int queryHeads, int kvHeads, int headDim, int rotaryDim,
           int blockTokens, bf16 *pool) {
  let_next_begin();
  const int row = blockIdx.x, head = blockIdx.y * 8 + (threadIdx.x >> 5), heads = queryHeads + 2 * kvHeads;
  const bool isQuery = head < queryHeads, isKey = !isQuery && head < queryHeads + kvHeads;
  const bool isIdle = row >= *rowCount || head >= heads || (isQuery && !bias && !qNorm);
  const HeadShape shape = {headDim, rotaryDim, kvHeads, blockTokens};
  const LanePlace place = lane_place(shape);
  const bf16 *norm = isQuery ? qNorm : isKey ? kNorm : nullptr;
  const LaneValues weights = norm ? load_head(norm, place) : LaneValues{};
  const int slot = isIdle ? 0 : slots[row];
  LaneRotations rotation = {};
  if (isKey && !isIdle) rotation = load_rotations(rotations + (long long)(positions[row]) * (rotaryDim / 2), place);
  wait_for_previous();
  if (isIdle) return;
  bf16 *data = qkv + (size_t(row) * heads + head) * headDim;
  LaneValues v = projected_head(data, bias ? bias + head * headDim : nullptr, place);
  if (norm) normalise_head(v, weights, normOffset, headDim, epsilon);
  if (isQuery) return store_head(data, place, v);
  if (isKey) rotate_head(v, rotation, place);
  store_kv(pool, shape, slot, (head - queryHeads) % kvHeads, !isKey, place, v);
}
