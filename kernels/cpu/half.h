/* float16 in plain arithmetic, for code that no instruction set is compiled for. */
#ifndef SPANGATE_KERNELS_HALF_H
#define SPANGATE_KERNELS_HALF_H

#include <math.h>
#include <stdint.h>

#include "internal.h"

namespace spg {

static inline float half_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  double value;
  if (exponent == 31) {
    value = fraction ? NAN : INFINITY;
  } else {
    value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
  }
  return static_cast<float>(bits & 0x8000 ? -value : value);
}

/* Rounds to nearest, ties to even; values that are too large become the greatest finite number. */
static inline uint16_t float_to_half(double value) {
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  if (isnan(value)) return sign | 0x7e00;
  const double magnitude = fabs(value);
  if (magnitude >= kMaxHalf) return sign | 0x7bff;
  int exponent = magnitude < ldexp(1, -14) ? -14 : ilogb(magnitude);
  const double steps = nearbyint(ldexp(magnitude, 10 - exponent));
  return sign | static_cast<uint16_t>(steps + (exponent + 14) * 1024);
}

}

#endif
