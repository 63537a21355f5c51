/* Products of few rows with weights of experts in bfloat16 (expert_rows.cuh has what they compute). */
#include "expert_rows.cuh"

EXPERT_ROWS(b16, B16)
