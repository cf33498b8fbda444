#include "report/mlperf/eval_grid.h"

#include <gtest/gtest.h>

namespace segue::report {
namespace {

struct Row {
  int64_t batch, steps_nearest, steps_up, threshold, block, first_nearest;
};

// Computed with Python from the two statements of the rule.
constexpr Row kRows[] = {
    {512, 4474, 4475, 45'875'200, 21, 48'104'448},  {1024, 2237, 2238, 46'639'786, 21, 48'104'448},
    {2048, 1119, 1119, 48'168'960, 22, 50'417'664}, {4096, 559, 560, 51'227'306, 23, 52'662'272},
    {8192, 280, 280, 57'344'000, 25, 57'344'000},   {16384, 140, 140, 69'577'386, 31, 71'106'560},
    {32768, 70, 70, 94'044'160, 41, 94'044'160},    {65536, 35, 35, 142'977'706, 63, 144'506'880},
};

TEST(EvalGrid, IsTheOneOfTheRules) {
  for (const Row& row : kRows) {
    const EvalGrid nearest = dlrmv4_eval_grid(row.batch, EvalRounding::kNearest);
    EXPECT_EQ(nearest.interval_steps, row.steps_nearest) << row.batch;
    EXPECT_EQ(nearest.interval_samples, row.steps_nearest * row.batch);
    EXPECT_EQ(nearest.threshold_samples, row.threshold);
    EXPECT_EQ(nearest.first_eval_samples, row.first_nearest);
    const EvalGrid up = dlrmv4_eval_grid(row.batch, EvalRounding::kUp);
    EXPECT_EQ(up.interval_steps, row.steps_up);
    EXPECT_EQ(up.first_eval_samples, row.block * row.steps_up * row.batch) << row.batch;
  }
}

TEST(EvalGrid, HalvesGoToTheEvenNeighbour) {
  EXPECT_EQ(eval_interval_steps(0.5, 5, 1, EvalRounding::kNearest), 2);
  EXPECT_EQ(eval_interval_steps(0.5, 7, 1, EvalRounding::kNearest), 4);
  EXPECT_EQ(eval_interval_steps(0.5, 5, 1, EvalRounding::kUp), 3);
  EXPECT_EQ(eval_interval_steps(0.001, 10, 8192, EvalRounding::kNearest), 1);  // never none
  EXPECT_EQ(eval_interval_steps(0.001, 10, 8192), 1);
}

TEST(EvalGrid, SkippingByShareStartsWhereTheRuleDoes) {
  struct Case {
    int64_t batch, skip;
    double share;
  };
  for (const Case& c : {Case{8192, 6992, 0.025}, {16384, 4237, 0.0303}, {32768, 2867, 0.041}}) {
    const int64_t skip = eval_skip_steps(c.share, kDlrmv4TrainSamples, c.batch);
    EXPECT_EQ(skip, c.skip);
    const EvalGrid grid = dlrmv4_eval_grid(c.batch);
    int64_t step = 1;
    while (!eval_due(step, grid.interval_steps, skip)) ++step;
    EXPECT_EQ(step * c.batch, grid.first_eval_samples);
  }
  EXPECT_FALSE(eval_due(0, 5, 0));
  EXPECT_TRUE(eval_due(5, 5, 5));
  EXPECT_FALSE(eval_due(5, 5, 6));
}

}  // namespace
}  // namespace segue::report
