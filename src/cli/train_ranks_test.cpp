// `segue train` on several ranks: --ranks and mpirun, stopped, killed, resumed.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
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
  void TearDown() override {
    fs::remove_all(folder_);
    if (!mpi_folder_.empty()) fs::remove_all(mpi_folder_);
  }

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

  /// Until there is something to go on from: writing goes on in the background.
  void wait_for_checkpoint(const std::string& run_name) const {
    const base::Stopwatch watch;
    while (watch.seconds() < 40) {
      std::error_code none;
      for (const auto& entry : fs::directory_iterator(path(run_name) + "/checkpoints", none)) {
        if (entry.path().filename().string().starts_with("step-")) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    FAIL() << "no checkpoint in " << run_name;
  }

  /// The process that is this rank of a launcher.
  static pid_t rank_of(const Process& launcher, int rank) {
    const std::string pid = std::to_string(launcher.pid());
    std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
    for (pid_t child = 0; children >> child;) {
      std::ifstream environment("/proc/" + std::to_string(child) + "/environ");
      for (std::string setting; std::getline(environment, setting, '\0');) {
        for (const char* name : {"SEGUE_RANK=", "OMPI_COMM_WORLD_RANK="}) {
          if (setting == name + std::to_string(rank)) return child;
        }
      }
    }
    ADD_FAILURE() << "no rank " << rank << " of process " << pid;
    return -1;
  }

  void expect_same_runs(const std::string& a, const std::string& b) const {
    EXPECT_EQ(lasting_metrics(path(a)), lasting_metrics(path(b)));
    EXPECT_TRUE(newest_arrays(path(a)) == newest_arrays(path(b)));
  }

  /// mpirun with a folder of its own, as several that start together trip over a common one.
  std::vector<std::string> mpirun_command(int ranks, const std::vector<std::string>& more = {}) {
    if (mpi_folder_.empty()) {
      mpi_folder_ = "/tmp/segue-mpi-XXXXXX";  // short: a socket's path has 108 characters
      EXPECT_NE(::mkdtemp(mpi_folder_.data()), nullptr);
    }
    std::vector<std::string> command = {
        "mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to",
        "none",   "--mca",           "orte_tmpdir_base",    mpi_folder_};
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), {"-n", std::to_string(ranks)});
    return command;
  }

  /// The same without --ranks, for mpirun.
  static std::vector<std::string> without_ranks(std::vector<std::string> command) {
    const auto option = std::ranges::find(command, "--ranks");
    command.erase(option, option + 2);
    return command;
  }

  /// How 4 ranks are started, and what happens to one of them in mid-training.
  struct Trouble {
    int signal = 0;
    double timeout = 20;       // of the ranks
    double most_seconds = 10;  // until all have ended
    bool by_mpirun = false;
    std::vector<std::string> mpirun_options = {};
    bool others_speak = true;  // each names the culprit
  };

  /// Runs 4 ranks, sends a signal to one of them in mid-training, and goes on with the same
  /// command: it must end like a run that nothing happened to.
  Outcome survive(const Trouble& trouble) {
    // Long enough for a checkpoint to be written before the end, also on a busy machine.
    constexpr int kRanks = 4, kSteps = 600;
    const auto start = [&](const std::vector<std::string>& command) {
      return trouble.by_mpirun
                 ? Process(mpirun_command(kRanks, trouble.mpirun_options), without_ranks(command))
                 : Process(command);
    };
    EXPECT_EQ(run_process(arguments("straight", kRanks, kSteps)).code, 0);
    const std::vector<std::string> command = arguments(
        "broken", kRanks, kSteps,
        {"comm.timeout_seconds=" + std::to_string(trouble.timeout), "parallel.pipeline=on"});
    Process process = start(command);
    wait_for_step("broken", 25);
    wait_for_checkpoint("broken");
    const pid_t victim = rank_of(process, 2);
    if (victim > 0) ::kill(victim, trouble.signal);
    const base::Stopwatch watch;
    const Outcome outcome = process.wait();
    EXPECT_LT(watch.seconds(), base::kSlowness * trouble.most_seconds);
    // Who waits for a rank that waits for the culprit names that one; one at least knows.
    int spoken = 0, named = 0;
    std::istringstream lines(outcome.err);
    for (std::string line; std::getline(lines, line);) {
      const bool launcher = line.starts_with("segue: rank ");  // which repeats the first of them
      if (launcher || line.find("segue: error: ") == std::string::npos) continue;
      ++spoken;
      EXPECT_TRUE(contains(line, "group `")) << line;
      EXPECT_TRUE(contains(line, ", step ")) << line;
      named += line.find("rank 2") != std::string::npos;
      EXPECT_FALSE(contains(line, ", step 0:")) << line;
    }
    if (trouble.others_speak) {
      EXPECT_GE(spoken, kRanks - 1) << outcome.err;  // mpirun wakes a stopped one before it ends it
      EXPECT_GE(named, 1) << outcome.err;
    }
    // With patience: on a busy machine a rank may not answer for seconds.
    Process second = start(arguments("broken", kRanks, kSteps, {"parallel.pipeline=on"}));
    const Outcome again = second.wait();
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(count(again.err, "resuming from "), 1) << again.err;
    expect_same_runs("broken", "straight");
    return outcome;
  }

  std::string mpi_folder_;
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
  EXPECT_TRUE(contains(last.err, "resuming from "));
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
      arguments("stopped", 3, steps, {"checkpoint.every_steps=0", "parallel.pipeline=on"});
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

