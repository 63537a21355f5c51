/*
 * Products of up to 16 rows with a matrix, by thread blocks that stay and copy weights ahead (matvec_ring.cuh): what
 * decode steps of few requests do, where reading weights is all that takes time.
 *
 *   input [rows][in] bf16; weights [out][in] in a form; in a multiple of 8, and of what 16 bytes hold
 *   few_rows, few_rows_float   output[r][o] = sum of input[r][i] * weights[o][i]            bf16, float32 [rows][out]
 *   few_rows_gated             output[r][o] = f(gate) * up, weights [2 * ffn][in] with gates first, and f the activation
 *                              of this number (activation.cuh)                               bf16 [rows][ffn]
 *
 * A block multiplies 16 outputs (or 8 gates and their ups) at a time, a unit, with 8 rows at a time (mma.sync, as
 * expert_rows.cuh has it): lane 4 g + t of warp w has of outputs g and g + 8 the vectors 4 w + t + 32 n of 16 bytes. The
 * sums of the block's warps are added up in the order of the warps: a row's result does not depend on the rows beside it.
 *
 * Grid: any number of blocks of 256 threads with the ring's dynamic shared memory. Bytes: those of the weights. Oracle:
 * test/backend/cuda/emulated-matvec.ts.
 */
#ifndef SPANGATE_FEW_ROWS_CUH
#define SPANGATE_FEW_ROWS_CUH

#include "activation.cuh"
#include "expert_forms.cuh"
#include "matvec_ring.cuh"

constexpr int kMostRowTiles = 2;

/* The two rows of weights of a lane's place in a unit; `ffn` 0: neighbours. */
template <class Weights>
struct UnitRows {
  using Form = Weights;
  const ExpertMatrix m;
  const int out, ffn, count, vectors;

  __device__ __forceinline__ UnitRows(const ExpertMatrix &m, int out, int ffn)
      : m(m), out(out), ffn(ffn), count(ffn ? (ffn + 7) / 8 : (out + 15) / 16), vectors(m.in / Form::kWeights) {}
  __device__ __forceinline__ int row(int unit, int i) const {
    const int g = (threadIdx.x & 31) / 4;
    return ffn ? min(8 * unit + g, ffn - 1) + i * ffn : min(16 * unit + g + 8 * i, out - 1);
  }
  __device__ __forceinline__ const uint4 *at(int row, int vector) const {
    return m.weights + (size_t(row) * vectors + vector);
  }
};

/* The sums of a block's warps: [output][row]. Two units alternate, so that one barrier each is enough. */
struct UnitSums {
  float parts[2][kRingWarps][16][8 * kMostRowTiles + 1];
};

/* A lane's vectors of its two outputs, times the rows; `rows` of a lane: g and g + 8, null where there is none. */
template <class Source, int kRowTiles>
__device__ __forceinline__ void multiply_unit(Ring<Source> &ring, const Source &source, const int (&outputs)[2],
                                              const bf16 *const (&rows)[kRowTiles], int place,
                                              float (&sums)[kRowTiles][4]) {
  using Form = typename Source::Form;
  constexpr int kInputs = Form::kWeights / 8;
  for (int from = 0; from < source.vectors; from += kSlotLoads * 32) {
    uint4 w[kSlotLoads][2], x[kSlotLoads][kRowTiles][kInputs];
    typename Form::Scale scales[kSlotLoads][2];
#pragma unroll
    for (int b = 0; b < kSlotLoads; b++) {
      const int vector = from + place + b * 32;
#pragma unroll
      for (int n = 0; n < kRowTiles; n++) {
        const bool exists = rows[n] && vector < source.vectors;
#pragma unroll
        for (int i = 0; i < kInputs; i++) {
          x[b][n][i] = make_uint4(0, 0, 0, 0);
          if (exists) x[b][n][i] = reinterpret_cast<const uint4 *>(rows[n])[vector * kInputs + i];
        }
      }
#pragma unroll
      for (int o = 0; o < 2; o++) scales[b][o] = Form::scale(source.m, outputs[o], min(vector, source.vectors - 1));
    }
    ring.read(w);
#pragma unroll
    for (int b = 0; b < kSlotLoads; b++) {
#pragma unroll
      for (int n = 0; n < kRowTiles; n++) Form::multiply(w[b], scales[b], x[b][n], sums[n]);
    }
    ring.copy_next();
  }
}

/* end(unit, output, row, sum, other): `other` is the sum of the output 8 behind it. */
template <class Form, int kRowTiles, class End>
__device__ __forceinline__ void multiply_rows_by(const ExpertMatrix &m, int out, int ffn, const bf16 *input,
                                                 int rowCount, const End &end) {
  __shared__ UnitSums shared;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane / 4, t = lane & 3, place = 4 * warp + t;
  const UnitRows<Form> source(m, out, ffn);
  Ring<UnitRows<Form>> ring(source, {int(blockIdx.x), int(gridDim.x), place});
  let_next_begin();
  wait_for_previous();
  const int count = min(rowCount, 8 * kRowTiles);
  const bf16 *rows[kRowTiles];
#pragma unroll
  for (int n = 0; n < kRowTiles; n++) rows[n] = 8 * n + g < count ? input + size_t(8 * n + g) * m.in : nullptr;
  for (int unit = blockIdx.x, turn = 0; unit < source.count; unit += gridDim.x, turn ^= 1) {
    const int outputs[2] = {source.row(unit, 0), source.row(unit, 1)};
    float sums[kRowTiles][4] = {};
    multiply_unit<UnitRows<Form>, kRowTiles>(ring, source, outputs, rows, place, sums);
    auto &parts = shared.parts[turn];
#pragma unroll
    for (int n = 0; n < kRowTiles; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) parts[warp][g + i / 2 * 8][8 * n + 2 * t + i % 2] = sums[n][i];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < 16 * count; at += blockDim.x) {
      const int output = at % 16, row = at / 16;
      if (ffn && output >= 8) continue;
      float sum = 0, other = 0;
#pragma unroll
      for (int w = 0; w < kRingWarps; w++) {
        sum += parts[w][output][row];
        if (ffn) other += parts[w][output + 8][row];
      }
      end(unit, output, row, sum, other);
    }
  }
}

template <class Form, int kRowTiles, class Output>
__device__ __forceinline__ void few_rows_product(const ExpertMatrix &m, int out, const bf16 *input, int rowCount,
                                                 Output *output) {
  multiply_rows_by<Form, kRowTiles>(m, out, 0, input, rowCount, [=](int unit, int o, int row, float sum, float) {
    if (16 * unit + o < out) put(output + size_t(row) * out + 16 * unit + o, sum);
  });
}

template <class Form, int kRowTiles>
__device__ __forceinline__ void few_rows_gates(const ExpertMatrix &m, int ffn, int activation, const bf16 *input,
                                               int rowCount, bf16 *output) {
  multiply_rows_by<Form, kRowTiles>(m, 2 * ffn, ffn, input, rowCount,
                                    [=](int unit, int o, int row, float gate, float up) {
                                      const int own = 8 * unit + o;
                                      if (own < ffn) put(output + size_t(row) * ffn + own, gated(gate, up, activation));
                                    });
}

#endif
