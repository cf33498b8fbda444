// `segue prep --append` as a process: killed, in company, without disk; and training on what it
// makes, while it grows.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/file.h"
#include "base/test_util.h"
#include "base/time.h"
#include "cli/run_test_util.h"
#include "cli/test_util.h"
#include "data/prep/prep_test_util.h"
#include "data/store/segments.h"
#include "data/store/store_verify.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;
using base::contains;
using data::StoreBytes;

/// A synthetic log in one piece and cut by time into raw folders part0, part1 and part2.
class GrowingLog : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = base::temp_path("folder");
    fs::remove_all(folder_);
    const Outcome o = run({"synth", "--out", path("raw"), "--format", "csv", "--users", "60",
                           "--days", "10", "--items", "300", "--events-per-user", "60"});
    ASSERT_EQ(o.code, kExitOk) << o.err;
    base::write_file(path("config.toml"), kSmallConfig);
    std::istringstream log(base::read_file(path("raw") + kEvents));
    std::string header, line;
    std::getline(log, header);
    std::vector<std::string> parts(kParts, header + "\n");
    while (std::getline(log, line)) {
      const int64_t time = std::stoll(line.substr(line.find(',') + 1));
      parts[static_cast<size_t>(time > 5 * kDay) + static_cast<size_t>(time > 7 * kDay)] +=
          line + "\n";
    }
    for (size_t i = 0; i < kParts; ++i) {
      const std::string part = path("part" + std::to_string(i));
      base::make_folders(fs::path(part + kEvents).parent_path());
      base::write_file(part + kEvents, parts[i]);
      if (i > 0) continue;
      for (const char* name :
           {"/artist_item_mapping.csv", "/album_item_mapping.csv", "/schema.toml"}) {
        fs::copy(path("raw") + name, part + name);
      }
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::vector<std::string> prep_arguments(const std::string& raw, const std::string& store) const {
    std::vector<std::string> all = {"prep",      "--raw",    path(raw), "--out",
                                    path(store), "--memory", "128MiB"};
    if (raw == "part1" || raw == "part2") {
      all.emplace_back("--append");
      return all;
    }
    all.insert(all.end(), {"--history", "60", "--min-history", "5"});
    for (const char* set : {"test_seconds=0", "gap_seconds=0", "train_days=0"}) {
      all.insert(all.end(), {"--set", set});
    }
    return all;
  }
  void prepare(const std::string& raw, const std::string& store) const {
    const Outcome o = run_process(prep_arguments(raw, store));
    ASSERT_EQ(o.code, kExitOk) << o.err;
  }
  /// Everything but indexes, which training makes, and what killed processes leave.
  StoreBytes bytes(const std::string& store) const {
    StoreBytes all = data::store_bytes(path(store));
    std::erase_if(all, [](const auto& file) { return file.first.starts_with(".tmp/"); });
    return all;
  }

  std::vector<std::string> train_arguments(const std::string& store, const std::string& run_folder,
                                           const std::vector<std::string>& sets,
                                           int ranks = 1) const {
    std::vector<std::string> all = {"train", path("config.toml"), "--run", path(run_folder)};
    if (ranks > 1) all.insert(all.end(), {"--ranks", std::to_string(ranks)});
    std::vector<std::string> settings = {"data.store=" + path(store),
                                         "data.stream.min_history=5",
                                         "data.stream.window_seconds=43200",
                                         "data.stream.eval=next_window",
                                         "data.batch_size=32",
                                         "eval.every_windows=1",
                                         "train.log_every=1"};
    settings.insert(settings.end(), sets.begin(), sets.end());
    for (const std::string& s : settings) all.insert(all.end(), {"--set", s});
    return all;
  }
  void train(const std::string& store, const std::string& run_folder,
             const std::vector<std::string>& sets = {}, int ranks = 1) const {
    const Outcome o = run_process(train_arguments(store, run_folder, sets, ranks));
    ASSERT_EQ(o.code, kExitOk) << o.err;
  }
  std::vector<std::string> evaluations(const std::string& run_folder) const {
    if (!fs::exists(path(run_folder) + "/metrics.jsonl")) return {};
    std::vector<std::string> lines = lasting_metrics(path(run_folder));
    std::erase_if(lines, [](const std::string& line) { return !contains(line, "\"eval\""); });
    return lines;
  }
  void wait_for_evaluations(const std::string& run_folder, size_t count) const {
    const base::Stopwatch watch;
    while (evaluations(run_folder).size() < count) {
      ASSERT_LT(watch.seconds(), 60) << "waiting for evaluation " << count;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  static constexpr const char* kEvents = "/flat/50m/multi_event.csv";
  static constexpr size_t kParts = 3;
  static constexpr int64_t kDay = 86400;
  std::string folder_;
};

using AppendCommand = GrowingLog;

TEST_F(AppendCommand, AddsSegmentsThatInspectAndVerifyKnow) {
  prepare("part0", "store");
  const Outcome o = run(prep_arguments("part1", "store"));
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_TRUE(contains(o.out, "appended as segue/segments/000001"));
  prepare("part2", "store");
  EXPECT_EQ(run({"prep", "--out", path("store"), "--verify"}).code, kExitOk);
  const Outcome facts = run({"inspect", path("store"), "--verify"});
  EXPECT_EQ(facts.code, kExitOk) << facts.err;
  EXPECT_TRUE(contains(facts.out, "segue/segments/000002"));

  const Outcome again = run(prep_arguments("part2", "store"));
  EXPECT_EQ(again.code, kExitUsage);
  EXPECT_TRUE(contains(again.err, "rows are not later than"));
  std::vector<std::string> both = prep_arguments("part2", "store");
  both.emplace_back("--overwrite");
  EXPECT_EQ(run(both).code, kExitUsage);

  fs::remove_all(path("store") + "/segue/segments/000001");
  const Outcome missing = run({"inspect", path("store")});
  EXPECT_EQ(missing.code, kExitCorrupt);
  EXPECT_TRUE(contains(missing.err, "000001: is missing"));
}

TEST_F(AppendCommand, KilledAtAnyMomentTheSegmentIsThereOrNot) {
  prepare("part0", "store");
  const StoreBytes before = bytes("store");
  fs::copy(path("store"), path("whole"), fs::copy_options::recursive);
  const base::Stopwatch watch;
  prepare("part1", "whole");
  const double seconds = watch.seconds();
  const StoreBytes after = bytes("whole");
  std::mt19937_64 random(3);
  int killed = 0;
  for (int i = 0; i < 12; ++i) {
    Process process(prep_arguments("part1", "store"));
    const double share = static_cast<double>(random() % 1000) / 1000;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds * (0.3 + 0.8 * share)));
    process.kill();
    killed += process.wait().signal == SIGKILL;
    const bool appended = data::count_segments(path("store")) == 1;
    EXPECT_TRUE(data::same_store(appended ? after : before, bytes("store"))) << i;
    if (appended) fs::remove_all(path("store") + "/segue/segments");
  }
  EXPECT_GT(killed, 0);
  prepare("part1", "store");
  EXPECT_TRUE(data::same_store(after, data::store_bytes(path("store"))));
  EXPECT_TRUE(data::verify_store(path("store")).ok());
}

