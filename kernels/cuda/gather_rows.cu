/*
 * Copies rows of a matrix of any type next to each other: target[i] = source[rows[i]], i < rowCount.
 *
 *   rows [rowCount]; rowBytes a multiple of 16; source and target 16-byte aligned and not the same memory
 *
 * Grid: one block a row. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
gather_rows(const uint4 *source, const int *__restrict__ rows, const int *rowCount, int rowBytes,
            uint4 *__restrict__ target) {
  let_next_begin();
  wait_for_previous();
  const int row = blockIdx.x;
  if (row >= *rowCount) return;
  const int vectors = rowBytes / 16;
  const uint4 *from = source + size_t(rows[row]) * vectors;
  for (int i = threadIdx.x; i < vectors; i += blockDim.x) target[size_t(row) * vectors + i] = from[i];
}
