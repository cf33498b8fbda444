#include "ops/metrics.h"

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
