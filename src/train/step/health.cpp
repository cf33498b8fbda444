#include "train/step/health.h"

#include <algorithm>
#include <cmath>

namespace segue::train {

double ZScore::add(double value) {
  if (!std::isfinite(value)) return 0;
  const double difference = value - mean;
  const double score = count >= kWarmUp && variance > 0 ? difference / std::sqrt(variance) : 0;
  ++count;
  // A plain mean at first, so that the first value does not weigh on the next fifty.
  const double weight = std::max(kWeight, 1.0 / static_cast<double>(count));
  mean += weight * difference;
  variance = (1 - weight) * (variance + weight * difference * difference);
  return score;
}

}  // namespace segue::train
