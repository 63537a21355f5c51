/*
 * Products of few rows with the weights of their experts: what a decode step does, where reading weights is all that
 * takes time. Weights are read once for each tile of at most 16 assignments (expert_tiles.cuh), by a block that has
 * 16 outputs.
 *
 *   weights [experts][outputs][in] in a form of expert_forms.cuh; bias [experts][outputs] bf16 or null; in a multiple
 *   of 8 and of a form's unit
 *   gated   input [rows][in] bf16: an assignment's row. Outputs are gates and ups: output o of ffn has its gate at row
 *           o * gateStep of the expert and its up at upOffset behind that. out [assignments][ffn] bf16, in the order
 *           of `order`: f(gate) * up, with the activation's number (activation.cuh). gate and up count the row's
 *           RMSNorm factor, where squares is not null (matvec.cu)
 *   down    input [assignments][in] bf16, in the order of `order`; out [assignments][outputs] bf16, assignment
 *           after assignment
 *
 * A warp multiplies 16 outputs with 8 rows at a time (mma.sync): lane 4 g + t loads 16 bytes of outputs g and g + 8
 * and as many inputs of row g. Which inputs a product's places hold is free as long as both sides agree, so what a
 * lane loads is its operand, and nothing is exchanged. The block's warps share the inputs, and their sums are added
 * up in the order of the warps: a row's result does not depend on the rows beside it.
 *
 * Grid: (ceil(ffn / 8) or ceil(outputs / 16), tiles) blocks of 128 threads. Bytes: a weight's, for each expert that
 * has rows. Oracle: test/backend/cuda/emulated-experts.ts.
 */
#ifndef SPANGATE_EXPERT_ROWS_CUH
#define SPANGATE_EXPERT_ROWS_CUH

#include "activation.cuh"
#include "expert_forms.cuh"
#include "expert_tiles.cuh"
#include "matvec.cuh"

constexpr int kRowTiles = 2, kTileRows = 8 * kRowTiles;

using Sums = float[kRowTiles][4];

/* Two outputs of a lane, times the tile's rows; a lane's row of each eight is null where there is none. */
template <class Form>
__device__ __forceinline__ void multiply_rows(const ExpertMatrix &m, const int (&outputs)[2],
                                              const bf16 *const (&rows)[kRowTiles], int count, Sums &sums) {
  constexpr int kUnits = Form::kUnits;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, units = m.in / Form::kWeights;
  const uint4 *weights[2];
#pragma unroll
  for (int o = 0; o < 2; o++) weights[o] = m.weights + size_t(outputs[o]) * units;
  for (int start = warp * 4 + (lane & 3); start - (lane & 3) < units; start += kWarps * 4 * kUnits) {
    uint4 w[kUnits][2];
    typename Form::Scale scales[kUnits][2];
#pragma unroll
    for (int u = 0; u < kUnits; u++) {
      const int unit = start + u * kWarps * 4;
#pragma unroll
      for (int o = 0; o < 2; o++) {
        w[u][o] = make_uint4(0, 0, 0, 0);
        /* Sums are scaled by all four lanes, of which the last may be past the end. */
        scales[u][o] = Form::scale(m, outputs[o], min(unit, units - 1));
        if (unit < units) w[u][o] = load_weights(weights[o] + unit);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnits; u++) {
      const int unit = start + u * kWarps * 4;
      if (unit - (lane & 3) >= units) break;
#pragma unroll
      for (int n = 0; n < kRowTiles; n++) {
        if (n * 8 >= count) break;
        uint4 x[Form::kWeights / 8];
        const bool exists = rows[n] && unit < units;
#pragma unroll
        for (int i = 0; i < Form::kWeights / 8; i++) {
          x[i] = make_uint4(0, 0, 0, 0);
          if (exists) x[i] = reinterpret_cast<const uint4 *>(rows[n])[unit * (Form::kWeights / 8) + i];
        }
        Form::multiply(w[u], scales[u], x, sums[n]);
      }
    }
  }
}

/* The sums of the block's warps: [output][row], added up in the order of the warps. */
struct BlockSums {
  float parts[kWarps][16][kTileRows + 1];

  __device__ __forceinline__ void put(const Sums &sums) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane / 4, t = lane & 3;
#pragma unroll
    for (int n = 0; n < kRowTiles; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) parts[warp][g + i / 2 * 8][n * 8 + 2 * t + i % 2] = sums[n][i];
    }
  }
  __device__ __forceinline__ float at(int output, int row) const {
    return (parts[0][output][row] + parts[1][output][row]) + (parts[2][output][row] + parts[3][output][row]);
  }
};

