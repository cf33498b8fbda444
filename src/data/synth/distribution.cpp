#include "data/synth/distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"
#include "data/synth/draw.h"

namespace segue::data {
namespace {

constexpr int64_t kLargestValue = int64_t{1} << 62;  // longer tails are cut here
constexpr double kLargestAlpha = 64;
constexpr double kLargestVariation = 1e100;  // the square of std / mean must be finite

/// Each attempt at an element has a Philox counter of its own: 128 random bits, two uniform
/// numbers. A rejection method that fails this often (all of ours accept at least every other
/// attempt) has met an event of probability below 2^-100, and takes its most frequent value.
constexpr uint32_t kMaxAttempts = 100;

Draw draw_at(uint64_t key, uint64_t element, uint32_t attempt) {
  return draw(DrawPurpose::kDistribution, key, element, attempt);
}

double standard_normal(const Draw& d) {  // Box-Muller
  return std::sqrt(-2 * std::log(d.uniform_a())) * std::cos(2 * std::numbers::pi * d.uniform_b());
}

// ---- Zipf without bound ------------------------------------------------------------------------

/// Rejection from a discretised Pareto distribution (L. Devroye, Non-Uniform Random Variate
/// Generation, 1986, X.6): x = floor(u^(-1 / (alpha - 1))) is accepted with probability
/// proportional to x^-alpha over the Pareto probability of [x, x + 1).
double zipf(double alpha, uint64_t key, uint64_t element) {
  const double a = alpha - 1;
  const double b = std::exp2(a);
  for (uint32_t attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const Draw d = draw_at(key, element, attempt);
    const double x =
        std::min(std::floor(std::pow(d.uniform_a(), -1 / a)), static_cast<double>(kLargestValue));
    // (1 + 1/x)^a - 1 without cancellation, which would begin at x of a few million.
    const double growth = std::expm1(a * std::log1p(1 / x));
    if (d.uniform_b() * x * growth / (b - 1) <= (growth + 1) / b) return x;
  }
  return 1;
}

// ---- Zipf over 1 .. n --------------------------------------------------------------------------
//
// Rejection-inversion (W. Hoermann, G. Derflinger, "Rejection-inversion to generate variates from
// monotone discrete distributions", 1996): a point under the curve x^-alpha is drawn by inverting
// its integral; it is accepted when it lies in the part of its integer's strip that has area
// k^-alpha. Exact for any alpha > 0, and more than two thirds of the points are accepted.

/// Integral of x^-alpha from 1 to x, continuous in alpha through the logarithm at alpha = 1.
double hat_area(double alpha, double x) {
  const double t = (1 - alpha) * std::log(x);
  const double ratio = std::abs(t) > 1e-8 ? std::expm1(t) / t : 1 + t / 2;
  return ratio * std::log(x);
}

double inverse_hat_area(double alpha, double area) {
  const double t = std::max((1 - alpha) * area, -1.0);  // rounding must not leave the domain
  const double ratio = std::abs(t) > 1e-8 ? std::log1p(t) / t : 1 - t / 2;
  return std::exp(ratio * area);
}

double hat(double alpha, double x) { return std::exp(-alpha * std::log(x)); }

/// A fixed bijection of [0, n): a Feistel network over the next power of four, walked until it
/// comes back into the range (fewer than four rounds on average).
uint64_t permute(uint64_t value, uint64_t n) {
  constexpr uint64_t kKey = 0x5a697066'72616e6bull;
  const int half = (std::bit_width(n - 1) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = base::splitmix64((kKey + round) ^ base::splitmix64(right)) & mask;
      left = std::exchange(right, left ^ mixed);
    }
    value = left << half | right;
  } while (value >= n);
  return value;
}

[[noreturn]] void fail_config(const char* what, const std::string& problem) {
  fail(ErrorCode::kConfig, fmt::format("{}: {}", what, problem));
}

}  // namespace

void describe(base::ConfigVisitor& v, Distribution& c) {
  v.choice("kind", c.kind, {"uniform", "normal", "zipf", "lognormal", "zipf_bounded"},
           "shape of the distribution");
  v.field("low", c.low, "smallest value");
  v.field("high", c.high,
          "largest value (uniform, zipf_bounded: the first value beyond); 0: no upper bound");
  v.field("mean", c.mean, "normal, lognormal: mean");
  v.field("std", c.std, "normal, lognormal: standard deviation; lognormal takes 0 as mean / 2");
  v.field("alpha", c.alpha, "zipf, zipf_bounded: exponent");
}

