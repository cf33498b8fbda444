#pragma once

#include <cstdint>

#include "base/config.h"

namespace segue::data {

enum class DistributionKind { kUniform, kNormal, kZipf, kLognormal, kZipfBounded };

/// How lengths or ids are drawn; integers of 0 and more.
///   uniform       [low, high), high required
///   normal        N(mean, std^2) clamped to [low, high], then rounded half to even
///   lognormal     exp(N) with mean and std of the value itself (std 0: mean / 2), clamped, rounded
///   zipf          k ~ Zipf(alpha) on 1, 2, ... without bound; k + low - 1, clamped to [low, high]
///   zipf_bounded  Zipf over [low, high), ranks spread over the values by a fixed permutation
struct Distribution {
  DistributionKind kind = DistributionKind::kUniform;
  int64_t low = 0;
  int64_t high = 0;  // 0: no upper bound (not for uniform and zipf_bounded)
  double mean = 0;
  double std = 0;
  double alpha = 1.5;

  void validate(const char* what) const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, Distribution& c);

/// A pure function of (distribution, key, element): the same draw on any rank and in any order.
class Sampler {
 public:
  explicit Sampler(const Distribution& distribution);
  int64_t operator()(uint64_t key, uint64_t element) const;

 private:
  int64_t bounded_zipf(uint64_t key, uint64_t element) const;

  Distribution d_;
  double mu_ = 0, sigma_ = 0;  // lognormal
  // zipf_bounded: the hat's integral at both ends, and how near x must be to its rank to be
  // accepted without further ado
  double first_area_ = 0, last_area_ = 0, sure_distance_ = 0;
};

}  // namespace segue::data
