/* What this processor has that the compiler's own questions do not tell. */
#ifndef SPANGATE_KERNELS_PROCESSOR_H
#define SPANGATE_KERNELS_PROCESSOR_H

namespace spg {

/*
 * Whether AMX multiplies int8 and bfloat16 here. Asks the system for its registers, which it gives to a process once:
 * false too when it refuses.
 */
bool amx_allowed();
bool has_avx_vnni();

}

#endif
