#pragma once

#include <cstdint>

namespace segue::train {

/// How far a value is from what it lately was: deviations from an exponentially weighted mean of
/// the values before it. 0 while too few have been seen.
class ZScore {
 public:
  double add(double value);  // the score of `value`, which then counts; not finite: ignored, 0

  // All there is to save.
  double mean = 0, variance = 0;
  int64_t count = 0;

 private:
  static constexpr double kWeight = 0.02;  // of the newest value: about fifty values are remembered
  static constexpr int64_t kWarmUp = 20;
};

}  // namespace segue::train
