#include <algorithm>
#include <cmath>
#include <numeric>

#include <boost/math/distributions/students_t.hpp>

#include "base/error.h"
#include "report/mlperf/rcp.h"

namespace segue::report {
namespace {

constexpr double kAlpha = 0.05;

}  // namespace

double student_t_quantile(double p, double freedom) {
  SEGUE_ASSERT(p > 0 && p < 1 && freedom > 0, "a quantile is asked for where there is none");
  return boost::math::quantile(boost::math::students_t(freedom), p);
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
