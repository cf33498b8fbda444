#include "ops/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::TestBed;

struct Samples {
  std::vector<float> predictions, labels, weights;

  explicit Samples(int64_t n, uint64_t seed = 1) {
    for (int64_t i = 0; i < n; ++i) {
      predictions.push_back(static_cast<float>(0.5 * (TestBed::number(seed, i) + 1)));
      const double noise = 0.5 * (TestBed::number(seed + 1, i) + 1);
      labels.push_back(noise < 0.3 + 0.4 * predictions.back() ? 1.f : 0.f);
      weights.push_back(static_cast<float>(0.5 * (TestBed::number(seed + 2, i) + 1)));
    }
  }
};

/// The definition: share of (positive, negative) pairs in the right order.
double pairwise_auc(const Samples& s, bool weighted) {
  double right = 0, pairs = 0;
  for (size_t i = 0; i < s.labels.size(); ++i) {
    for (size_t j = 0; j < s.labels.size(); ++j) {
      if (s.labels[i] != 1 || s.labels[j] != 0) continue;
      const double w = weighted ? static_cast<double>(s.weights[i]) * s.weights[j] : 1;
      pairs += w;
      if (s.predictions[i] > s.predictions[j]) right += w;
      if (s.predictions[i] == s.predictions[j]) right += w / 2;
    }
  }
  return right / pairs;
}

TEST(MetricsTest, ExactAucCountsPairs) {
  Samples s(300);
  for (float& p : s.predictions) p = std::round(p * 20) / 20;  // many ties
  EXPECT_NEAR(exact_auc(s.predictions, s.labels), pairwise_auc(s, false), 1e-12);
  EXPECT_NEAR(exact_auc(s.predictions, s.labels, s.weights), pairwise_auc(s, true), 1e-12);
}

/// DeLong's variance from its definition: for every label the share of the other class that it is
/// on the right side of, and the sample variances of those shares.
double pairwise_error(const Samples& s) {
  std::vector<double> shares[2];
  for (size_t i = 0; i < s.labels.size(); ++i) {
    const bool positive = s.labels[i] == 1;
    double right = 0, others = 0;
    for (size_t j = 0; j < s.labels.size(); ++j) {
      if (s.labels[j] == s.labels[i]) continue;
      ++others;
      const float high = s.predictions[positive ? i : j], low = s.predictions[positive ? j : i];
      right += high > low ? 1 : high == low ? 0.5 : 0;
    }
    shares[positive ? 1 : 0].push_back(right / others);
  }
  double variance = 0;
  for (const std::vector<double>& values : shares) {
    const auto n = static_cast<double>(values.size());
    double mean = 0, squares = 0;
    for (const double v : values) mean += v / n;
    for (const double v : values) squares += (v - mean) * (v - mean);
    variance += squares / (n - 1) / n;
  }
  return std::sqrt(variance);
}

TEST(MetricsTest, PartsOfAnAucAreDeLongs) {
  for (const float levels : {5.f, 1e6f}) {  // with many ties, and hardly any
    Samples s(300);
    for (float& p : s.predictions) p = std::round(p * levels) / levels;
    const AucParts a = auc_parts(s.predictions, s.labels);
    EXPECT_EQ(a.auc, exact_auc(s.predictions, s.labels));
    EXPECT_FALSE(a.one_class);
    EXPECT_NEAR(standard_error(a.parts), pairwise_error(s), 1e-12);
  }
}

/// What the error means: samples drawn again give AUCs that are spread by so much.
TEST(MetricsTest, TheErrorOfAnAucIsThatOfTheBootstrap) {
  const Samples s(800);
  const AucParts a = auc_parts(s.predictions, s.labels);
  const std::vector<float> worse = [&] {
    std::vector<float> values = s.predictions;
    for (size_t i = 0; i < values.size(); ++i) values[i] += s.weights[i];
    return values;
  }();
  const AucParts b = auc_parts(worse, s.labels);
  std::vector<double> difference(a.parts.size());
  for (size_t i = 0; i < difference.size(); ++i) difference[i] = a.parts[i] - b.parts[i];
  double sum = 0, squares = 0, sum_difference = 0, squares_difference = 0;
  constexpr int kDraws = 2000;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<float> p, q, labels;
    for (size_t i = 0; i < s.labels.size(); ++i) {
      const double u =
          0.5 * (TestBed::number(100 + static_cast<uint64_t>(draw), static_cast<int64_t>(i)) + 1);
      const auto at = std::min(static_cast<size_t>(u * 800), s.labels.size() - 1);
      p.push_back(s.predictions[at]);
      q.push_back(worse[at]);
      labels.push_back(s.labels[at]);
    }
    const double auc = exact_auc(p, labels), by = auc - exact_auc(q, labels);
    sum += auc;
    squares += auc * auc;
    sum_difference += by;
    squares_difference += by * by;
  }
  const auto spread = [](double total, double of_squares) {
    return std::sqrt(of_squares / kDraws - total / kDraws * (total / kDraws));
  };
  // 2,000 draws know a spread to 1.6 %.
  EXPECT_NEAR(standard_error(a.parts) / spread(sum, squares), 1, 0.06);
  EXPECT_NEAR(standard_error(difference) / spread(sum_difference, squares_difference), 1, 0.06);
  EXPECT_LT(standard_error(difference), standard_error(a.parts) + standard_error(b.parts));
}

