/* Products of few rows with weights of experts in blocks of MXFP4 (expert_rows.cuh has what they compute). */
#include "expert_rows.cuh"

EXPERT_ROWS(mx4, Mx4)
