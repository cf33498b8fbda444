// `segue train` on several ranks: --ranks and mpirun, stopped, killed, gone on with.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_util.h"
#include "base/time.h"
#include "cli/run_test_util.h"
#include "cli/test_util.h"
#include "comm/process_test_util.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;
using base::contains;

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

class TrainRanks : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = base::temp_path("ranks");
    fs::create_directories(folder_);
    base::write_file(folder_ + "/small.toml", kSmallConfig);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  /// A run on random samples.
  std::vector<std::string> arguments(const std::string& run_name, int ranks, int steps,
                                     const std::vector<std::string>& sets = {}) const {
    std::vector<std::string> all = {
        "train",   path("small.toml"),    "--run",   path(run_name),
        "--steps", std::to_string(steps), "--ranks", std::to_string(ranks)};
    std::vector<std::string> settings = {"data.random.lengths.high=18", "data.batch_size=16",
                                         "eval.every_windows=0", "eval.max_batches=2"};
    settings.insert(settings.end(), sets.begin(), sets.end());
    for (const std::string& s : settings) all.insert(all.end(), {"--set", s});
    all.insert(all.end(), {"--allow-config-change", "train.steps"});
    return all;
  }

  nlohmann::json last_line(const std::string& run_name, const std::string& event) const {
    std::ifstream in(path(run_name) + "/metrics.jsonl");
    nlohmann::json found;
    for (std::string line; std::getline(in, line);) {
      const nlohmann::json j = nlohmann::json::parse(line);
      if (j["event"] == event) found = j;
    }
    return found;
  }

  /// Until the run has written a line of metrics for this step or a later one.
  void wait_for_step(const std::string& run_name, int64_t step) const {
    const base::Stopwatch watch;
    while (watch.seconds() < 40) {
      std::ifstream in(path(run_name) + "/metrics.jsonl");
      for (std::string line; std::getline(in, line);) {
        const size_t at = line.find("\"step\": ");
        if (at != std::string::npos && std::stoll(line.substr(at + 8)) >= step) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    FAIL() << "no step " << step << " in " << run_name;
  }

  /// The process that is this rank of a launcher.
  static pid_t rank_of(const Process& launcher, int rank) {
    const std::string pid = std::to_string(launcher.pid());
    std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
    const std::string wanted = "SEGUE_RANK=" + std::to_string(rank);
    for (pid_t child = 0; children >> child;) {
      std::ifstream environment("/proc/" + std::to_string(child) + "/environ");
      for (std::string setting; std::getline(environment, setting, '\0');) {
        if (setting == wanted) return child;
      }
    }
    ADD_FAILURE() << "no rank " << rank << " of process " << pid;
    return -1;
  }

  void expect_same_runs(const std::string& a, const std::string& b) const {
    EXPECT_EQ(lasting_metrics(path(a)), lasting_metrics(path(b)));
    EXPECT_TRUE(newest_arrays(path(a)) == newest_arrays(path(b)));
  }

  /// Runs 4 ranks, sends `signal` to one of them in mid-training, and goes on with the same
  /// command: it must end like a run that nothing happened to.
  Outcome survive(int signal, double timeout, double most_seconds) {
    const std::string seconds = "comm.timeout_seconds=" + std::to_string(timeout);
    const int steps = 120;
    EXPECT_EQ(run_process(arguments("straight", 4, steps)).code, 0);
    const std::vector<std::string> command = arguments("broken", 4, steps, {seconds});
    Process process(command);
    wait_for_step("broken", 25);
    const pid_t victim = rank_of(process, 2);
    if (victim > 0) ::kill(victim, signal);
    const base::Stopwatch watch;
    const Outcome outcome = process.wait();
    EXPECT_LT(watch.seconds(), most_seconds);
    EXPECT_NE(outcome.code, 0);
    for (const char* start :
         {"segue: error: ", "rank 1: segue: error: ", "rank 3: segue: error: "}) {
      const size_t at = ("\n" + outcome.err).find(std::string("\n") + start);
      EXPECT_NE(at, std::string::npos) << start << "\n" << outcome.err;
      if (at == std::string::npos) continue;
      const std::string line = outcome.err.substr(at, outcome.err.find('\n', at) - at);
      EXPECT_TRUE(contains(line, "group `"));
      EXPECT_TRUE(contains(line, ", step "));
      EXPECT_TRUE(contains(line, "rank 2 "));
      EXPECT_FALSE(contains(line, ", step 0:"));
    }
    const Outcome again = run_process(command);
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(count(again.err, "going on from "), 1) << again.err;
    expect_same_runs("broken", "straight");
    return outcome;
  }

  std::string folder_;
};

TEST_F(TrainRanks, RunGoesOnWithOtherNumbersOfRanks) {
  const Outcome o = run_process(arguments("run", 2, 8));
  ASSERT_EQ(o.code, 0) << o.err;
  for (const char* once : {"run folder", "model: ", "tables: ", "2 ranks, each: ", "done: "}) {
    EXPECT_EQ(count(o.err, once), 1) << once << "\n" << o.err;
  }
  EXPECT_FALSE(contains(o.err, "rank 1"));
  nlohmann::json line = last_line("run", "train");
  EXPECT_EQ(line["ranks"], 2);
  EXPECT_TRUE(line.contains("imbalance_after"));
  EXPECT_GT(line["bytes_sent"]["dense"], 0);

  ASSERT_EQ(run_process(arguments("run", 3, 16)).code, 0);
  EXPECT_EQ(last_line("run", "train")["ranks"], 3);
  const Outcome last = run_process(arguments("run", 1, 24));
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_TRUE(contains(last.err, "going on from "));
  ASSERT_EQ(run_process(arguments("alone", 1, 24)).code, 0);
  const double loss = last_line("alone", "eval")["loss"];
  EXPECT_NEAR(last_line("run", "eval")["loss"], loss, 1e-5 * loss);
  EXPECT_EQ(run({"checkpoint", "verify", path("run")}).code, 0);
}

TEST_F(TrainRanks, RanksOfAStoreTrainAsOne) {
  ASSERT_EQ(run({"synth", "--out", path("store"), "--users", "40", "--days", "6", "--items", "300",
                 "--events-per-user", "40", "--history", "40", "--min-history", "20"})
                .code,
            0);
  for (const char* ranks : {"1", "2"}) {
    const Outcome o = run_process({"train", path("small.toml"), "--ranks", ranks, "--run",
                                   path(ranks), "--set", "data.store=" + path("store"), "--set",
                                   "data.batch_size=50", "--set", "eval.every_windows=2"});
    ASSERT_EQ(o.code, 0) << o.err;
  }
  const nlohmann::json one = last_line("1", "eval"), two = last_line("2", "eval");
  EXPECT_EQ(one["step"], two["step"]);
  EXPECT_EQ(one["samples"], two["samples"]);
  EXPECT_EQ(one["eval_samples"], two["eval_samples"]);
  EXPECT_NEAR(one["loss"], two["loss"], 1e-5 * static_cast<double>(one["loss"]));
  EXPECT_NEAR(one["auc"], two["auc"], 1e-4);
}

TEST_F(TrainRanks, RunFolderHasADefault) {
  std::vector<std::string> command = arguments("", 2, 2);
  const auto run_option = std::ranges::find(command, "--run");
  command.erase(run_option, run_option + 2);
  Process process(command, [this] { return ::chdir(folder_.c_str()) == 0; });
  const Outcome o = process.wait();
  ASSERT_EQ(o.code, 0) << o.err;
  const auto runs = fs::directory_iterator(path("runs"));
  EXPECT_EQ(std::distance(begin(runs), end(runs)), 1);
}

TEST_F(TrainRanks, BadNumbersAreSaidOnce) {
  for (const char* ranks : {"0", "-2", "two", "1000000"}) {
    const Outcome o = run({"train", path("small.toml"), "--ranks", ranks});
    EXPECT_EQ(o.code, kExitUsage) << ranks;
    EXPECT_TRUE(contains(o.err, "--ranks")) << ranks;
  }
  const std::pair<const char*, const char*> settings[] = {
      {"parallel.tensor_parallel=2", "does not divide the 3 rank(s)"},
      {"comm.transport=self", "comm.transport"},
      {"comm.transport=mpi", "comm.transport"}};
  for (const auto& [setting, message] : settings) {
    const Outcome o = run_process(arguments("bad", 3, 2, {setting}));
    EXPECT_EQ(o.code, kExitUsage) << o.err;
    EXPECT_EQ(count(o.err, message), 1) << o.err;
    EXPECT_FALSE(base::exists(path("bad")));
  }
  Process nested(arguments("bad", 2, 2), [] {
    return ::setenv("SEGUE_RANK", "0", 1) == 0 && ::setenv("SEGUE_RANKS", "2", 1) == 0;
  });
  const Outcome o = nested.wait();
  EXPECT_EQ(o.code, kExitUsage);
  EXPECT_TRUE(contains(o.err, "leave out --ranks"));
}

TEST_F(TrainRanks, SigtermStopsAllRanksWithACheckpoint) {
  const int steps = 60;
  ASSERT_EQ(run_process(arguments("straight", 3, steps)).code, 0);
  const std::vector<std::string> command =
      arguments("stopped", 3, steps, {"checkpoint.every_steps=0"});
  Process process(command);
  wait_for_step("stopped", 10);
  process.kill(SIGTERM);
  const Outcome o = process.wait();
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(count(o.err, "asked to stop: saving step"), 1) << o.err;
  EXPECT_FALSE(contains(o.err, "done: "));
  const Outcome again = run_process(command);
  EXPECT_EQ(again.code, 0) << again.err;
  expect_same_runs("stopped", "straight");
}

TEST_F(TrainRanks, AKilledRankEndsAllAndTheRunGoesOnInTheSameBits) {
  const Outcome o = survive(SIGKILL, 20, 10);
  EXPECT_EQ(o.code, 128 + SIGKILL);
  EXPECT_TRUE(contains(o.err, "segue: rank 2 failed first (signal 9)"));
}

/// The others wait for the timeout; then the stopped one is killed after the launcher's grace time.
using SlowTrainRanks = TrainRanks;
TEST_F(SlowTrainRanks, AStoppedRankEndsAllAndTheRunGoesOnInTheSameBits) {
  const Outcome o = survive(SIGSTOP, 3, 3 + 10 + 5);
  EXPECT_EQ(o.code, kExitPeer);
  EXPECT_TRUE(contains(o.err, "rank 2 did not answer within 3 s"));
}

TEST_F(TrainRanks, TraceShowsTheNextBatchPreparedWhileOneIsTrained) {
  const Outcome o = run_process(
      arguments("run", 2, 64, {"trace.steps=[4]", "trace.active=60", "parallel.pipeline=on"}));
  ASSERT_EQ(o.code, 0) << o.err;
  const fs::path file = *fs::directory_iterator(path("run") + "/trace");
  const nlohmann::json trace = nlohmann::json::parse(base::read_file(file.string()));
  struct Span {
    double start, end;
    int64_t thread;
  };
  const auto spans = [&](const std::string& name) {
    std::vector<Span> found;
    for (const nlohmann::json& e : trace["traceEvents"]) {
      if (e["name"] != name || e["ph"] != "X") continue;
      const double start = e["ts"];
      found.push_back({start, start + static_cast<double>(e["dur"]), e["tid"]});
    }
    return found;
  };
  std::vector<Span> compute = spans("tokens forward");
  std::ranges::copy(spans("tokens backward"), std::back_inserter(compute));
  int overlapping = 0;  // in some step of many: on a busy machine not in every one
  for (const char* name : {"balance", "prepare batch"}) {
    EXPECT_FALSE(spans(name).empty()) << name;
    for (const Span& s : spans(name)) {
      overlapping += std::ranges::any_of(compute, [&](const Span& c) {
        return c.thread != s.thread && c.start < s.end && s.start < c.end;
      });
    }
  }
  EXPECT_GT(overlapping, 0);
  EXPECT_FALSE(spans("all-reduce").empty());
  int threads = 0;
  for (const nlohmann::json& e : trace["traceEvents"]) {
    threads += e["ph"] == "M" && e["args"]["name"] == "batch pipeline";
  }
  EXPECT_EQ(threads, 1);
}

/// mpirun with a folder of its own, as several that start together trip over a common one.
std::vector<std::string> mpirun_command(int ranks, const std::string& folder) {
  fs::create_directories(folder);
  return {"mpirun",
          "--oversubscribe",
          "--allow-run-as-root",
          "--bind-to",
          "none",
          "--mca",
          "orte_tmpdir_base",
          folder,
          "-n",
          std::to_string(ranks)};
}

TEST_F(TrainRanks, RunsUnderMpirunAndGoesOnWithout) {
  SKIP_WITHOUT_MPIRUN();
  std::vector<std::string> under_mpi = arguments("run", 2, 8);
  const auto ranks_option = std::ranges::find(under_mpi, "--ranks");
  under_mpi.erase(ranks_option, ranks_option + 2);
  std::string folder = "/tmp/segue-mpi-XXXXXX";  // short: a socket's path has 108 characters
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  Process process(mpirun_command(2, folder), under_mpi);
  const Outcome o = process.wait();
  fs::remove_all(folder);
  ASSERT_EQ(o.code, 0) << o.err;
  for (const char* once : {"run folder", "2 ranks, each: ", "done: "}) {
    EXPECT_EQ(count(o.err, once), 1) << once << "\n" << o.err;
  }
  EXPECT_EQ(last_line("run", "train")["ranks"], 2);
  // Over TCP: the same bits.
  ASSERT_EQ(run_process(arguments("tcp", 2, 8)).code, 0);
  expect_same_runs("run", "tcp");
  EXPECT_EQ(run_process(arguments("run", 2, 12)).code, 0);
}

}  // namespace
}  // namespace segue::cli
