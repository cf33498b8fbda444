#include "report/trace_plan.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace segue::report {
namespace {

using Windows = std::vector<std::string>;

/// The windows that a training loop over [1, steps] would save, as "first..last".
Windows saved(const TracePlan& plan, int64_t steps) {
  Windows windows;
  int64_t first = -1;
  for (int64_t step = 1; step <= steps; ++step) {
    if (plan.starts_at(step)) first = step;
    if (plan.ends_after(step)) {
      windows.push_back(std::to_string(first) + ".." + std::to_string(step));
    }
  }
  return windows;
}

TEST(TracePlan, WindowsApartTouchingAndOverlapping) {
  EXPECT_EQ(saved({{20, 5}, 3}, 40), (Windows{"5..7", "20..22"}));
  EXPECT_EQ(saved({{5, 8}, 3}, 40), (Windows{"5..7", "8..10"}));
  EXPECT_EQ(saved({{5, 7, 7, 9}, 3}, 40), (Windows{"5..11"}));
  EXPECT_EQ(saved({{5}, 1}, 40), (Windows{"5..5"}));
}

TEST(TracePlan, NothingToRecord) {
  EXPECT_TRUE(saved({{}, 3}, 10).empty());
  EXPECT_TRUE(saved({{5}, 0}, 10).empty());
  EXPECT_FALSE(TracePlan({{}, 3}).any());
  EXPECT_FALSE(TracePlan({{5}, 0}).any());
}

TEST(TracePlan, WaitWarmUpActiveRepeat) {
  TracePlan plan{.active = 2, .wait = 3, .warm_up = 1, .repeat = 2};
  EXPECT_EQ(saved(plan, 40), (Windows{"5..6", "11..12"}));
  for (int64_t step = 1; step <= 20; ++step) {
    EXPECT_EQ(plan.rehearses(step), step == 4 || step == 10) << step;
  }
  plan.repeat = -1;
  EXPECT_EQ(saved(plan, 24), (Windows{"5..6", "11..12", "17..18", "23..24"}));
  plan = {.active = 3, .repeat = 2};
  EXPECT_EQ(saved(plan, 20), (Windows{"1..3", "4..6"}));
}

TEST(TracePlan, LastStep) {
  EXPECT_EQ((TracePlan{{20, 5}, 3}.last_step()), 22);
  EXPECT_EQ((TracePlan{.active = 2, .wait = 3, .warm_up = 1, .repeat = 2}.last_step()), 12);
  EXPECT_EQ((TracePlan{.repeat = -1}.last_step()), INT64_MAX);
  EXPECT_EQ(TracePlan{}.last_step(), 0);
}

TEST(TracePlan, WindowsOfAListAreRehearsedToo) {
  const TracePlan plan{.steps = {1, 6}, .active = 2, .warm_up = 2};
  for (int64_t step = 1; step <= 9; ++step) {
    EXPECT_EQ(plan.rehearses(step), step == 4 || step == 5) << step;
  }
}

TEST(TracePlan, WindowCutByTheEndOfTraining) {
  const TracePlan plan{{5}, 10};
  EXPECT_TRUE(saved(plan, 8).empty());
  EXPECT_EQ(plan.window_of(7), 5);
}

TEST(TracePlan, EveryRankHasItsFile) {
  EXPECT_EQ(trace_file_name(5, 0, 1), "trace_step5.json");
  EXPECT_EQ(trace_file_name(5, 2, 4), "trace_step5_rank2.json");
}

}  // namespace
}  // namespace segue::report