void Distribution::validate(const char* what) const {
  if (low < 0) fail_config(what, fmt::format("`low` must be 0 or more, not {}", low));
  if (high < 0) fail_config(what, fmt::format("`high` must be 0 or more, not {}", high));
  if (std::max(low, high) > kLargestValue) {
    fail_config(what, "`low` and `high` must not be above 2^62");
  }
  const bool range = kind == DistributionKind::kUniform || kind == DistributionKind::kZipfBounded;
  if (range && high <= low) {
    fail_config(
        what, fmt::format("values lie in [low, high), which is empty for low = {}, high = {}", low,
                          high));
  }
  if (!range && high != 0 && high < low) {
    fail_config(what, fmt::format("`high` = {} is below `low` = {}", high, low));
  }
  if (!std::isfinite(mean) || !std::isfinite(std))
    fail_config(what, "`mean` and `std` must be finite");
  switch (kind) {
    case DistributionKind::kUniform:
      break;
    case DistributionKind::kNormal:
      if (!(std > 0)) fail_config(what, fmt::format("normal needs `std` above 0, not {}", std));
      break;
    case DistributionKind::kLognormal:
      if (!(mean > 0))
        fail_config(what, fmt::format("lognormal needs `mean` above 0, not {}", mean));
      if (std < 0) {
        fail_config(what, fmt::format("`std` must be 0 (for mean / 2) or more, not {}", std));
      }
      if (!(std / mean < kLargestVariation)) {
        fail_config(what, fmt::format("`std` must be below {:.0e} times `mean`, not {} for mean {}",
                                      kLargestVariation, std, mean));
      }
      break;
    case DistributionKind::kZipf:
      if (!(alpha > 1 && alpha <= kLargestAlpha)) {
        fail_config(what, fmt::format("zipf needs `alpha` above 1 and at most {}, not {}",
                                      kLargestAlpha, alpha));
      }
      break;
    case DistributionKind::kZipfBounded:
      if (!(alpha > 0 && alpha <= kLargestAlpha)) {
        fail_config(what, fmt::format("zipf_bounded needs `alpha` above 0 and at most {}, not {}",
                                      kLargestAlpha, alpha));
      }
      break;
  }
}

Sampler::Sampler(const Distribution& distribution) : d_(distribution) {
  d_.validate("distribution");
  if (d_.kind == DistributionKind::kLognormal) {
    const double variation = (d_.std > 0 ? d_.std : d_.mean / 2) / d_.mean;
    const double variance = std::log1p(variation * variation);
    sigma_ = std::sqrt(variance);
    mu_ = std::log(d_.mean) - variance / 2;
  }
  if (d_.kind == DistributionKind::kZipfBounded) {
    const auto n = static_cast<double>(d_.high - d_.low);
    first_area_ = hat_area(d_.alpha, 1.5) - 1;
    last_area_ = hat_area(d_.alpha, n + 0.5);
    sure_distance_ = 2 - inverse_hat_area(d_.alpha, hat_area(d_.alpha, 2.5) - hat(d_.alpha, 2));
  }
}

int64_t Sampler::operator()(uint64_t key, uint64_t element) const {
  const int64_t high = d_.high == 0 ? kLargestValue : d_.high;
  const auto clamp_and_round = [this, high](double x) {
    x = std::clamp(x, static_cast<double>(d_.low), static_cast<double>(high));
    return static_cast<int64_t>(std::nearbyint(x));  // half to even
  };
  switch (d_.kind) {
    case DistributionKind::kUniform:
      break;
    case DistributionKind::kNormal:
      return clamp_and_round(d_.mean + d_.std * standard_normal(draw_at(key, element, 0)));
    case DistributionKind::kLognormal:
      return clamp_and_round(std::exp(mu_ + sigma_ * standard_normal(draw_at(key, element, 0))));
    case DistributionKind::kZipf:
      return std::min(d_.low + (static_cast<int64_t>(zipf(d_.alpha, key, element)) - 1), high);
    case DistributionKind::kZipfBounded:
      return d_.low + bounded_zipf(key, element);
  }
  const auto range = static_cast<uint64_t>(d_.high - d_.low);
  return d_.low + static_cast<int64_t>(scale_to(draw_at(key, element, 0).a, range));
}

/// Counts from 0.
int64_t Sampler::bounded_zipf(uint64_t key, uint64_t element) const {
  const auto n = static_cast<uint64_t>(d_.high - d_.low);
  uint64_t rank = 1;
  for (uint32_t attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const double u = draw_at(key, element, attempt).uniform_a();
    const double area = last_area_ + u * (first_area_ - last_area_);
    const double x = inverse_hat_area(d_.alpha, area);
    const double k = std::clamp(std::floor(x + 0.5), 1.0, static_cast<double>(n));
    if (k - x <= sure_distance_ || area >= hat_area(d_.alpha, k + 0.5) - hat(d_.alpha, k)) {
      rank = std::min(static_cast<uint64_t>(k), n);
      break;
    }
  }
  return static_cast<int64_t>(permute(rank - 1, n));
}

}  // namespace segue::data
