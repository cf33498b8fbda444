#include "data/inspect/time_span.h"

#include <limits>

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::data {
namespace {

TEST(TimeSpan, OnlyOddLogsAreDoubted) {
  constexpr int64_t kDay = 86400, kNow = 1'700'000'000;
  EXPECT_EQ(doubt_times(kNow, kNow + 30 * kDay), "");
  EXPECT_EQ(doubt_times(0, 300 * kDay), "") << "times since the log began";
  EXPECT_EQ(doubt_times(0, 20 * kDay), "") << "a short one";
  EXPECT_TRUE(base::contains(doubt_times(kNow, kNow + kDay / 4), "0.25 days"));
  EXPECT_TRUE(base::contains(doubt_times(kNow / 1000, kNow / 1000 + 30 * kDay / 1000),
                             "from 1970-01-20T16:13:20Z to 1970-01-20T16:56:32Z, as if seconds"));
  // Twenty years of seconds in thousandths last a week.
  EXPECT_TRUE(base::contains(doubt_times(kNow / 1000 - 7 * kDay, kNow / 1000), "as if seconds"));
  EXPECT_TRUE(base::contains(doubt_times(kNow * 1000, (kNow + kDay) * 1000), "reach up to"));
  EXPECT_TRUE(base::contains(doubt_times(5, kNow), "53 years"));
  EXPECT_TRUE(base::contains(doubt_times(std::numeric_limits<int64_t>::min(), kNow), "times span"));
}

}  // namespace
}  // namespace segue::data
