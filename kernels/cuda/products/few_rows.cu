/* Products of up to 8 or 16 rows with weights in bfloat16 (few_rows.cuh has what they compute). */
#include "few_rows.cuh"

#define FEW_ROWS(ROWS)                                                                                        \
  extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)                                            \
  few_rows_##ROWS(const bf16 *input, const uint4 *__restrict__ weights, int rowCount, int in, int out,        \
                  bf16 *output) {                                                                             \
    few_rows_product<B16, ROWS / 8>({weights, nullptr, 0, 0, 0, in}, out, input, rowCount, output);           \
  }                                                                                                           \
  extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)                                            \
  few_rows_float_##ROWS(const bf16 *input, const uint4 *__restrict__ weights, int rowCount, int in, int out,  \
                        float *output) {                                                                      \
    few_rows_product<B16, ROWS / 8>({weights, nullptr, 0, 0, 0, in}, out, input, rowCount, output);           \
  }                                                                                                           \
  extern "C" __global__ void __launch_bounds__(kRingWarps * 32, 2)                                            \
  few_rows_gated_##ROWS(const bf16 *input, const uint4 *__restrict__ weights, int rowCount, int in, int ffn,  \
                        int activation, bf16 *output) {                                                       \
    few_rows_gates<B16, ROWS / 8>({weights, nullptr, 0, 0, 0, in}, ffn, activation, input, rowCount, output); \
  }

FEW_ROWS(8)
FEW_ROWS(16)