TEST_F(AppendCommand, FilesThatCannotGrowLeaveTheStoreAsItWas) {
  prepare("part0", "store");
  const StoreBytes before = bytes("store");
  for (rlim_t bytes_left = 0; bytes_left <= 4000; bytes_left += 500) {
    Process process(prep_arguments("part1", "store"), [bytes_left] {
      const struct rlimit limit = {bytes_left, bytes_left};
      return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
    });
    EXPECT_NE(process.wait().code, kExitOk) << bytes_left;
    EXPECT_TRUE(data::same_store(before, bytes("store"))) << bytes_left;
  }
  prepare("part1", "store");
}

TEST_F(AppendCommand, OneAtATime) {
  prepare("part0", "store");
  Process first(prep_arguments("part1", "store"));
  const base::Stopwatch watch;
  while (!fs::exists(path("store") + "/.tmp/store") && watch.seconds() < 20) {
  }
  first.kill(SIGSTOP);
  const Outcome second = run_process(prep_arguments("part1", "store"));
  first.kill(SIGCONT);
  EXPECT_EQ(first.wait().code, kExitOk);
  // The first one may have been done before it was stopped.
  EXPECT_NE(second.code, kExitOk);
  EXPECT_TRUE(contains(second.err, "another process is writing this store") ||
              contains(second.err, "rows are not later than"));
  EXPECT_EQ(data::count_segments(path("store")), 1);
}

