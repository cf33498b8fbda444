// What a run says of its held-out samples beside AUC: simple rules, users, items, calibration.

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "comm/world.h"
#include "data/inspect/inspect.h"
#include "data/synth/synth_output.h"
#include "train/run/loop.h"
#include "train/run/loop_test_util.h"
#include "train/run/scoring.h"
#include "train/step/store_facts.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

using base::contains;
using nlohmann::json;

class HeldOutRunTest : public LoopTest {
 protected:
  void SetUp() override {
    LoopTest::SetUp();
    data::SynthConfig log;
    log.users = 40;
    log.items = 150;
    log.days = 12;
    log.events_per_user = 60;
    data::SynthStoreConfig target;
    target.folder = store = base::temp_path("store");
    target.history_length = 16;
    target.min_history = {4};
    data::write_synth_store(data::SynthLog(log), target);
  }
  void TearDown() override {
    LoopTest::TearDown();
    std::filesystem::remove_all(store);
    for (const char* other : {"_other", "_two", "_three"}) {
      std::filesystem::remove_all(folder + other);
    }
  }

  RunConfig config() const {
    RunConfig c = store_config(store);
    c.train.steps = 20;
    c.eval.max_batches = 0;
    c.eval.every_steps = 8;
    return c;
  }
  static std::vector<json> evaluations(const std::string& run) {
    std::vector<json> lines;
    for (const std::string& line : metrics_of(run)) {
      json parsed = json::parse(line);
      if (parsed["event"] == "eval") lines.push_back(std::move(parsed));
    }
    return lines;
  }
  /// AUC of the rules for the first labels of what the run holds out, straight from the log.
  std::map<std::string, double> rules(const RunConfig& c, size_t labels) const {
    const StoreScorer scorer(c);
    std::vector<int64_t> positions = scorer.anchors();
    positions.resize(labels);
    const data::EventStore events(store, data::schema_for(store).samples());
    const data::Predictions p = data::predict_by_history(events, {.positions = positions});
    std::map<std::string, double> aucs;
    for (const data::Rule& rule : p.rules) {
      aucs[rule.name] = ops::exact_auc(rule.predictions, p.labels);
    }
    return aucs;
  }
  std::string log_of(const RunConfig& c, const std::string& run) {
    base::set_log_level(base::LogLevel::kInfo);
    testing::internal::CaptureStderr();
    train_loop(c, run);
    return testing::internal::GetCapturedStderr();
  }

  std::string store;
};

/// A run that ends does not wait for a pass over the log.
TEST_F(HeldOutRunTest, FactsEndWhenTheyAreToldTo) {
  const RunConfig c = config();
  const RunStore open(c, 0, 1, false);
  std::stop_source stop;
  const std::vector<int64_t> positions = {5};
  EXPECT_EQ(store_facts(open, {}, positions, stop.get_token()).item_events.size(), 1u);
  stop.request_stop();
  EXPECT_TRUE(store_facts(open, {}, positions, stop.get_token()).item_events.empty());
}

TEST_F(HeldOutRunTest, EveryEvaluationStandsBesideTheRules) {
  const RunConfig c = config();
  const std::string log = log_of(c, folder);
  const std::vector<json> lines = evaluations(folder);
  ASSERT_EQ(lines.size(), 3u);
  for (const json& line : lines) {
    const auto expected = rules(c, line["eval_samples"]);
    ASSERT_EQ(line["baselines"].size(), expected.size());
    double best = 0;
    for (const auto& [name, auc] : expected) {
      EXPECT_EQ(line["baselines"][name], auc) << name;
      best = std::max(best, auc);
    }
    EXPECT_EQ(line["baseline_auc"], best);
    EXPECT_EQ(line["baselines"][line["baseline"].get<std::string>()], best);
    EXPECT_EQ(line["above_baseline"], line["auc"].get<double>() > best);
    EXPECT_DOUBLE_EQ(line["above_baseline_by"], line["auc"].get<double>() - best);
    EXPECT_LT(line["auc_low"], line["auc"]);
    EXPECT_GT(line["auc_high"], line["auc"]);
    const json& task = line["tasks"]["listen"];
    int64_t by_history = 0, by_item = 0, bins = 0;
    for (const json& slice : task["by_history"]) by_history += slice["labels"].get<int64_t>();
    for (const json& slice : task["by_item"]) by_item += slice["labels"].get<int64_t>();
    for (const json& bin : task["calibration_curve"]) bins += bin["labels"].get<int64_t>();
    EXPECT_EQ(by_history, line["eval_samples"]);
    EXPECT_EQ(by_item, line["eval_samples"]);
    EXPECT_EQ(bins, line["eval_samples"]);
    EXPECT_GT(task["per_user"]["users"], 5);
    EXPECT_EQ(task["per_user"]["k"], 10);
    EXPECT_TRUE(contains(line["device"].get<std::string>(), "cpu"));
  }
  const json& last = lines.back();
  const std::string verdict = last["above_baseline"] ? "is above" : "is below";
  EXPECT_TRUE(contains(log, "held-out AUC " + verdict + " the best simple rule, " +
                                last["baseline"].get<std::string>()))
      << log;
  EXPECT_TRUE(contains(log, " ± ")) << log;
  const auto scalars = scalars_of(folder);
  for (const char* tag : {"eval/baseline_auc", "eval/auc_low", "eval/listen/auc_per_user",
                          "eval/listen/ndcg", "eval/listen/calibration_error"}) {
    EXPECT_EQ(scalars.count({tag, 20}), 1u) << tag;
  }
}