template <class Form>
__device__ __forceinline__ void gated_rows(const bf16 *input, const ExpertMatrix &m, const bf16 *bias,
                                           const ExpertTile *tiles, const int *order, int perToken, int ffn,
                                           int gateStep, int upOffset, int activation, const float *squares,
                                           int squareCount, float epsilon, bf16 *out) {
  __shared__ BlockSums shared;
  let_next_begin();
  wait_for_previous();
  const ExpertTile tile = tiles[blockIdx.y];
  if (tile.count == 0) return;
  const int g = (threadIdx.x & 31) / 4, firstRow = tile.expert * 2 * ffn, o = blockIdx.x * 8;
  const int gateRow = firstRow + min(o + g, ffn - 1) * gateStep;
  const bf16 *rows[kRowTiles];
#pragma unroll
  for (int n = 0; n < kRowTiles; n++) {
    const int i = n * 8 + g;
    rows[n] = i < tile.count ? input + size_t(order[tile.first + i] / perToken) * m.in : nullptr;
  }
  Sums sums = {};
  multiply_rows<Form>(m, {gateRow, gateRow + upOffset}, rows, tile.count, sums);
  const float factor = norm_factor(squares, squareCount, m.in, epsilon);
  shared.put(sums);
  __syncthreads();
  const int output = threadIdx.x % 8, row = threadIdx.x / 8, own = o + output;
  if (row >= tile.count || own >= ffn) return;
  float gate = shared.at(output, row) * factor, up = shared.at(output + 8, row) * factor;
  if (bias) {
    const bf16 *of = bias + firstRow + own * gateStep;
    gate += to_float(of[0]), up += to_float(of[upOffset]);
  }
  out[size_t(tile.first + row) * ffn + own] = pack_bf16(gated(gate, up, activation), 0.0f) & 0xffffu;
}

template <class Form>
__device__ __forceinline__ void down_rows(const bf16 *input, const ExpertMatrix &m, const bf16 *bias,
                                          const ExpertTile *tiles, const int *order, int outputs, bf16 *out) {
  __shared__ BlockSums shared;
  let_next_begin();
  wait_for_previous();
  const ExpertTile tile = tiles[blockIdx.y];
  if (tile.count == 0) return;
  const int g = (threadIdx.x & 31) / 4, firstRow = tile.expert * outputs, o = blockIdx.x * 16;
  const bf16 *rows[kRowTiles];
#pragma unroll
  for (int n = 0; n < kRowTiles; n++) {
    rows[n] = n * 8 + g < tile.count ? input + size_t(tile.first + n * 8 + g) * m.in : nullptr;
  }
  Sums sums = {};
  multiply_rows<Form>(m, {firstRow + min(o + g, outputs - 1), firstRow + min(o + g + 8, outputs - 1)}, rows,
                      tile.count, sums);
  shared.put(sums);
  __syncthreads();
  const int output = threadIdx.x % 16, own = o + output;
  if (own >= outputs) return;
  const float added = bias ? to_float(bias[firstRow + own]) : 0.0f;
  for (int row = threadIdx.x / 16; row < tile.count; row += blockDim.x / 16) {
    const float sum = shared.at(output, row) + added;
    out[size_t(order[tile.first + row]) * outputs + own] = pack_bf16(sum, 0.0f) & 0xffffu;
  }
}

/* The kernels of a form, which all have the same parameters. */
#define EXPERT_ROWS(NAME, Form)                                                                                     \
  extern "C" __global__ void __launch_bounds__(kWarps * 32, Form::kBlocks)                                          \
  experts_gated_##NAME(const bf16 *input, const uint4 *__restrict__ weights, const void *__restrict__ scales,       \
                       int scaleStride, int rowShift, int inShift, const bf16 *__restrict__ bias,                   \
                       const ExpertTile *tiles, const int *order, int perToken, int in, int ffn, int gateStep,      \
                       int upOffset, int activation, const float *squares, int squareCount, float epsilon,          \
                       bf16 *out) {                                                                                 \
    gated_rows<Form>(input, {weights, scales, scaleStride, rowShift, inShift, in}, bias, tiles, order, perToken,    \
                     ffn, gateStep, upOffset, activation, squares, squareCount, epsilon, out);                      \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(kWarps * 32, Form::kBlocks)                                          \
  experts_down_##NAME(const bf16 *input, const uint4 *__restrict__ weights, const void *__restrict__ scales,        \
                      int scaleStride, int rowShift, int inShift, const bf16 *__restrict__ bias,                    \
                      const ExpertTile *tiles, const int *order, int in, int outputs, bf16 *out) {                  \
    down_rows<Form>(input, {weights, scales, scaleStride, rowShift, inShift, in}, bias, tiles, order, outputs,      \
                    out);                                                                                           \
  }

#endif
