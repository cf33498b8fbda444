#include "train/step/health.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace segue::train {
namespace {

TEST(ZScoreTest, AJumpStandsOutAndNoiseDoesNot) {
  ZScore score;
  double largest = 0;
  for (int i = 0; i < 500; ++i) {
    largest = std::max(largest, std::abs(score.add(1 + 0.1 * std::sin(i * 1.7))));
  }
  EXPECT_LT(largest, 3);
  EXPECT_GT(score.add(2), 10);
  EXPECT_LT(ZScore(score).add(-5), -10);
}

TEST(ZScoreTest, IsZeroUntilThereIsSomethingToCompareWith) {
  ZScore score;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(score.add(i % 2 == 0 ? 100 : -100), 0);
  ZScore constant;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(constant.add(3), 0);
}

TEST(ZScoreTest, NonFiniteValuesDoNotCount) {
  ZScore score;
  score.add(1);
  const ZScore before = score;
  EXPECT_EQ(score.add(std::numeric_limits<double>::quiet_NaN()), 0);
  EXPECT_EQ(score.add(std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(score.count, before.count);
  EXPECT_EQ(score.mean, before.mean);
}

}  // namespace
}  // namespace segue::train
