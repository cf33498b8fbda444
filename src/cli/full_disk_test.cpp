// `segue train` on a disk that is nearly full, and after there is room again.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/disk_test_util.h"
#include "base/test_util.h"
#include "base/time.h"
#include "cli/run_test_util.h"
#include "cli/test_util.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;
using base::contains;

class FullDisk : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = base::temp_path("folder");
    base::make_folders(disk());
    base::write_file(folder_ + "/config.toml", kSmallConfig);
    const Outcome o =
        run({"synth", "--out", folder_ + "/store", "--users", "120", "--days", "12", "--items",
             "1500", "--events-per-user", "90", "--history", "60", "--min-history", "20"});
    ASSERT_EQ(o.code, kExitOk) << o.err;
    ASSERT_EQ(run(arguments(folder_ + "/straight")).code, kExitOk);
    metrics_ = lasting_metrics(folder_ + "/straight");
    arrays_ = newest_arrays(folder_ + "/straight");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string disk() const { return folder_ + "/disk"; }
  std::vector<std::string> arguments(const std::string& run_folder) const {
    std::vector<std::string> all = {
        "train", folder_ + "/config.toml", "--run", run_folder, "--steps", "30"};
    for (const std::string& set :
         {"data.store=" + folder_ + "/store", std::string("checkpoint.every_steps=5"),
          std::string("train.log_every=1"), std::string("mlperf.log=true"),
          std::string("trace.steps=[4]")}) {
      all.insert(all.end(), {"--set", set});
    }
    return all;
  }
  /// Everything of an uninterrupted run is there, and every event of the MLPerf log once.
  bool is_whole(const std::string& run_folder) const {
    if (lasting_metrics(run_folder) != metrics_ || newest_arrays(run_folder) != arrays_) {
      return false;
    }
    const std::string log = base::read_file(run_folder + "/mlperf.log");
    for (const char* key : {"init_start", "run_start", "train_samples", "run_stop"}) {
      const std::string quoted = fmt::format("\"key\": \"{}\"", key);
      const size_t first = log.find(quoted);
      if (first == std::string::npos || log.find(quoted, first + 1) != std::string::npos) {
        return false;
      }
    }
    return true;
  }

  /// How a run on a disk of this size went, and whether it is whole once there is room.
  enum Result { kRanWell, kLastSaveFailed, kNoStart, kEnded, kNotResumed, kNotWhole };
  int train_and_resume(const std::string& size) const {
    return base::on_small_disk(disk(), size, [&]() -> int {
      const std::string run_folder = disk() + "/run";
      const Outcome o = run_process(arguments(run_folder));
      Result result = kRanWell;
      if (o.code != kExitOk) {
        const bool begun = base::exists(run_folder + "/config.toml");
        result = contains(o.err, "the last checkpoint: ") ? kLastSaveFailed
                 : begun                                  ? kEnded
                                                          : kNoStart;
        if (o.code != kExitFile) result = kEnded;
      }
      if (result == kEnded) std::fprintf(stderr, "%s\n%s\n", size.c_str(), o.err.c_str());
      if (result == kEnded) return result;
      if (!base::resize_disk(disk(), "64m")) return kNotResumed;
      const Outcome again = run_process(arguments(run_folder));
      if (again.code != kExitOk) {
        std::fprintf(stderr, "%s\n%s\n", size.c_str(), again.err.c_str());
        return kNotResumed;
      }
      return is_whole(run_folder) ? result : kNotWhole;
    });
  }

  std::string folder_;
  std::vector<std::string> metrics_;
  std::map<std::string, std::string> arrays_;
};

/// Sizes from where nothing fits to where all does.
TEST_F(FullDisk, CostsCheckpointsNeverTheRun) {
  for (const int kib : {16, 700, 6400}) {
    const int result = train_and_resume(fmt::format("{}k", kib));
    if (result == base::kNoMount) GTEST_SKIP() << "no right to mount";
    EXPECT_TRUE(result == kRanWell || result == kLastSaveFailed || result == kNoStart)
        << kib << " KiB: " << result;
  }
}

using SlowFullDisk = FullDisk;
TEST_F(SlowFullDisk, CostsCheckpointsNeverTheRun) {
  const char* const chosen = std::getenv("SEGUE_DISK_SIZES");  // how many
  const int sizes = chosen != nullptr ? std::atoi(chosen) : 12;
  std::map<int, int> counts;
  for (int i = 0; i < sizes; ++i) {
    const int kib = 8 + i * 14000 / sizes;
    const int result = train_and_resume(fmt::format("{}k", kib));
    if (result == base::kNoMount) GTEST_SKIP() << "no right to mount";
    EXPECT_TRUE(result == kRanWell || result == kLastSaveFailed || result == kNoStart)
        << kib << " KiB: " << result;
    ++counts[result];
  }
  std::printf("%d ran well, %d lacked room for the last checkpoint, %d could not start\n",
              counts[kRanWell], counts[kLastSaveFailed], counts[kNoStart]);
  EXPECT_GT(counts[kRanWell], 0);
  EXPECT_GT(counts[kLastSaveFailed], 0);
}

/// Another program takes all there is while a run goes on, and gives it back.
TEST_F(FullDisk, WhatOthersFillTheDiskWithIsWaitedFor) {
  const int code = base::on_small_disk(disk(), "24m", [&]() -> int {
    const std::string run_folder = disk() + "/run", ballast = disk() + "/ballast";
    Process process(arguments(run_folder));
    const base::Stopwatch watch;
    while (!base::exists(run_folder + "/checkpoints") && watch.seconds() < 30) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    process.kill(SIGSTOP);
    const int fd = ::open(ballast.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const std::string block(4096, 'x');
    while (::write(fd, block.data(), block.size()) > 0) {
    }
    ::close(fd);
    process.kill(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    fs::remove(ballast);
    Outcome o = process.wait();
    if (contains(o.err, "the last checkpoint: ")) o = run_process(arguments(run_folder));
    if (o.code != kExitOk) std::fprintf(stderr, "%s\n", o.err.c_str());
    if (o.code != kExitOk) return 1;
    return is_whole(run_folder) ? 0 : 2;
  });
  if (code == base::kNoMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(code, 0);
}

/// Where a full disk shall end the run, it does.
TEST_F(FullDisk, EndsARunThatMayNotGoOn) {
  const int code = base::on_small_disk(disk(), "700k", [&]() -> int {
    std::vector<std::string> a = arguments(disk() + "/run");
    a.insert(a.end(), {"--set", "checkpoint.on_failure=stop"});
    const Outcome o = run_process(a);
    return o.code == kExitFile && contains(o.err, "No space left on device") &&
                   !contains(o.err, "the last checkpoint")
               ? 0
               : 1;
  });
  if (code == base::kNoMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace segue::cli
