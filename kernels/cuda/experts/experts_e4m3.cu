/* Products of few rows with weights of experts in 8-bit floats with scales (expert_rows.cuh has what they compute). */
#include "expert_rows.cuh"

EXPERT_ROWS(e4m3, E4m3)
