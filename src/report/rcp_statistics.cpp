#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "report/rcp.h"

namespace segue::report {
namespace {

constexpr double kAlpha = 0.05;

/// The continued fraction of the incomplete beta function by Lentz's method; converges quickly for
/// x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kPrecision = 1e-16;
  const auto away_from_zero = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double c = 1;
  double d = 1 / away_from_zero(1 - (a + b) * x / (a + 1));
  double product = d;
  for (int m = 1; m <= 500; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / away_from_zero(1 + even * d);
    c = away_from_zero(1 + even / c);
    product *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / away_from_zero(1 + odd * d);
    c = away_from_zero(1 + odd / c);
    product *= d * c;
    if (std::abs(d * c - 1) < kPrecision) break;
  }
  return product;
}

/// Regularised: from 0 at x = 0 to 1 at x = 1.
double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

/// P(|T| > t) = I_x(freedom / 2, 1 / 2) with x = freedom / (freedom + t^2).
double two_sided_tail(double x, double freedom) { return incomplete_beta(freedom / 2, 0.5, x); }

}  // namespace

double student_t_quantile(double p, double freedom) {
  SEGUE_ASSERT(p > 0 && p < 1 && freedom > 0, "a quantile is asked for where there is none");
  if (p < 0.5) return -student_t_quantile(1 - p, freedom);
  if (p == 0.5) return 0;
  double low = 0, high = 1;  // x; the tail grows with it
  for (int i = 0; i < 200; ++i) {
    const double x = (low + high) / 2;
    (two_sided_tail(x, freedom) < 2 * (1 - p) ? low : high) = x;
  }
  const double x = (low + high) / 2;
  return std::sqrt(freedom * (1 - x) / x);
}

double olympic_mean(std::vector<double> values) {
  SEGUE_ASSERT(values.size() > 2, "nothing is left of fewer than three values");
  std::ranges::sort(values);
  return std::accumulate(values.begin() + 1, values.end() - 1, 0.0) /
         static_cast<double>(values.size() - 2);
}

double population_stdev(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / count);
}

double smallest_acceptable_mean(double mean, double stdev, int64_t reference_runs,
                                int64_t submission_runs) {
  const auto n = static_cast<double>(reference_runs), m = static_cast<double>(submission_runs);
  return mean - student_t_quantile(1 - kAlpha, n + m - 2) * stdev * std::sqrt(1 / n + 1 / m);
}

}  // namespace segue::report