TEST(MetricsTest, AnAucOfTooFewHasNoError) {
  const std::vector<float> p = {0.1f, 0.4f, 0.3f}, one = {1, 1, 1}, single = {1, 0, 0};
  EXPECT_TRUE(auc_parts({}, {}).one_class);
  EXPECT_TRUE(auc_parts(p, one).one_class);
  EXPECT_TRUE(auc_parts(p, one).parts.empty());
  EXPECT_FALSE(auc_parts(p, single).one_class);
  EXPECT_TRUE(auc_parts(p, single).parts.empty());
  EXPECT_EQ(auc_parts(p, single).auc, 0);
}

TEST(MetricsTest, CalibrationBinsHaveEqualCounts) {
  Samples s(1000);
  const CalibrationCurve curve = calibration_curve(s.predictions, s.labels, 10);
  ASSERT_EQ(curve.bins.size(), 10u);
  double below = 0, error = 0;
  for (const CalibrationCurve::Bin& bin : curve.bins) {
    EXPECT_EQ(bin.labels, 100);
    EXPECT_GT(bin.prediction, below);
    below = bin.prediction;
    error += 0.1 * std::abs(bin.prediction - bin.share);
  }
  EXPECT_NEAR(curve.error, error, 1e-12);
  // Labels were drawn with 0.3 + 0.4 p: too high at the top, too low at the bottom.
  EXPECT_GT(curve.bins[0].share, curve.bins[0].prediction + 0.1);
  EXPECT_LT(curve.bins[9].share, curve.bins[9].prediction - 0.1);

  // Another order of the samples, ties over the borders of bins included, changes no bit.
  for (float& p : s.predictions) p = std::round(p * 7) / 7;
  const CalibrationCurve tied = calibration_curve(s.predictions, s.labels, 10);
  EXPECT_LE(tied.bins.size(), 8u);
  std::reverse(s.predictions.begin(), s.predictions.end());
  std::reverse(s.labels.begin(), s.labels.end());
  const CalibrationCurve turned = calibration_curve(s.predictions, s.labels, 10);
  ASSERT_EQ(turned.bins.size(), tied.bins.size());
  int64_t all = 0;
  for (size_t b = 0; b < tied.bins.size(); ++b) {
    EXPECT_EQ(turned.bins[b].share, tied.bins[b].share);
    EXPECT_EQ(turned.bins[b].prediction, tied.bins[b].prediction);
    all += tied.bins[b].labels;
  }
  EXPECT_EQ(all, 1000);
  EXPECT_TRUE(calibration_curve({}, {}).bins.empty());
}

/// A prediction that most labels share makes one large bin; those behind it are no smaller for it.
TEST(MetricsTest, CalibrationBinsBehindTiesHaveEqualCounts) {
  Samples s(1000);
  for (size_t i = 0; i < 600; ++i) s.predictions[i] = 0;
  const CalibrationCurve curve = calibration_curve(s.predictions, s.labels, 10);
  ASSERT_EQ(curve.bins.size(), 5u);
  EXPECT_EQ(curve.bins[0].labels, 600);
  for (size_t b = 1; b < 5; ++b) EXPECT_EQ(curve.bins[b].labels, 100);
  // Counts that bins do not divide, and fewer labels than bins.
  const std::span<const float> p = s.predictions, l = s.labels;
  for (const size_t n : {3, 10, 25, 395}) {
    int64_t all = 0;
    const CalibrationCurve some = calibration_curve(p.last(n), l.last(n), 10);
    for (const CalibrationCurve::Bin& bin : some.bins) {
      all += bin.labels;
      EXPECT_GE(bin.labels, static_cast<int64_t>(n) / 10);
      EXPECT_LE(bin.labels, static_cast<int64_t>(n) / 10 + 1);
    }
    EXPECT_EQ(all, static_cast<int64_t>(n));
    EXPECT_EQ(some.bins.size(), std::min<size_t>(n, 10));
  }
}

