/* The next query, predicted from those before it: equations 2 to 5 of AsyncSpade, as kernels/abi_sparse.h has them. */
#ifndef SPANGATE_KERNELS_PREDICT_H
#define SPANGATE_KERNELS_PREDICT_H

namespace spg {

/* Windows of 1 to 16 queries, and the newest query before them that they are fitted to. */
constexpr int kMostWindows = 16, kMostKnown = kMostWindows + 1;

/*
 * out [dim] = the query after `newest[0]`. newest: [known] queries of one head, the newest first, 1 to kMostKnown of
 * them, [dim] each; a window of k needs k + 1, so fewer queries make fewer windows.
 */
void predict_query(const float *const *newest, int known, int dim, float *out);
/*
 * The same as the paper's listing has it, for comparison: one regression over the widest window, whose weights pass a second
 * softmax with the opposite sign in each window, over queries that begin one before the newest.
 */
void predict_by_listing(const float *const *newest, int known, int dim, float *out);

}

#endif
