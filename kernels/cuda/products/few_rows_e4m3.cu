/*
 * Products of up to 8 or 16 rows with weights of 8 bits (few_rows.cuh has what they compute, matvec_e4m3.cu what scales
 * are); the rows stay in bf16.
 */
#include "few_rows.cuh"

#define FEW_ROWS(ROWS)                                                                                              \
  extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)                                                  \
  few_rows_e4m3_##ROWS(const bf16 *input, const uint4 *__restrict__ weights, const void *__restrict__ scales,       \
                       int scaleStride, int rowShift, int inShift, int rowCount, int in, int out,                   \
                       bf16 *output) {                                                                              \
    few_rows_product<E4m3, ROWS / 8>({weights, scales, scaleStride, rowShift, inShift, in}, out, input, rowCount,   \
                                     output);                                                                       \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)                                                  \
  few_rows_e4m3_gated_##ROWS(const bf16 *input, const uint4 *__restrict__ weights, const void *__restrict__ scales, \
                             int scaleStride, int rowShift, int inShift, int rowCount, int in, int ffn,             \
                             int activation, bf16 *output) {                                                        \
    few_rows_gates<E4m3, ROWS / 8>({weights, scales, scaleStride, rowShift, inShift, in}, ffn, activation, input,   \
                                   rowCount, output);                                                               \
  }

FEW_ROWS(8)
FEW_ROWS(16)
