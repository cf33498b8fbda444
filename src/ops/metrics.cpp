#include "ops/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>

#include "base/error.h"

namespace segue::ops {
namespace {

void check_sizes(std::span<const float> predictions, std::span<const float> labels,
                 std::span<const float> weights) {
  SEGUE_ASSERT(labels.size() == predictions.size(), "metrics: one label per prediction");
  SEGUE_ASSERT(weights.empty() || weights.size() == predictions.size(),
               "metrics: one weight per prediction, or none at all");
}

double weight_at(std::span<const float> weights, size_t i) {
  return weights.empty() ? 1.0 : static_cast<double>(weights[i]);
}

/// Area from groups of equal predictions in ascending order: a positive beats all negatives below
/// it and half of those it ties with.
class AreaSum {
 public:
  void add_group(double positive, double negative) {
    area_ += positive * (negative_ + 0.5 * negative);
    positive_ += positive;
    negative_ += negative;
  }
  double value() const {
    const double pairs = positive_ * negative_;
    return pairs > 0 ? area_ / pairs : 0.5;
  }

 private:
  double area_ = 0, positive_ = 0, negative_ = 0;
};

}  // namespace

BinnedAuc::BinnedAuc(int64_t bins) {
  SEGUE_ASSERT(bins > 0, "BinnedAuc needs bins");
  positive_.resize(static_cast<size_t>(bins));
  negative_.resize(static_cast<size_t>(bins));
}

void BinnedAuc::add(std::span<const float> predictions, std::span<const float> labels,
                    std::span<const float> weights) {
  check_sizes(predictions, labels, weights);
  const size_t bins = positive_.size();
  for (size_t i = 0; i < predictions.size(); ++i) {
    const float p = predictions[i];
    // The product is a float, as in the reference: 0.7f * 10 is 7 there and 6.9999998 in double.
    // NaN fails the comparison and goes to the first bin; finding it is not the metric's task.
    const float place = p > 0 ? std::min(p, 1.0f) * static_cast<float>(bins) : 0.0f;
    const size_t bin = std::min(static_cast<size_t>(place), bins - 1);
    const double weight = weight_at(weights, i);
    const double label = static_cast<double>(labels[i]);
    positive_[bin] += weight * label;
    negative_[bin] += weight * (1 - label);
  }
}

void BinnedAuc::merge(const BinnedAuc& other) {
  if (other.positive_.size() != positive_.size()) {
    fail(ErrorCode::kInvalidArgument, "cannot merge an AUC of " +
                                          std::to_string(other.positive_.size()) +
                                          " bins into one of " + std::to_string(positive_.size()));
  }
  for (size_t b = 0; b < positive_.size(); ++b) {
    positive_[b] += other.positive_[b];
    negative_[b] += other.negative_[b];
  }
}

double BinnedAuc::value() const {
  AreaSum area;
  for (size_t b = 0; b < positive_.size(); ++b) area.add_group(positive_[b], negative_[b]);
  return area.value();
}

void BinnedAuc::reset() {
  std::fill(positive_.begin(), positive_.end(), 0.0);
  std::fill(negative_.begin(), negative_.end(), 0.0);
}

double exact_auc(std::span<const float> predictions, std::span<const float> labels,
                 std::span<const float> weights) {
  check_sizes(predictions, labels, weights);
  std::vector<size_t> order(predictions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Equal predictions keep their order, so that sums of weights do not depend on the sort.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return predictions[a] < predictions[b]; });
  AreaSum area;
  for (size_t begin = 0; begin < order.size();) {
    double positive = 0, negative = 0;
    size_t end = begin;
    do {
      const double weight = weight_at(weights, order[end]);
      const double label = static_cast<double>(labels[order[end]]);
      positive += weight * label;
      negative += weight * (1 - label);
      ++end;
    } while (end < order.size() && predictions[order[end]] == predictions[order[begin]]);
    area.add_group(positive, negative);
    begin = end;
  }
  return area.value();
}

void NormalizedEntropy::add(std::span<const float> predictions, std::span<const float> labels,
                            std::span<const float> weights) {
  check_sizes(predictions, labels, weights);
  for (size_t i = 0; i < predictions.size(); ++i) {
    const double raw = static_cast<double>(predictions[i]);
    const double p = std::clamp(raw, kEta, 1 - kEta);
    const double label = static_cast<double>(labels[i]);
    const double weight = weight_at(weights, i);
    cross_entropy_sum -= weight * (label * std::log2(p) + (1 - label) * std::log2(1 - p));
    weighted_num_samples += weight;
    positive_labels += weight * label;
    negative_labels += weight * (1 - label);
    prediction_sum += weight * raw;
    if ((raw >= 0.5) == (label >= 0.5)) correct += weight;
  }
}

void NormalizedEntropy::merge(const NormalizedEntropy& other) {
  cross_entropy_sum += other.cross_entropy_sum;
  weighted_num_samples += other.weighted_num_samples;
  positive_labels += other.positive_labels;
  negative_labels += other.negative_labels;
  prediction_sum += other.prediction_sum;
  correct += other.correct;
}

double NormalizedEntropy::value() const {
  const double samples = positive_labels + negative_labels;
  if (samples == 0) return 0;
  const double rate = std::clamp(positive_labels / samples, kEta, 1 - kEta);
  return cross_entropy_sum /
         -(positive_labels * std::log2(rate) + negative_labels * std::log2(1 - rate));
}

double NormalizedEntropy::accuracy() const {
  return weighted_num_samples == 0 ? 0 : correct / weighted_num_samples;
}

double NormalizedEntropy::calibration() const {
  return positive_labels == 0 ? 0 : prediction_sum / positive_labels;
}

}  // namespace segue::ops
