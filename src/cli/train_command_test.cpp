// `segue train` and what follows it, on a small store: killed, resumed, scored.

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

#include "base/file.h"
#include "base/test_util.h"
#include "base/time.h"
#include "cli/parquet.h"
#include "cli/run_test_util.h"
#include "cli/test_util.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;
using base::contains;

class TrainCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = base::temp_path("train");
    fs::create_directories(folder_);
    base::write_file(folder_ + "/config.toml", kSmallConfig);
    const Outcome o =
        run({"synth", "--out", store(), "--users", "120", "--days", "12", "--items", "1500",
             "--events-per-user", "90", "--history", "60", "--min-history", "20"});
    ASSERT_EQ(o.code, kExitOk) << o.err;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string store() const { return folder_ + "/store"; }
  std::vector<std::string> arguments(const std::string& run_name,
                                     std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"train", folder_ + "/config.toml",
                                    "--run", folder_ + "/" + run_name,
                                    "--set", "data.store=" + store()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> lasting(const std::string& run_name) const {
    return lasting_metrics(folder_ + "/" + run_name);
  }
  std::map<std::string, std::string> final_arrays(const std::string& run_name) const {
    return newest_arrays(folder_ + "/" + run_name);
  }

  /// Kills a run again and again until it is done, then compares with one that was left alone.
  void survive(int kills, uint64_t seed, const std::vector<std::string>& more = {}) {
    const base::Stopwatch watch;
    ASSERT_EQ(run_process(arguments("straight", more)).code, 0);
    const double seconds = watch.seconds();
    std::mt19937_64 random(seed);
    int killed = 0;
    for (int i = 0; i < kills; ++i) {
      Process process(arguments("broken", more));
      const double share = static_cast<double>(random() % 1000) / 1000;
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds * 0.4 * share));
      process.kill();
      killed += process.wait().signal == SIGKILL;
    }
    EXPECT_GT(killed, kills / 4);
    const Outcome last = run_process(arguments("broken", more));
    ASSERT_EQ(last.code, 0) << last.err;
    EXPECT_EQ(lasting("broken"), lasting("straight"));
    EXPECT_TRUE(final_arrays("broken") == final_arrays("straight"));
  }

  std::string folder_;
};

TEST_F(TrainCommand, KilledRunsEndInTheSameBits) { survive(3, 7); }

/// Increments, tables of all kinds, and every checkpoint published.
class TablesTrainCommand : public TrainCommand {
 protected:
  void survive_publishing(int kills, uint64_t seed) {
    const std::string published = folder_ + "/published";
    survive(
        kills, seed,
        {"--set", "checkpoint.full_every=5",          "--set", "checkpoint.every_steps=2",
         "--set", "sparse.tables.0.kind=dynamic",     "--set", "sparse.tables.0.max_rows=512",
         "--set", "sparse.tables.1.placement=cached", "--set", "sparse.tables.1.cache_share=0.1",
         "--set", "sparse.tables.2.kind=dynamic",     "--set", "sparse.tables.2.max_rows=256",
         "--set", "sparse.tables.2.placement=host",   "--set", "publish.folder=" + published});
    const Outcome verified = run({"publish", "verify", published});
    EXPECT_EQ(verified.code, kExitOk) << verified.err;
    // What is served in the end is the last checkpoint.
    const Outcome again = run({"publish", folder_ + "/broken", "--to", published});
    EXPECT_TRUE(contains(again.out, "nothing was changed")) << again.out << again.err;
    EXPECT_EQ(run({"checkpoint", "verify", folder_ + "/broken"}).code, kExitOk);
  }
};

TEST_F(TablesTrainCommand, KilledRunsPublishAndEndInTheSameBits) { survive_publishing(3, 5); }