TEST(MetricsTest, BinnedAucFindsTheBinInFloat) {
  // 0.7f is a little less than 0.7, but 0.7f * 10 rounds to 7.
  const std::vector<float> predictions = {0.7f}, labels = {1.f};
  BinnedAuc auc(10);
  auc.add(predictions, labels, {});
  EXPECT_EQ(auc.positive()[7], 1.0);
}

TEST(MetricsTest, BinnedAucIsCloseToTheExactOne) {
  const Samples s(2000);
  BinnedAuc auc;
  auc.add(s.predictions, s.labels, s.weights);
  EXPECT_NEAR(auc.value(), exact_auc(s.predictions, s.labels, s.weights), 1e-4);
  BinnedAuc unweighted;
  unweighted.add(s.predictions, s.labels, {});
  EXPECT_NEAR(unweighted.value(), exact_auc(s.predictions, s.labels), 1e-4);
}

TEST(MetricsTest, BinnedAucEdges) {
  BinnedAuc auc(4);
  EXPECT_EQ(auc.value(), 0.5);
  const float inf = std::numeric_limits<float>::infinity();
  auc.add(std::vector<float>{-3.f, 0.f, 0.25f, 0.2499f, 1.f, inf, std::nanf("")},
          std::vector<float>(7, 1.f), {});
  EXPECT_EQ(std::vector<double>(auc.positive().begin(), auc.positive().end()),
            (std::vector<double>{4, 1, 0, 2}));
  EXPECT_EQ(auc.value(), 0.5);  // no negatives
  auc.reset();
  EXPECT_EQ(auc.positive()[0], 0.0);
  auc.add(std::vector<float>{0.9f, 0.1f}, std::vector<float>{1.f, 0.f}, {});
  EXPECT_EQ(auc.value(), 1.0);
}

TEST(MetricsTest, PartsMergeToTheWhole) {
  const Samples a(100, 1), b(150, 20);
  BinnedAuc whole, left, right;
  NormalizedEntropy ne_whole, ne_left, ne_right;
  for (const Samples* s : {&a, &b}) {
    whole.add(s->predictions, s->labels, {});
    ne_whole.add(s->predictions, s->labels, {});
  }
  left.add(a.predictions, a.labels, {});
  right.add(b.predictions, b.labels, {});
  left.merge(right);
  EXPECT_EQ(left.value(), whole.value());
  ne_left.add(a.predictions, a.labels, {});
  ne_right.add(b.predictions, b.labels, {});
  ne_left.merge(ne_right);
  EXPECT_NEAR(ne_left.value(), ne_whole.value(), 1e-14);
  EXPECT_EQ(ne_left.accuracy(), ne_whole.accuracy());
  EXPECT_NEAR(ne_left.calibration(), ne_whole.calibration(), 1e-14);

  BinnedAuc coarse(10);
  try {
    left.merge(coarse);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
}

TEST(MetricsTest, NormalizedEntropyValues) {
  const std::vector<float> predictions = {0.5f, 0.25f, 0.75f, 1.0f}, labels = {1, 0, 0, 1};
  const std::vector<float> weights = {1, 2, 1, 4};
  NormalizedEntropy ne;
  EXPECT_EQ(ne.value(), 0.0);
  EXPECT_EQ(ne.accuracy(), 0.0);
  EXPECT_EQ(ne.calibration(), 0.0);
  ne.add(predictions, labels, weights);
  const double entropy = 1 + 2 * -std::log2(0.75) + 2 + 4 * -std::log2(1 - 1e-12);
  const double base = -(5 * std::log2(5.0 / 8) + 3 * std::log2(3.0 / 8));
  EXPECT_NEAR(ne.cross_entropy_sum, entropy, 1e-12);
  EXPECT_NEAR(ne.value(), entropy / base, 1e-12);
  EXPECT_DOUBLE_EQ(ne.accuracy(), 7.0 / 8);
  EXPECT_DOUBLE_EQ(ne.calibration(), (0.5 + 0.5 + 0.75 + 4) / 5);
  EXPECT_EQ(ne.positive_labels, 5.0);
  EXPECT_EQ(ne.negative_labels, 3.0);
  EXPECT_EQ(ne.weighted_num_samples, 8.0);
}

TEST(MetricsTest, PredictingTheBaseRateGivesOne) {
  NormalizedEntropy ne;
  ne.add(std::vector<float>(8, 0.25f), std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0}, {});
  EXPECT_NEAR(ne.value(), 1.0, 1e-12);
}

}  // namespace
}  // namespace segue::ops
