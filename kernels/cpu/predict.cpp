#include "predict.h"

#include <math.h>

#include <algorithm>

namespace spg {
namespace {

constexpr int kNewtonSteps = 4;
/* Weighs the square of w against the squared error in units of the mean squared query. */
constexpr double kRidge = 0.03;
/* By how much rounding alone may raise the objective, whose terms are about 1, where it has come to rest. */
constexpr double kRest = 1e-9;
constexpr int kLanesOfSum = 8;

/* The products of the queries with each other, in units of their mean square. */
struct Gram {
  double of[kMostKnown][kMostKnown];
};

float product(const float *a, const float *b, int dim) {
  float sums[kLanesOfSum] = {}, total = 0;
  for (int d = 0; d < dim; d += kLanesOfSum) {
    for (int lane = 0; lane < kLanesOfSum; lane++) sums[lane] += a[d + lane] * b[d + lane];
  }
  for (float sum : sums) total += sum;
  return total;
}

Gram gram_of(const float *const *newest, int known, int dim) {
  Gram gram;
  double mean = 0;
  for (int i = 0; i < known; i++) {
    for (int j = 0; j <= i; j++) gram.of[i][j] = gram.of[j][i] = product(newest[i], newest[j], dim);
    mean += gram.of[i][i] / known;
  }
  const double unit = mean > 0 ? 1 / mean : 0;
  for (int i = 0; i < known; i++) {
    for (int j = 0; j < known; j++) gram.of[i][j] *= unit;
  }
  return gram;
}

void softmax(const double *w, int count, double *p) {
  const double top = *std::max_element(w, w + count);
  double sum = 0;
  for (int i = 0; i < count; i++) sum += p[i] = exp(w[i] - top);
  for (int i = 0; i < count; i++) p[i] /= sum;
}

/* One window: the `count` queries before the newest, and what they and their products with it give. */
struct Window {
  const Gram &gram;
  int count;
  double g(int i, int j) const { return gram.of[i + 1][j + 1]; }
  double b(int i) const { return gram.of[i + 1][0]; }
};

/* u = G p. */
void weigh(const Window &window, const double *p, double *u) {
  for (int i = 0; i < window.count; i++) {
    u[i] = 0;
    for (int j = 0; j < window.count; j++) u[i] += window.g(i, j) * p[j];
  }
}

/* Half the squared distance of the weighted sum from the newest query, less what does not hang on w, and the ridge. */
double objective(const Window &window, const double *w, const double *p) {
  double u[kMostWindows], sum = 0;
  weigh(window, p, u);
  for (int i = 0; i < window.count; i++) sum += p[i] * (u[i] / 2 - window.b(i)) + kRidge / 2 * w[i] * w[i];
  return sum;
}

/* Solves h x = x by Cholesky, in place. False when h is not positive. */
bool solve(double (*h)[kMostWindows], double *x, int count) {
  for (int i = 0; i < count; i++) {
    for (int j = 0; j <= i; j++) {
      double sum = h[i][j];
      for (int k = 0; k < j; k++) sum -= h[i][k] * h[j][k];
      if (i == j && !(sum > 0)) return false;
      h[i][j] = i == j ? sqrt(sum) : sum / h[j][j];
    }
  }
  for (int i = 0; i < count; i++) {
    for (int k = 0; k < i; k++) x[i] -= h[i][k] * x[k];
    x[i] /= h[i][i];
  }
  for (int i = count - 1; i >= 0; i--) {
    for (int k = i + 1; k < count; k++) x[i] -= h[k][i] * x[k];
    x[i] /= h[i][i];
  }
  return true;
}

/* One step of Newton's; false when there is none. */
bool step_of(const Window &window, const double *p, double *w) {
  double u[kMostWindows], gradient[kMostWindows], h[kMostWindows][kMostWindows], s = 0, beta = 0;
  weigh(window, p, u);
  for (int i = 0; i < window.count; i++) {
    s += p[i] * u[i];
    beta += p[i] * window.b(i);
  }
  for (int i = 0; i < window.count; i++) {
    gradient[i] = p[i] * (u[i] - window.b(i) - s + beta) + kRidge * w[i];
    for (int j = 0; j <= i; j++) h[i][j] = p[i] * p[j] * (window.g(i, j) - u[i] - u[j] + s) + (i == j ? kRidge : 0);
  }
  if (!solve(h, gradient, window.count)) return false;
  for (int i = 0; i < window.count; i++) w[i] -= gradient[i];
  return true;
}

/* The weights by which the queries of a window come closest to the newest. Uniform ones should a step lead away. */
void fit(const Window &window, double *p) {
  double w[kMostWindows] = {};
  softmax(w, window.count, p);
  double before = objective(window, w, p);
  for (int n = 0; n < kNewtonSteps; n++) {
    const bool isStep = step_of(window, p, w);
    softmax(w, window.count, p);
    const double after = objective(window, w, p);
    if (!isStep || !(after <= before + kRest)) {
      for (int i = 0; i < window.count; i++) p[i] = 1.0 / window.count;
      return;
    }
    before = after;
  }
}

void add_up(const float *const *queries, const double *weights, int count, int dim, float *out) {
  std::fill(out, out + dim, 0.0f);
  for (int i = 0; i < count; i++) {
    const float weight = static_cast<float>(weights[i]);
    for (int d = 0; d < dim; d++) out[d] += weight * queries[i][d];
  }
}

}

void predict_query(const float *const *newest, int known, int dim, float *out) {
  const int windows = std::max(1, known - 1);
  const Gram gram = gram_of(newest, known, dim);
  double sums[kMostWindows] = {1}, p[kMostWindows];
  for (int k = 2; k <= windows; k++) {
    fit({gram, k}, p);
    for (int i = 0; i < k; i++) sums[i] += p[i];
  }
  for (int i = 0; i < windows; i++) sums[i] /= windows;
  add_up(newest, sums, windows, dim, out);
}

void predict_by_listing(const float *const *newest, int known, int dim, float *out) {
  const int windows = known - 1;
  if (windows < 1) return add_up(newest, (const double[]){1}, 1, dim, out);
  const Gram gram = gram_of(newest, known, dim);
  double sums[kMostWindows] = {}, p[kMostWindows], negative[kMostWindows], again[kMostWindows];
  fit({gram, windows}, p);
  for (int i = 0; i < windows; i++) negative[i] = -p[i];
  for (int k = 1; k <= windows; k++) {
    softmax(negative, k, again);
    for (int i = 0; i < k; i++) sums[i] += again[i] / windows;
  }
  add_up(newest + 1, sums, windows, dim, out);
}

}
