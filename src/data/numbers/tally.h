#pragma once

#include <cstdint>

namespace segue::data {

/// How often something was tried, and how often with success.
struct Tally {
  int64_t positive = 0, all = 0;

  void add(bool success) {
    positive += success ? 1 : 0;
    ++all;
  }
  Tally& operator+=(const Tally& other) {
    positive += other.positive;
    all += other.all;
    return *this;
  }
  /// The share of successes as if `weight` tries with a share of `prior` had been made before.
  double share(double prior, double weight) const {
    return (static_cast<double>(positive) + weight * prior) / (static_cast<double>(all) + weight);
  }
};

}  // namespace segue::data
