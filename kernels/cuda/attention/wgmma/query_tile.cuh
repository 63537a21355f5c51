/*
 * How a warp writes 16 packed rows of q, rotated for a slice (attention_plan.cuh, ROTATION), into shared memory for
 * products of warpgroups. Its instructions limit its speed, so where packed rows are rotated alike, a lane takes
 * several of them.
 */
#ifndef SPANGATE_QUERY_TILE_CUH
#define SPANGATE_QUERY_TILE_CUH

#include "unit_walk.cuh"
#include "wgmma.cuh"

struct TurnedRow {
  int row;    /* row of the step, or -1: none */
  int rotated; /* row of the table of rotations, or kNotRead: takes no part */
};

/*
 * A lane has sixteen dimensions (eight from `first` on, eight from `second` on) of kRows consecutive packed rows. Most
 * often these are heads of one row and thus rotated alike.
 */
class QueryTile {
 public:
  __device__ __forceinline__ explicit QueryTile(const PlanArguments &a) : a(a) {
    /* Pairs are (i, i + rotaryDim / 2); rotaryDim is a multiple of 16. */
    const int part = int(threadIdx.x & 31) % kLanes, rotating = a.rotaryDim / 16;
    rotates = part < rotating;
    first = rotates ? part * 8 : rotating * 16 + (part - rotating) * 16;
    second = first + (rotates ? a.rotaryDim / 2 : 8);
  }

  /* Are all packed rows of a lane heads of one row? Then four tiles have at most 32 rows. */
  __device__ __forceinline__ static bool is_alike(const PlanUnit &unit) { return unit.headCount % kRows == 0; }

  /*
   * @param rowAt gives the TurnedRow of row r of the tile, r below kTileRows; all lanes call it together
   * @param ready waits until the tile may be written
   * @param to the tile's first packed row; halves are kHalfBytes apart. Rows that take no part are left unchanged.
   * kCount is 1, or kRows where the packed rows of a lane are not all alike
   */
  template <int kCount, int kHalfBytes, class RowAt, class Ready>
  __device__ __forceinline__ void write(const PlanUnit &unit, uint32 to, const RowAt &rowAt, const Ready &ready) const {
    constexpr int kHeads = kRows / kCount;
    const int inverse = (65536 + unit.headCount - 1) / unit.headCount;
    const int firstRow = int(threadIdx.x & 31) / kLanes * kRows;
    const bf16 *from[kCount];
    int rotated[kCount];
#pragma unroll
    for (int j = 0; j < kCount; j++) {
      const int r = (firstRow + j) * inverse >> 16, head = unit.firstHead + firstRow + j - r * unit.headCount;
      const TurnedRow of = rowAt(r);
      rotated[j] = r < unit.rowsPerTile && of.row >= 0 ? of.rotated : kNotRead;
      const int place = rotated[j] == kNotRead ? 0 : of.row * (a.queryHeads + 2 * a.kvHeads) + head;
      from[j] = a.qkv + size_t(place) * kHeadDim;
    }
    /* The loads are unconditional, so that none waits for another. */
    uint4 x[kRows], y[kRows];
#pragma unroll
    for (int j = 0; j < kRows; j++) {
      const bf16 *head = from[j / kHeads] + j % kHeads * kHeadDim;
      x[j] = *reinterpret_cast<const uint4 *>(head + first);
      y[j] = *reinterpret_cast<const uint4 *>(head + second);
    }
    float4 rotation[4] = {}; /* (cos, sin) of two pairs each */
    if (rotates) load_rotation(rotation, rotated[0] == kNotRead ? 0 : rotated[0]);
    ready();
#pragma unroll
    for (int j = 0; j < kRows; j++) {
      const int of = rotated[j / kHeads];
      if (of == kNotRead) continue;
      if (rotates) {
        if (kHeads == 1 && j > 0 && of != rotated[j - 1]) load_rotation(rotation, of);
        rotate_pairs(x[j].x, y[j].x, rotation[0]);
        rotate_pairs(x[j].y, y[j].y, rotation[1]);
        rotate_pairs(x[j].z, y[j].z, rotation[2]);
        rotate_pairs(x[j].w, y[j].w, rotation[3]);
      }
      store_shared4(to + tile_byte(firstRow + j, first, kHalfBytes), x[j]);
      store_shared4(to + tile_byte(firstRow + j, second, kHalfBytes), y[j]);
    }
  }

  static constexpr int kLanes = kHeadDim / 16, kRows = kTileRows * kLanes / 32;

 private:
  const PlanArguments &a;
  int first, second;
  bool rotates;

  __device__ __forceinline__ void load_rotation(float4 (&rotation)[4], int rotated) const {
    const float2 *from = a.rotations + (long long)rotated * (a.rotaryDim / 2) + first;
#pragma unroll
    for (int i = 0; i < 4; i++) rotation[i] = *reinterpret_cast<const float4 *>(from + 2 * i);
  }
};

#endif