/// The terminal is gone: the launcher has it from the system, the ranks from the launcher.
TEST_F(TrainRanks, SighupStopsAllRanksWithACheckpoint) {
  const std::vector<std::string> command =
      arguments("hung up", 2, 3'000, {"checkpoint.every_steps=0"});
  // These tests may themselves run under nohup, which lasts.
  Process process(command, [] { return ::signal(SIGHUP, SIG_DFL) != SIG_ERR; });
  wait_for_step("hung up", 5);
  process.kill(SIGHUP);
  const Outcome o = process.wait();
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(count(o.err, "asked to stop: saving step"), 1) << o.err;
  EXPECT_FALSE(newest_arrays(path("hung up")).empty());
}

TEST_F(TrainRanks, SighupUnderNohupIsIgnored) {
  Process process(arguments("run", 2, 100), [] { return ::signal(SIGHUP, SIG_IGN) != SIG_ERR; });
  wait_for_step("run", 5);
  process.kill(SIGHUP);
  const Outcome o = process.wait();
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.err, "done: ")) << o.err;
}

/// The launcher keeps it for ranks that it has not started.
TEST_F(TrainRanks, AnEarlySigusr1StopsAllRanksAfterTheFirstStep) {
  const Outcome o =
      run_signalled_at_config(arguments("run", 2, 1'000), path("small.toml"), SIGUSR1);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(count(o.err, "asked to stop: saving step 1"), 1) << o.err;
}

TEST_F(TrainRanks, AKilledRankEndsAllAndTheRunGoesOnInTheSameBits) {
  const Outcome o = survive({.signal = SIGKILL});
  EXPECT_EQ(o.code, 128 + SIGKILL);
  EXPECT_TRUE(contains(o.err, "segue: rank 2 failed first (signal 9)"));
}

/// The others wait for the timeout; then the stopped one is killed after the launcher's grace time.
using SlowTrainRanks = TrainRanks;
TEST_F(SlowTrainRanks, AStoppedRankEndsAllAndTheRunGoesOnInTheSameBits) {
  const Outcome o = survive({.signal = SIGSTOP, .timeout = 3, .most_seconds = 3 + 10 + 5});
  EXPECT_EQ(o.code, kExitPeer);
  EXPECT_TRUE(contains(o.err, "did not answer within 3 s")) << o.err;
}

/// While step i computes, batch i + 1 is prepared and batch i + 2 is balanced, on threads of their
/// own. In some steps of many: on a busy machine not in every one.
TEST_F(TrainRanks, TraceShowsTheNextTwoBatchesMadeWhileOneIsTrained) {
  constexpr size_t kSteps = 64;
  const Outcome o = run_process(
      arguments("run", 2, kSteps, {"trace.steps=[4]", "trace.active=61", "parallel.pipeline=on"}));
  ASSERT_EQ(o.code, 0) << o.err;
  const fs::path file = *fs::directory_iterator(path("run") + "/trace");
  const nlohmann::json trace = nlohmann::json::parse(base::read_file(file.string()));
  struct Span {
    double start = 0, end = 0;
    int64_t thread = 0;
    bool overlaps(const Span& other) const {
      return thread != other.thread && start < other.end && other.start < end;
    }
  };
  // One per step and in their order; the last is that of the last step.
  const auto spans = [&](const std::string& name) {
    std::vector<Span> found;
    for (const nlohmann::json& e : trace["traceEvents"]) {
      if (e["name"] != name || e["ph"] != "X") continue;
      const double start = e["ts"];
      found.push_back({start, start + static_cast<double>(e["dur"]), e["tid"]});
    }
    std::ranges::sort(found, {}, &Span::start);
    return found;
  };
  const std::vector<Span> forward = spans("tokens forward"), backward = spans("tokens backward"),
                          prepare = spans("prepare batch"), balance = spans("balance");
  ASSERT_EQ(forward.size(), kSteps - 3);
  ASSERT_EQ(backward.size(), kSteps - 3);
  constexpr size_t kLooked = 50;
  ASSERT_GE(prepare.size(), kLooked);
  ASSERT_GE(balance.size(), kLooked);
  const auto of = [&](const std::vector<Span>& of_steps, size_t step) {
    return of_steps[of_steps.size() - 1 - (kSteps - step)];
  };
  int prepared = 0, balanced = 0, both = 0;
  for (size_t step = kSteps - kLooked + 1; step + 2 <= kSteps; ++step) {
    const Span compute{of(forward, step).start, of(backward, step).end, of(forward, step).thread};
    prepared += compute.overlaps(of(prepare, step + 1));
    balanced += compute.overlaps(of(balance, step + 2));
    both += of(prepare, step + 1).overlaps(of(balance, step + 2));
  }
  EXPECT_GT(prepared, 0);
  EXPECT_GT(balanced, 0);
  EXPECT_GT(both, 0);
  EXPECT_FALSE(spans("all-reduce").empty());
  for (const char* name : {"pipeline: balance", "pipeline: prepare"}) {
    int threads = 0;
    for (const nlohmann::json& e : trace["traceEvents"]) {
      threads += e["ph"] == "M" && e["name"] == "thread_name" && e["args"]["name"] == name;
    }
    EXPECT_EQ(threads, 1) << name;
  }
}

TEST_F(TrainRanks, RunsUnderMpirunAndGoesOnWithout) {
  SKIP_WITHOUT_MPIRUN();
  Process process(mpirun_command(2), without_ranks(arguments("run", 2, 8)));
  const Outcome o = process.wait();
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

/// mpirun ends the others at once; which rank it was, mpirun says.
TEST_F(SlowTrainRanks, AKilledRankUnderMpirunEndsAllAndTheRunGoesOnInTheSameBits) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome o = survive({.signal = SIGKILL, .by_mpirun = true, .others_speak = false});
  EXPECT_EQ(o.code, 128 + SIGKILL);
  EXPECT_TRUE(contains(o.err + o.out, "rank 2")) << o.err;
}

/// With this option mpirun leaves the others alone: they notice, and speak.
TEST_F(SlowTrainRanks, OthersOfAKilledRankMaySpeakUnderMpirun) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome o = survive({.signal = SIGKILL,
                             .timeout = 3,
                             .most_seconds = 3 + 10,
                             .by_mpirun = true,
                             .mpirun_options = {"--mca", "orte_enable_recovery", "1"}});
  EXPECT_TRUE(contains(o.err, "did not answer within 3 s")) << o.err;
}

TEST_F(SlowTrainRanks, AStoppedRankUnderMpirunEndsAllAndTheRunGoesOnInTheSameBits) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome o =
      survive({.signal = SIGSTOP, .timeout = 3, .most_seconds = 3 + 10 + 5, .by_mpirun = true});
  EXPECT_NE(o.code, 0);
  EXPECT_TRUE(contains(o.err, "did not answer within 3 s")) << o.err;
}

TEST_F(TrainRanks, WhatAllRanksFindWrongIsSaidOnceUnderMpirun) {
  SKIP_WITHOUT_MPIRUN();
  const std::pair<const char*, const char*> settings[] = {
      {"model.layer=3", "model.layer"},
      {"parallel.tensor_parallel=2", "does not divide the 3 rank(s)"}};
  for (const auto& [setting, message] : settings) {
    Process process(mpirun_command(3), without_ranks(arguments("bad", 3, 2, {setting})));
    const Outcome o = process.wait();
    EXPECT_EQ(o.code, kExitUsage) << o.err;
    EXPECT_EQ(count(o.err, "segue: error: "), 1) << o.err;
    EXPECT_TRUE(contains(o.err, message)) << o.err;
    EXPECT_FALSE(base::exists(path("bad")));
  }
}

}  // namespace
}  // namespace segue::cli