TEST_F(HeldOutRunTest, DetailsChangeNothingElse) {
  RunConfig c = config();
  train_loop(c, folder);
  c.eval.details = EvalDetails::kOff;
  const std::string log = log_of(c, folder + "_other");
  EXPECT_EQ(lasting(metrics_of(folder)), lasting(metrics_of(folder + "_other")));
  EXPECT_EQ(checkpoint_bytes(folder, 20), checkpoint_bytes(folder + "_other", 20));
  EXPECT_FALSE(contains(log, "simple rule")) << log;
  const json line = evaluations(folder + "_other").back();
  for (const char* key : {"baseline", "baseline_auc", "baselines"}) {
    EXPECT_FALSE(line.contains(key)) << key;
  }
  EXPECT_FALSE(line["tasks"]["listen"].contains("per_user"));
  EXPECT_TRUE(line.contains("auc_low"));
  c.eval.details = EvalDetails::kAuto;  // an MLPerf log is about time
  c.mlperf.log = true;
  EXPECT_FALSE(contains(log_of(c, folder + "_two"), "simple rule"));
}

/// Whatever an evaluation takes of what is held out, facts belong to its labels.
TEST_F(HeldOutRunTest, FactsAreThoseOfTheSamplesEvaluated) {
  RunConfig some = config(), whole = config(), every = config(), next = config();
  some.eval.max_batches = 2;
  whole.data.stream.incomplete = data::IncompleteBatches::kDrop;
  whole.data.stream.sort_by_time = true;
  every.model.labels = model::LabelKind::kEveryItem;
  every.data.batch_size = 5;
  next.data.stream.eval = data::EvalMode::kNextWindow;
  next.train.steps = 0;
  next.eval.every_steps = 0;
  next.eval.every_windows = 3;
  for (const RunConfig& c : {some, whole, every, next}) {
    train_loop(c, folder);
    const std::vector<json> lines = evaluations(folder);
    const json& last = lines.back();
    int64_t labels = 0;
    for (const json& slice : last["tasks"]["listen"]["by_item"]) {
      labels += slice["labels"].get<int64_t>();
    }
    ASSERT_GT(labels, 20);
    for (const auto& [name, auc] : rules(c, static_cast<size_t>(labels))) {
      EXPECT_EQ(last["baselines"][name], auc) << name;
    }
    // Windows before the last one have no rules: each would need its own.
    EXPECT_EQ(lines.front().contains("baseline"),
              c.data.stream.eval == data::EvalMode::kFixed || lines.size() == 1);
    std::filesystem::remove_all(folder);
  }
}

TEST_F(HeldOutRunTest, TheSameOnAnyNumberOfRanks) {
  const RunConfig c = config();
  train_loop(c, folder);
  const json one = evaluations(folder).back();
  for (const int ranks : {2, 3}) {
    const std::string other = folder + (ranks == 2 ? "_two" : "_three");
    comm::run_as_threads(ranks, 60, [&](comm::World& world) {
      LoopOptions options;
      options.own_process = false;
      train_loop(c, other, options, world);
    });
    const json several = evaluations(other).back();
    EXPECT_EQ(several["baselines"], one["baselines"]);
    const json &a = one["tasks"]["listen"], &b = several["tasks"]["listen"];
    EXPECT_EQ(b["per_user"]["users"], a["per_user"]["users"]);
    EXPECT_EQ(b["per_user"]["labels"], a["per_user"]["labels"]);
    // Losses differ in rounding between numbers of ranks, and a pair may then change places.
    for (const char* key : {"auc", "ndcg", "recall"}) {
      EXPECT_NEAR(b["per_user"][key], a["per_user"][key].get<double>(), 2e-3) << key;
    }
    ASSERT_EQ(b["by_item"].size(), a["by_item"].size());
    for (size_t i = 0; i < a["by_item"].size(); ++i) {
      EXPECT_EQ(b["by_item"][i]["labels"], a["by_item"][i]["labels"]);
    }
  }
}