/// As one that was killed between its last checkpoint and the version of it.
TEST_F(TrainCommand, AFinishedRunPublishesWhatItHadNot) {
  ASSERT_EQ(run_process(arguments("run")).code, 0);
  const std::string published = folder_ + "/published";
  const std::vector<std::string> resume =
      arguments("run", {"--set", "publish.folder=" + published});
  for (const bool first : {true, false}) {
    const Outcome o = run_process(resume);
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_TRUE(contains(o.err, "is finished")) << o.err;
    EXPECT_EQ(contains(o.err, "as version 1"), first) << o.err;
  }
  const Outcome again = run({"publish", folder_ + "/run", "--to", published});
  EXPECT_TRUE(contains(again.out, "nothing was changed")) << again.out << again.err;
}

using SlowTrainCommand = TrainCommand;
TEST_F(SlowTrainCommand, TwentyFiveKillsEndInTheSameBits) { survive(25, 11); }
using SlowTablesTrainCommand = TablesTrainCommand;
TEST_F(SlowTablesTrainCommand, TwentyFiveKillsPublishAndEndInTheSameBits) {
  survive_publishing(25, 13);
}

TEST_F(TrainCommand, SigtermSavesAndExitsWithZero) {
  Process process(arguments("run", {"--set", "checkpoint.every_steps=0"}));
  const base::Stopwatch watch;
  const auto has_begun = [&] {
    return base::exists(folder_ + "/run/metrics.jsonl") &&
           !base::read_file(folder_ + "/run/metrics.jsonl").empty();
  };
  while (!has_begun() && watch.seconds() < 20) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  process.kill(SIGTERM);
  const Outcome o = process.wait();
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.err, "asked to stop") || contains(o.err, "done:"));
  const Outcome resumed = run_process({"train", "--run", folder_ + "/run"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(contains(resumed.err, "done:") || contains(resumed.err, "is finished"));
}

TEST_F(TrainCommand, Sigusr1BeforeTrainingIsNotForgotten) {
  const Outcome o = run_signalled_at_config(arguments("run"), folder_ + "/config.toml", SIGUSR1);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.err, "asked to stop: saving step 1")) << o.err;
}

TEST_F(TrainCommand, MlperfLogOfAResumedRunIsWhole) {
  const std::vector<std::string> more = {"--set", "mlperf.log=true"};
  Process process(arguments("run", more));
  const base::Stopwatch watch;
  while (!base::exists(folder_ + "/run/checkpoints") && watch.seconds() < 20) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  process.kill();
  process.wait();
  ASSERT_EQ(run_process(arguments("run", more)).code, 0);
  const std::string log = base::read_file(folder_ + "/run/mlperf.log");
  for (const char* key : {"init_start", "init_stop", "run_start", "run_stop", "train_samples",
                          "eval_samples", "global_batch_size"}) {
    const std::string quoted = std::string("\"key\": \"") + key + "\"";
    const size_t first = log.find(quoted);
    EXPECT_NE(first, std::string::npos) << key;
    EXPECT_EQ(log.find(quoted, first + 1), std::string::npos) << key << " is there twice";
  }
}

// No file may grow beyond the limit, as on a full disk: metrics and logs are small, checkpoints
// not.
TEST_F(TrainCommand, AFullDiskCostsACheckpointNotTheRun) {
  const std::vector<std::string> more = {"--steps", "10", "--allow-config-change", "train.steps"};
  ASSERT_EQ(run_process(arguments("run", more)).code, 0);
  std::vector<std::string> longer = arguments("run", more);
  std::ranges::replace(longer, std::string("10"), std::string("20"));
  Process full(longer, [] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{200'000, 200'000};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
  });
  const Outcome o = full.wait();
  EXPECT_EQ(o.code, kExitFile) << o.err;
  EXPECT_TRUE(contains(o.err, "training goes on"));     // step 14
  EXPECT_TRUE(contains(o.err, "the last checkpoint"));  // step 20 has to be there
  EXPECT_EQ(run({"checkpoint", "verify", folder_ + "/run"}).code, 0);
  const Outcome again = run_process(longer);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(contains(again.err, "step 10"));

  ASSERT_EQ(run_process(arguments("straight", {"--steps", "10"})).code, 0);
  std::vector<std::string> straight = longer;
  straight[3] = folder_ + "/straight";
  ASSERT_EQ(run_process(straight).code, 0);
  EXPECT_TRUE(final_arrays("run") == final_arrays("straight"));
}

