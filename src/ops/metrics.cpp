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

/// Calls `each` with the places of equal predictions, from low to high; inside a group they keep
/// their order, so that sums over it do not depend on the sort.
template <class Each>
void for_equal_predictions(std::span<const float> predictions, Each each) {
  std::vector<size_t> order(predictions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return predictions[a] < predictions[b]; });
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && predictions[order[end]] == predictions[order[begin]]) ++end;
    each(std::span<const size_t>(order).subspan(begin, end - begin));
    begin = end;
  }
}

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
  AreaSum area;
  for_equal_predictions(predictions, [&](std::span<const size_t> group) {
    double positive = 0, negative = 0;
    for (const size_t i : group) {
      const double weight = weight_at(weights, i);
      const double label = static_cast<double>(labels[i]);
      positive += weight * label;
      negative += weight * (1 - label);
    }
    area.add_group(positive, negative);
  });
  return area.value();
}

AucParts auc_parts(std::span<const float> predictions, std::span<const float> labels) {
  check_sizes(predictions, labels, {});
  const auto is_positive = [&](size_t i) { return labels[i] >= 0.5f; };
  double positives = 0;
  for (size_t i = 0; i < labels.size(); ++i) positives += is_positive(i) ? 1 : 0;
  const double negatives = static_cast<double>(labels.size()) - positives;
  AucParts result;
  result.one_class = positives == 0 || negatives == 0;
  if (positives > 1 && negatives > 1) result.parts.resize(labels.size());
  AreaSum area;
  double positives_below = 0, negatives_below = 0;
  for_equal_predictions(predictions, [&](std::span<const size_t> group) {
    double positive = 0;
    for (const size_t i : group) positive += is_positive(i) ? 1 : 0;
    const double negative = static_cast<double>(group.size()) - positive;
    area.add_group(positive, negative);
    if (!result.parts.empty()) {
      // The share of the other class that a label of this group is on the right side of.
      const double above = (negatives_below + 0.5 * negative) / negatives;
      const double below = 1 - (positives_below + 0.5 * positive) / positives;
      for (const size_t i : group) result.parts[i] = is_positive(i) ? above : below;
    }
    positives_below += positive;
    negatives_below += negative;
  });
  result.auc = area.value();
  const double of_positive = 1 / std::sqrt(positives * (positives - 1));
  const double of_negative = 1 / std::sqrt(negatives * (negatives - 1));
  for (size_t i = 0; i < result.parts.size(); ++i) {
    result.parts[i] = (result.parts[i] - result.auc) * (is_positive(i) ? of_positive : of_negative);
  }
  return result;
}

double standard_error(std::span<const double> parts) {
  double squares = 0;
  for (const double part : parts) squares += part * part;
  return std::sqrt(squares);
}

CalibrationCurve calibration_curve(std::span<const float> predictions,
                                   std::span<const float> labels, int64_t bins) {
  check_sizes(predictions, labels, {});
  SEGUE_ASSERT(bins > 0, "a calibration curve needs bins");
  CalibrationCurve curve;
  const auto all = static_cast<int64_t>(labels.size());
  int64_t seen = 0, part = 1;  // bins end where `part` of `bins` equal parts of the labels do
  CalibrationCurve::Bin bin;   // with sums instead of means
  for_equal_predictions(predictions, [&](std::span<const size_t> group) {
    const auto count = static_cast<int64_t>(group.size());
    bin.labels += count;
    bin.prediction += static_cast<double>(count) * static_cast<double>(predictions[group[0]]);
    for (const size_t i : group) bin.share += static_cast<double>(labels[i]);
    seen += count;
    if (seen < part * all / bins && seen < all) return;
    const auto n = static_cast<double>(bin.labels);
    bin.prediction /= n;
    bin.share /= n;
    curve.error += n / static_cast<double>(all) * std::abs(bin.prediction - bin.share);
    curve.bins.push_back(bin);
    bin = {};
    // Equal predictions may have filled several parts: the next bin is no smaller for that.
    while (part <= bins && part * all / bins <= seen) ++part;
  });
  return curve;
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
