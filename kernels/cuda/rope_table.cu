/*
 * The table of rotations that all kernels read: (cos, sin) of position * inverseFrequency, times `factor` (YaRN's
 * attention factor, else 1), computed in float64 and rounded once.
 *
 *   inverseFrequencies [half] float32; out [positionCount][half] (cos, sin) float32, row n for firstPosition + n
 *
 * The other kernels take a pointer to the row of position 0; queries need positions from -context to 2 * context.
 * Grid: any, blocks of 256. Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
fill_rope_table(const float *__restrict__ inverseFrequencies, int half, int firstPosition, int positionCount,
                double factor, float2 *__restrict__ out) {
  const size_t total = size_t(positionCount) * half;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < total; i += size_t(gridDim.x) * blockDim.x) {
    const double position = double(firstPosition) + double(i / half);
    double s, c;
    sincos(position * double(inverseFrequencies[i % half]), &s, &c);
    out[i] = make_float2(float(c * factor), float(s * factor));
  }
}
