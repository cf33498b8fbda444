#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace segue::ops {

/// Area under the ROC curve over everything seen, from two histograms of the predictions:
/// mergeable, bounded, independent of order. bin = min(floor(p * bins), bins - 1), with p clamped
/// to [0, 1] and the product rounded to float.
class BinnedAuc {
 public:
  explicit BinnedAuc(int64_t bins = 100000);
  void add(std::span<const float> predictions, std::span<const float> labels,
           std::span<const float> weights);  // weights empty: 1 each
  void merge(const BinnedAuc& other);
  double value() const;  // 0.5 while a class is missing
  void reset();

  std::span<const double> positive() const { return positive_; }
  std::span<const double> negative() const { return negative_; }

 private:
  std::vector<double> positive_, negative_;
};

/// The exact area: ties count half. Takes copies because it sorts.
double exact_auc(std::span<const float> predictions, std::span<const float> labels,
                 std::span<const float> weights = {});

/// An AUC and what each label adds to its uncertainty, by DeLong, DeLong and Clarke-Pearson (1988).
/// The root of the sum of squares of `parts` is the standard error. Parts of AUCs over the same
/// samples may be added and subtracted: those of a mean or of a difference give its error, what
/// they have in common included.
struct AucParts {
  double auc = 0.5;           // the bits of exact_auc
  bool one_class = true;      // there is nothing to tell apart
  std::vector<double> parts;  // one per label; empty while a class has fewer than two labels
};
AucParts auc_parts(std::span<const float> predictions, std::span<const float> labels);
double standard_error(std::span<const double> parts);
/// Half of a 95 % interval, in standard errors.
inline constexpr double kNormal95 = 1.959963984540054;

/// Predictions in bins of about equal count, from low to high: what was predicted on average, and
/// what share of the labels was 1. Equal predictions share a bin, so the order of samples does not
/// matter.
struct CalibrationCurve {
  struct Bin {
    int64_t labels = 0;
    double prediction = 0, share = 0;
  };
  std::vector<Bin> bins;
  double error =
      0;  // mean |prediction - share|, weighted by labels: the expected calibration error
};
CalibrationCurve calibration_curve(std::span<const float> predictions,
                                   std::span<const float> labels, int64_t bins = 10);

/// Normalised entropy: cross entropy of the predictions over that of the base rate, logarithm base
/// 2, predictions and base rate clamped to [eta, 1 - eta]. Also accuracy and calibration from the
/// same sums. All of them are 0 while there is nothing to divide by.
class NormalizedEntropy {
 public:
  void add(std::span<const float> predictions, std::span<const float> labels,
           std::span<const float> weights);
  void merge(const NormalizedEntropy& other);
  double value() const;
  double accuracy() const;     // share of samples on the right side of 0.5
  double calibration() const;  // sum of predictions over sum of labels

  double cross_entropy_sum = 0;
  double weighted_num_samples = 0;
  double positive_labels = 0;
  double negative_labels = 0;
  double prediction_sum = 0;
  double correct = 0;

  static constexpr double kEta = 1e-12;
};

}  // namespace segue::ops
