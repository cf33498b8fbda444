#include "base/log.h"

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/progress.h"
#include "base/test_util.h"
#include "base/time.h"

namespace segue::base {
namespace {

class Log : public testing::Test {
 protected:
  void TearDown() override {
    set_log_level(LogLevel::kInfo);
    set_log_rank(0, 1);
  }

  template <class Action>
  static std::string captured(Action action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(Log, LineHasTimeLevelAndText) {
  const auto matches = [](const std::string& line, const char* pattern) {
    return std::regex_match(line, std::regex(pattern));
  };
  EXPECT_TRUE(matches(captured([] { log_info("hello"); }), "\\d\\d:\\d\\d:\\d\\d hello\n"));
  EXPECT_TRUE(matches(captured([] { log_warning("hm"); }), "\\d\\d:\\d\\d:\\d\\d W hm\n"));
  EXPECT_TRUE(matches(captured([] { log_error("oh"); }), "\\d\\d:\\d\\d:\\d\\d E oh\n"));
}

TEST_F(Log, LevelFilters) {
  EXPECT_EQ(captured([] { log_debug("quiet"); }), "");
  set_log_level(LogLevel::kDebug);
  EXPECT_TRUE(contains(captured([] { log_debug("loud"); }), "loud"));
  set_log_level(LogLevel::kError);
  EXPECT_EQ(captured([] { log_warning("quiet"); }), "");
}

TEST_F(Log, OtherRanksOnlyWarnAndSayWhoTheyAre) {
  set_log_rank(3, 4);
  EXPECT_EQ(captured([] { log_info("progress"); }), "");
  EXPECT_TRUE(contains(captured([] { log_warning("slow disk"); }), "W [rank 3] slow disk\n"));
  EXPECT_EQ(detail::format_log_line(LogLevel::kInfo, "a", 0, 4), "a\n");
}

TEST_F(Log, OnceSpeaksOncePerKey) {
  static int run = 0;  // keys are remembered for the life of the process; the test may be repeated
  const std::string key = "log_test." + std::to_string(run++);
  const std::string text = captured([&] {
    for (int i = 0; i < 3; ++i) log_once(LogLevel::kInfo, key + ".a", "first");
    log_once(LogLevel::kInfo, key + ".b", "second");
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_TRUE(contains(text, "first"));
  EXPECT_TRUE(contains(text, "second"));
}

TEST_F(Log, LinesOfSeveralThreadsStayWhole) {
  const std::string text = captured([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 50; ++i)
          log_info("thread " + std::to_string(t) + " line " + std::to_string(i));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::set<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    ASSERT_GT(line.size(), 9u);
    lines.insert(line.substr(9));
  }
  EXPECT_EQ(lines.size(), 200u);
  EXPECT_EQ(lines.count("thread 3 line 49"), 1u);
}

TEST_F(Log, WipesALineThatStandsOpen) {
  const std::string text = captured([] {
    detail::write_stderr("50%", true);
    detail::write_stderr("60%", true);
    detail::write_stderr("done\n", false);
    detail::write_stderr("next\n", false);
  });
  EXPECT_EQ(text, "50%\r\033[K60%\r\033[Kdone\nnext\n");
}

TEST(ProgressFormat, ThousandsAreSeparated) {
  EXPECT_EQ(with_separators("999"), "999");
  EXPECT_EQ(with_separators("-1234567.8901"), "-1,234,567.8901");
}

TEST(ProgressFormat, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(7), "7");
  EXPECT_EQ(format_count(0.5), "0.50");
  EXPECT_EQ(format_count(980), "980");
  EXPECT_EQ(format_count(999.7), "1.00k");
  EXPECT_EQ(format_count(12'345), "12.3k");
  EXPECT_EQ(format_count(999'600), "1.00M");
  EXPECT_EQ(format_count(4.56e9), "4.56G");
  EXPECT_EQ(format_count(1e18), "1e+18");
}

TEST(ProgressFormat, Bytes) {
  EXPECT_EQ(format_bytes(0), "0.0 MiB");
  EXPECT_EQ(format_bytes(1.5 * (1 << 20)), "1.5 MiB");
  EXPECT_EQ(format_bytes((1 << 30) - 1.0), "1024.0 MiB");
  EXPECT_EQ(format_bytes(1 << 30), "1.0 GiB");
}

TEST(ProgressFormat, Durations) {
  EXPECT_EQ(format_duration(0.4), "0:00");
  EXPECT_EQ(format_duration(7.2), "0:07");
  EXPECT_EQ(format_duration(59.7), "1:00");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(3 * 86400 + 4 * 3600), "3d 04h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(1e300), "?");
}

TEST(ProgressFormat, Lines) {
  EXPECT_EQ(format_progress("train", 450, 1000, "samples", 10.0, false, "loss 0.69"),
            "train  45%  450/1.00k samples  45 samples/s  left 0:12  loss 0.69");
  EXPECT_EQ(format_progress("train", 999, 1000, "samples", 10.0, false, ""),
            "train  99%  999/1.00k samples  99.9 samples/s  left 0:00");
  EXPECT_EQ(format_progress("read", 2000, 0, "rows", 4.0, false, ""),
            "read  2.00k rows  500 rows/s");
  EXPECT_EQ(format_progress("read", 0, 10, "rows", 0.0, false, ""), "read  0%  0/10 rows");
  EXPECT_EQ(format_progress("train", 600, 1000, "steps", 10.0, false, "", 500),
            "train  60%  600/1.00k steps  10 steps/s  left 0:40");
  EXPECT_EQ(format_progress("read", 10, 10, "rows", 90.0, true, ""),
            "read  100%  10/10 rows  0.11 rows/s  took 1:30");
}

TEST(ProgressFormat, NarrowTerminalsKeepTheLastFacts) {
  const std::string line = "train  45%  450/1.00k samples  45 samples/s  loss 0.69  AUC 0.7046";
  EXPECT_EQ(fit_columns(line, 100), line);
  EXPECT_EQ(fit_columns(line, 50), "train  45%  45 samples/s  loss 0.69  AUC 0.7046");
  EXPECT_EQ(fit_columns(line, 35), "train  45%  loss 0.69  AUC 0.7046");
  EXPECT_EQ(fit_columns(line, 24), "train  45%  AUC 0.7046");
  EXPECT_EQ(fit_columns(line, 8), "train  4");
  EXPECT_EQ(fit_columns("", 0), "");
}

TEST_F(Log, ProgressIsSparseWithoutATerminal) {
  const std::string text = captured([] {
    Progress progress("count", 1000, "steps");
    for (int64_t i = 1; i <= 1000; ++i) progress.update(i);
    progress.finish("all good");
    progress.finish();
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_TRUE(contains(text, "count  100%  1.00k/1.00k steps"));
  EXPECT_TRUE(contains(text, "all good"));
}

TEST_F(Log, AbandonedProgressSaysNothing) {
  EXPECT_EQ(captured([] { Progress progress("never", 10, "steps"); }), "");
}

TEST(Time, IsoFormat) {
  EXPECT_EQ(iso_time(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(iso_time(1'709'210'096), "2024-02-29T12:34:56Z");
  EXPECT_EQ(iso_time_now().size(), 20u);
  EXPECT_GT(unix_time_ms(), 1'600'000'000'000);
}

TEST(Time, StopwatchRuns) {
  Stopwatch watch;
  const double first = watch.seconds();
  EXPECT_GE(first, 0.0);
  EXPECT_GE(watch.seconds(), first);
}

}  // namespace
}  // namespace segue::base
