#include "train/run/watchdog.h"

#include <chrono>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "base/stage.h"
#include "base/test_util.h"

namespace segue::train {
namespace {

TEST(WatchdogTest, SaysWhereEachThreadIs) {
  std::promise<void> release;
  std::promise<void> ready;
  std::thread stuck([&] {
    base::name_thread("stuck worker");
    const base::Stage outer("step");
    const base::Stage inner("wait for rows");
    ready.set_value();
    release.get_future().wait();
  });
  ready.get_future().wait();
  std::promise<std::string> said;
  bool first = true;
  {
    const Watchdog watchdog(0.02, [&](const std::string& text) {
      if (std::exchange(first, false)) said.set_value(text);
    });
    const std::string text = said.get_future().get();
    EXPECT_TRUE(base::contains(text, "no step has ended"));
    EXPECT_TRUE(base::contains(text, "stuck worker: step > wait for rows for"));
  }
  release.set_value();
  stuck.join();
}

TEST(WatchdogTest, IsSilentWhileStepsEnd) {
  std::atomic<int> said = 0;
  {
    Watchdog watchdog(10, [&](const std::string&) { ++said; });
    for (int i = 0; i < 10; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      watchdog.alive();
    }
  }
  EXPECT_EQ(said, 0);
}

TEST(WatchdogTest, ZeroSecondsMeansNever) {
  std::atomic<int> said = 0;
  {
    const Watchdog watchdog(0, [&](const std::string&) { ++said; });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(said, 0);
}

}  // namespace
}  // namespace segue::train