/// A rank that waits for them can talk to the others meanwhile.
TEST_F(HeldOutRunTest, FactsSayWhenTheyAreReady) {
  const std::unique_ptr<Source> source = make_source(config(), 0, 1);
  while (!source->facts_ready(0.01)) std::this_thread::yield();
  ASSERT_NE(source->facts(), nullptr);
  EXPECT_FALSE(source->facts()->lists.empty());
}

TEST_F(HeldOutRunTest, EvalSaysTheSame) {
  const RunConfig c = config();
  train_loop(c, folder);
  const json line = evaluations(folder).back();
  TrainedModel model = open_model(folder);
  const StoreScorer scorer(c);
  const std::vector<int64_t> positions = scorer.anchors();
  const HeldOutFacts facts = scorer.facts(model.trainer->model().tasks(), positions);
  const Evaluation e = evaluate(model, scorer, positions, &facts);
  ASSERT_TRUE(e.comparison && e.tasks[0].details);
  EXPECT_EQ(e.auc(), line["auc"]);
  EXPECT_EQ(e.comparison->best_rule().auc, line["baseline_auc"]);
  EXPECT_EQ(e.tasks[0].details->lists.ndcg, line["tasks"]["listen"]["per_user"]["ndcg"]);
  EXPECT_EQ(e.tasks[0].details->calibration.error, line["tasks"]["listen"]["calibration_error"]);
  EXPECT_EQ(scorer.oracle_auc(positions), line["oracle_auc"].get<double>());

  // What was trained is known: windows up to the newest one, of users that are trained on.
  EXPECT_GE(model.trained_window, 0);
  const std::vector<int64_t> first = scorer.anchors(0);
  EXPECT_EQ(scorer.trained(model, 0, first), std::ssize(first));
  const int64_t last = model.trained_window + 1;
  EXPECT_EQ(scorer.trained(model, last, scorer.anchors(last)), 0);
  EXPECT_EQ(open_model(folder, {"data.stream.window_seconds=3600"}).trained_window, -1);
}

TEST_F(HeldOutRunTest, HeldOutUsersAreNotTrainedOn) {
  RunConfig c = config();
  c.data.stream.train_share = 0.6;
  train_loop(c, folder);
  const TrainedModel model = open_model(folder);
  const StoreScorer scorer(c);
  const std::vector<int64_t> first = scorer.anchors(0);
  const int64_t trained = scorer.trained(model, 0, first);
  EXPECT_GT(trained, 0);
  EXPECT_LT(trained, std::ssize(first));
}

TEST_F(HeldOutRunTest, NothingHeldOutIsSaidInTheLastLine) {
  RunConfig c = config();
  c.data.stream.eval_windows = 0;
  const std::string log = log_of(c, folder);
  EXPECT_TRUE(contains(log.substr(log.rfind("done:")), "no samples held out")) << log;
  EXPECT_FALSE(contains(log.substr(log.rfind("done:")), "AUC")) << log;
}

TEST_F(HeldOutRunTest, OneClassIsSaidInTheLastLine) {
  RunConfig c = config();
  c.model.tasks[0].bit = 1024;
  const std::string log = log_of(c, folder);
  EXPECT_TRUE(contains(log.substr(log.rfind("done:")), "held-out AUC n/a (one class)")) << log;
  EXPECT_FALSE(contains(log, "simple rule")) << log;
}

/// A list is a sample where that has several candidates; random samples have no users.
TEST_F(HeldOutRunTest, CandidatesOfASampleAreRanked) {
  RunConfig c = tiny_config();
  c.data.random.candidates = 4;
  c.model.max_seq_len = 32;
  train_loop(c, folder);
  const json line = evaluations(folder).back();
  EXPECT_EQ(line["eval_samples"], 48);
  const json& ranked = line["tasks"]["listen"]["per_user"];
  EXPECT_GT(ranked["users"], 20);
  EXPECT_LE(ranked["users"], 48);
  EXPECT_EQ(ranked["labels"], 4 * ranked["users"].get<int64_t>());
  EXPECT_FALSE(line.contains("baseline"));
}

}  // namespace
}  // namespace segue::train
