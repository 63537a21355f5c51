#include "processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace spg {

#if defined(__x86_64__)
namespace {

/* A bit of leaf 7, by its subleaf: edx of 0, eax of 1. */
bool has_feature(unsigned subleaf, int bit) {
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, subleaf, &eax, &ebx, &ecx, &edx)) return false;
  return ((subleaf == 0 ? edx : eax) >> bit & 1) != 0;
}

}

bool amx_allowed() {
#if defined(__linux__)
  constexpr int kBfloat16 = 22, kTile = 24, kInt8 = 25, kAvx512Bfloat16 = 5;
  /* arch_prctl's ARCH_REQ_XCOMP_PERM, and the number of the tiles' registers. */
  constexpr long kRequest = 0x1023, kTileRegisters = 18;
  const bool has = has_feature(0, kBfloat16) && has_feature(0, kTile) && has_feature(0, kInt8) &&
                   has_feature(1, kAvx512Bfloat16) && __builtin_cpu_supports("avx512vnni");
  return has && syscall(SYS_arch_prctl, kRequest, kTileRegisters) == 0;
#else
  return false;
#endif
}

bool has_avx_vnni() {
  constexpr int kAvxVnni = 4;
  return has_feature(1, kAvxVnni);
}
#else
bool amx_allowed() {
  return false;
}

bool has_avx_vnni() {
  return false;
}
#endif

}