/// People read that there is no entropy, programs the reference's number.
TEST_F(TrainCommand, EntropyOfOneClassIsNotShown) {
  const Outcome trained = run(arguments(
      "run", {"--steps", "2", "--set", "model.tasks=[{ name = \"never\", bit = 1024 }]"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(contains(trained.err, "AUC n/a (one class), NE n/a (one class) over")) << trained.err;
  EXPECT_TRUE(contains(base::read_file(folder_ + "/run/metrics.jsonl"), "\"one_class\": true"));
  const Outcome people = run({"eval", folder_ + "/run"});
  EXPECT_TRUE(contains(people.out, "n/a (one class)")) << people.out;
  const std::string json = run({"eval", folder_ + "/run", "--json"}).out;
  const std::string key = "\"normalized_entropy\": ";
  ASSERT_TRUE(contains(json, key)) << json;
  EXPECT_GT(std::stod(json.substr(json.find(key) + key.size())), 1e6) << json;
}

TEST_F(TrainCommand, EvalAgreesWithTheRun) {
  ASSERT_EQ(run(arguments("run")).code, 0);
  const std::vector<std::string> lines = lasting("run");
  const Outcome o = run({"eval", folder_ + "/run", "--baselines", "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const std::string& last_eval = lines[lines.size() - 2];
  const size_t at = last_eval.find("\"auc\": ");
  ASSERT_NE(at, std::string::npos);
  const double of_run = std::stod(last_eval.substr(at + 7));
  const double of_eval = std::stod(o.out.substr(o.out.find("\"auc\": ") + 7));
  EXPECT_NEAR(of_eval, of_run, 1e-6);
  EXPECT_TRUE(contains(o.out, "\"oracle\""));
  for (const char* key :
       {"\"auc_low\"", "\"best_baseline\"", "\"ranked_per_user\"", "\"calibration_curve\"",
        "\"calibration_error\"", "\"auc_by_earlier_events_of_the_user\"",
        "\"auc_by_earlier_events_of_the_item\""}) {
    EXPECT_TRUE(contains(o.out, key)) << key;
  }
  EXPECT_FALSE(contains(o.out, "trained_samples"));
  // A window that was trained says so; without details only the plain metrics are left.
  const Outcome seen = run({"eval", folder_ + "/run", "--window", "0"});
  EXPECT_TRUE(contains(seen.out, "all of these samples were trained on")) << seen.out;
  const Outcome bare = run({"eval", folder_ + "/run", "--set", "eval.details=off"});
  EXPECT_TRUE(contains(bare.out, "auc low")) << bare.out;
  EXPECT_FALSE(contains(bare.out, "calibration curve")) << bare.out;
  EXPECT_EQ(run({"eval", folder_ + "/run", "--window", "999"}).code, kExitOutOfRange);
  EXPECT_EQ(run({"eval", folder_ + "/store"}).code, kExitFile);
}

TEST_F(TrainCommand, ScoresAWindowAndPairs) {
  ASSERT_EQ(run(arguments("run", {"--steps", "5"})).code, 0);
  const std::string csv = folder_ + "/scores.csv";
  Outcome o = run({"score", folder_ + "/run", "--out", csv});
  ASSERT_EQ(o.code, 0) << o.err;
  std::istringstream lines(base::read_file(csv));
  std::string header, first;
  std::getline(lines, header);
  std::getline(lines, first);
  EXPECT_EQ(header, "user,item,time,label,listen_plus");
  // The same question as a pair gives the same answer.
  std::vector<std::string> cells;
  std::istringstream cell_text(first);
  for (std::string c; std::getline(cell_text, c, ',');) cells.push_back(c);
  ASSERT_EQ(cells.size(), 5u);
  base::write_file(folder_ + "/pairs.csv",
                   "user,item,time\n" + cells[0] + "," + cells[1] + "," + cells[2] + "\n");
  const std::string jsonl = folder_ + "/pairs.jsonl";
  o = run({"score", folder_ + "/run", "--pairs", folder_ + "/pairs.csv", "--out", jsonl});
  ASSERT_EQ(o.code, 0) << o.err;
  const std::string line = base::read_file(jsonl);
  EXPECT_TRUE(contains(line, "\"user\": " + cells[0]));
  EXPECT_NEAR(std::stod(line.substr(line.find("listen_plus") + 14)), std::stod(cells[4]), 1e-5);

  base::write_file(folder_ + "/pairs.csv", "user,item\n" + cells[0] + ",3\n");
  EXPECT_EQ(
      run({"score", folder_ + "/run", "--pairs", folder_ + "/pairs.csv", "--out", jsonl}).code, 0);
  base::write_file(folder_ + "/pairs.csv", "user,item\n999999,3\n");
  o = run({"score", folder_ + "/run", "--pairs", folder_ + "/pairs.csv", "--out", jsonl});
  EXPECT_EQ(o.code, kExitOutOfRange);
  EXPECT_TRUE(contains(o.err, "999999"));
  EXPECT_EQ(run({"score", folder_ + "/run", "--out", folder_ + "/x.txt"}).code, kExitUsage);
  const std::string pairs = folder_ + "/pairs.csv";
  o = run({"score", folder_ + "/run", "--pairs", pairs, "--out", folder_ + "/run/../pairs.csv"});
  EXPECT_EQ(o.code, kExitUsage);
  EXPECT_TRUE(contains(o.err, "--pairs")) << o.err;
  EXPECT_EQ(base::read_file(pairs), "user,item\n999999,3\n");
  if (parquet() != nullptr) {
    o = run({"score", folder_ + "/run", "--out", folder_ + "/scores.parquet"});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_GT(fs::file_size(folder_ + "/scores.parquet"), 100u);
  }
}

TEST_F(TrainCommand, WhatWasNotMeasuredIsNotSaid) {
  Outcome o = run(arguments("a", {"--set", "data.stream.eval_windows=0"}));
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_TRUE(contains(o.err, "no sample is held out")) << o.err;
  EXPECT_FALSE(contains(o.err, "held-out AUC")) << o.err;
  EXPECT_TRUE(contains(o.err, "no samples held out")) << o.err;
  EXPECT_EQ(run({"eval", folder_ + "/a"}).code, kExitOutOfRange);
  o = run({"score", folder_ + "/a", "--out", folder_ + "/none.csv"});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_TRUE(contains(o.err, "holds out no sample, so nothing is scored")) << o.err;

  o = run(
      arguments("b", {"--set", "data.batch_size=1000000", "--set", "data.stream.incomplete=drop"}));
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_TRUE(contains(o.err, "nothing was trained")) << o.err;
  EXPECT_FALSE(contains(o.err, "loss 0.0000")) << o.err;
}

TEST_F(TrainCommand, BenchStepTakesBatchesOfAStore) {
  const auto bench = [&](const std::string& from, std::vector<std::string> more) {
    more.insert(more.begin(), {"bench", "step", "--config", folder_ + "/config.toml", "--store",
                               from, "--json", "--repeat", "3", "--warm-up", "0"});
    return run(more);
  };
  const Outcome o = bench(store(), {"--set", "data.batch_size=16"});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_TRUE(contains(o.out, R"("name": "step", "set": "data.batch_size=16")")) << o.out;
  // Histories of 20 events at least, beside two contextual tokens and the candidate.
  EXPECT_TRUE(contains(o.out, R"("samples": 16, "tokens": 3)")) << o.out;
  EXPECT_TRUE(contains(o.out, "samples_per_s")) << o.out;

  const auto expect_error = [](const Outcome& failed, int code, const char* part) {
    EXPECT_EQ(failed.code, code) << failed.err;
    EXPECT_TRUE(contains(failed.err, part)) << failed.err;
  };
  expect_error(bench("/nowhere", {}), kExitFile, "/nowhere: no such folder");
  expect_error(bench(store(), {"--set", "data.batch_size=100000"}), kExitUsage,
               "no training window has the 100000 samples");
  expect_error(bench(store(), {"--set", "model.contextual.0.name=usr"}), kExitUsage, "usr");
  expect_error(run({"bench", "step", "--preset", "hstu"}), kExitUsage, "hstu-suite-zipf");
}

TEST_F(TrainCommand, BadStoresAndConfigsAreSaid) {
  Outcome o = run(arguments("a", {"--set", "data.store=/nowhere"}));
  EXPECT_EQ(o.code, kExitFile) << o.err;
  o = run(arguments("b", {"--set", "model.contextual.0.name=usr"}));
  EXPECT_EQ(o.code, kExitUsage) << o.err;
  EXPECT_TRUE(contains(o.err, "usr"));
  o = run(arguments("c", {"--set", "model.max_seq_len=3"}));
  EXPECT_EQ(o.code, kExitUsage) << o.err;
  EXPECT_TRUE(contains(o.err, "leaves no token"));
  o = run(arguments("d", {"--set", "eval.every_steps=3"}));
  EXPECT_EQ(o.code, kExitUsage) << o.err;
  EXPECT_TRUE(contains(o.err, "only one of"));
  EXPECT_FALSE(base::exists(folder_ + "/c/config.toml"));
  o = run({"train", "--run", folder_ + "/nothing"});
  EXPECT_EQ(o.code, kExitFile) << o.err;
  EXPECT_EQ(run({"train"}).code, kExitUsage);
}

TEST_F(TrainCommand, DynamicTablesAreTrainedInspectedAndScored) {
  std::vector<std::string> dynamic;
  for (const char* table : {"0", "1", "2", "3"}) {
    const std::string key = std::string("sparse.tables.") + table;
    for (const std::string& set : {key + ".kind=dynamic", key + ".max_rows=512"}) {
      dynamic.insert(dynamic.end(), {"--set", set});
    }
  }
  dynamic.insert(dynamic.end(), {"--set", "sparse.tables.0.evict=lfu", "--steps", "20"});
  ASSERT_EQ(run(arguments("run", dynamic)).code, kExitOk);
  const std::string path = folder_ + "/run";
  const Outcome all = run({"inspect", path});
  EXPECT_EQ(all.code, kExitOk) << all.err;
  for (const char* text : {"table item", "table cross", "load factor", "hottest rows", "evicted"}) {
    EXPECT_TRUE(contains(all.out, text));
  }
  const Outcome one = run({"inspect", path + "/checkpoints", "--table", "item", "--json"});
  EXPECT_TRUE(contains(one.out, R"("kind": "dynamic")"));
  EXPECT_TRUE(contains(one.out, "uses,_mean"));
  EXPECT_FALSE(contains(one.out, "table_cross"));
  const Outcome unknown = run({"inspect", path, "--table", "itme"});
  EXPECT_EQ(unknown.code, kExitUsage);
  EXPECT_TRUE(contains(unknown.err, "did you mean `item`?"));
  EXPECT_TRUE(contains(run({"inspect", store(), "--table", "item"}).err, "neither"));

  EXPECT_EQ(run({"score", path, "--out", folder_ + "/scores.csv"}).code, kExitOk);
  const Outcome whole =
      run({"checkpoint", "export", path, "--tables", "--out", folder_ + "/w.safetensors"});
  EXPECT_NE(whole.code, kExitOk);
  EXPECT_TRUE(contains(whole.err, "dynamic"));
  const Outcome plan = run({"plan", folder_ + "/run/config.toml", "--ranks", "2"});
  EXPECT_TRUE(contains(plan.out, "grows to 512 rows"));
}

}  // namespace
}  // namespace segue::cli