// ---- training ----

using SlowGrowingLog = GrowingLog;

TEST_F(SlowGrowingLog, TrainingOnSegmentsIsTrainingOnOnePrep) {
  prepare("raw", "whole");
  for (const char* raw : {"part0", "part1", "part2"}) prepare(raw, "store");
  for (const int ranks : {1, 2}) {
    const std::string suffix = std::to_string(ranks);
    train("whole", "a" + suffix, {}, ranks);
    train("store", "b" + suffix, {}, ranks);
    EXPECT_EQ(lasting_metrics(path("a" + suffix)), lasting_metrics(path("b" + suffix)));
    EXPECT_TRUE(newest_arrays(path("a" + suffix)) == newest_arrays(path("b" + suffix)));
  }
}

/// What a run has when everything that is complete was trained.
const std::vector<std::string> kFollow = {"data.follow=true", "data.follow_seconds=0.1"};

TEST_F(SlowGrowingLog, FollowingTrainsWhatIsAppendedAndEvaluatesItBefore) {
  prepare("raw", "whole");
  for (const int ranks : {1, 2}) {
    const std::string suffix = std::to_string(ranks), store = "store" + suffix;
    const std::string expected = "a" + suffix, followed = "b" + suffix;
    train("whole", expected, kFollow, ranks);
    prepare("part0", store);
    train(store, "c" + suffix, kFollow, ranks);
    const size_t of_part0 = evaluations("c" + suffix).size(), of_all = evaluations(expected).size();
    ASSERT_GT(of_part0, 0U);
    ASSERT_GT(of_all, of_part0);

    Process process(train_arguments(store, followed, {"data.follow=true"}, ranks));
    wait_for_evaluations(followed, of_part0);
    prepare("part1", store);
    prepare("part2", store);
    wait_for_evaluations(followed, of_all);
    process.kill(SIGTERM);
    const Outcome o = process.wait();
    EXPECT_EQ(o.code, kExitOk) << o.err;
    EXPECT_TRUE(contains(o.err, "waiting for `segue prep --append`"));
    EXPECT_TRUE(contains(o.err, "stopped; the same command resumes from here"));
    EXPECT_EQ(evaluations(followed), evaluations(expected));
    EXPECT_TRUE(newest_arrays(path(followed)) == newest_arrays(path(expected)));

    // The log is over: its last window is evaluated on, as in a run that never followed.
    train(store, followed, {}, ranks);
    train("whole", "d" + suffix, {}, ranks);
    EXPECT_EQ(evaluations(followed), evaluations("d" + suffix));
    EXPECT_TRUE(newest_arrays(path(followed)) == newest_arrays(path("d" + suffix)));
  }
}

TEST_F(SlowGrowingLog, FollowingIsStoppedAndResumedAnywhere) {
  prepare("raw", "whole");
  train("whole", "expected", kFollow);
  const std::vector<std::string> follow = {"data.follow=true", "data.follow_seconds=1"};
  std::mt19937_64 random(5);
  for (const char* raw : {"part0", "part1", "part2"}) {
    prepare(raw, "store");
    for (int i = 0; i < 3; ++i) {
      Process process(train_arguments("store", "run", follow));
      std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 700));
      process.kill(i == 0 ? SIGKILL : SIGTERM);
      process.wait();
    }
  }
  train("store", "run", kFollow);
  EXPECT_EQ(evaluations("run"), evaluations("expected"));
  EXPECT_TRUE(newest_arrays(path("run")) == newest_arrays(path("expected")));
}

TEST_F(GrowingLog, FollowingNeedsAnOpenEnd) {
  prepare("part0", "store");
  const auto error = [&](const std::string& set) {
    const Outcome o = run(train_arguments("store", "run", {"data.follow=true", set}));
    EXPECT_EQ(o.code, kExitUsage);
    return o.err;
  };
  EXPECT_TRUE(contains(error("data.stream.eval=fixed"), "data.follow = true needs"));
  EXPECT_TRUE(contains(error("data.stream.train_windows=3"), "data.follow = true needs"));
  EXPECT_TRUE(contains(error("eval.every_windows=2"), "set eval.every_windows = 1"));
  EXPECT_TRUE(contains(error("mlperf.log=true"), "mlperf.log off"));
}

}  // namespace
}  // namespace segue::cli
