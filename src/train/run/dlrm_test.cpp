// The second family in the same house: the loop, checkpoints, ranks and data that a ranker has.

#include <algorithm>

#include <gtest/gtest.h>

#include "base/config.h"
#include "comm/world.h"
#include "data/synth/interactions.h"
#include "data/synth/synth_output.h"
#include "ops/metrics.h"
#include "train/plan/memory_plan.h"
#include "train/plan/shard_planning.h"
#include "train/run/loop.h"
#include "train/run/loop_test_util.h"
#include "train/step/trainer.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

constexpr double kTimeout = 30;

RunConfig dlrm_config(const std::vector<std::string>& sets = {}) {
  base::ConfigSources sources;
  sources.file = "configs/micro-dlrm.toml";
  sources.sets = sets;
  sources.use_environment = false;
  return load_run_config(sources);
}

/// Ten steps of a small log.
RunConfig short_config() {
  RunConfig c = dlrm_config();
  c.train.device = "cpu";
  c.data.interactions.samples = 2500;
  c.data.interactions.held_out = 0.2;
  c.data.interactions.passes = 1;
  c.data.batch_size = 200;
  c.train.log_every = 1;
  c.checkpoint.every_steps = 5;
  return c;
}

class DlrmRunTest : public LoopTest {};
class SlowDlrmRunTest : public LoopTest {};

TEST_F(DlrmRunTest, AResumedRunEndsInTheSameBits) {
  const std::string whole = folder + "-whole";
  RunConfig c = short_config();
  c.eval.at_end = false;  // the first part has an end, too
  EXPECT_EQ(train_loop(c, whole).steps, 10);
  c.train.steps = 5;
  train_loop(c, folder);
  c.train.steps = 0;
  LoopOptions options;
  options.allow_config_changes = {"train.steps"};
  const TrainSummary resumed = train_loop(c, folder, options);
  EXPECT_TRUE(resumed.resumed);
  EXPECT_EQ(checkpoint_bytes(folder, 10), checkpoint_bytes(whole, 10));
  std::filesystem::remove_all(whole);
}

TEST_F(DlrmRunTest, RanksTrainAsOne) {
  RunConfig c = short_config();
  c.model.dlrm.interaction = model::Interaction::kConcat;
  const TrainSummary one = train_loop(c, folder);
  for (const int ranks : {2, 3}) {
    for (const bool balanced : {false, true}) {
      c.balance.on = balanced;
      c.parallel.pipeline = balanced ? Pipeline::kOn : Pipeline::kOff;
      for (sparse::TableConfig& t : c.sparse.tables) {
        t.sharding = balanced ? sparse::Sharding::kColumn : sparse::Sharding::kRow;
      }
      TrainSummary several;
      const std::string run = folder + "-ranks";
      comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
        LoopOptions options;
        options.own_process = false;
        options.overwrite = true;
        const TrainSummary summary = train_loop(c, run, options, world);
        if (world.rank() == 0) several = summary;
      });
      EXPECT_EQ(several.samples, one.samples);
      EXPECT_NEAR(several.last_loss, one.last_loss, 1e-5 * one.last_loss);
      EXPECT_NEAR(several.held_out->loss, one.held_out->loss, 1e-5 * one.held_out->loss);
      std::filesystem::remove_all(run);
    }
  }
}

TEST_F(DlrmRunTest, RandomSamplesAndStoresWillDoToo) {
  RunConfig c = short_config();
  c.data.interactions.samples = 0;
  c.train.steps = 3;
  EXPECT_EQ(train_loop(c, folder).steps, 3);

  data::SynthConfig log;
  log.users = 20;
  log.items = 150;
  log.days = 5;
  log.events_per_user = 25;
  data::SynthStoreConfig store;
  store.folder = folder + "-store";
  store.history_length = 16;
  store.min_history = {4};
  data::write_synth_store(data::SynthLog(log), store);
  c.data.store = store.folder;
  c.data.batch_size = 32;
  c.data.stream.min_history = 4;
  c.model.dlrm.dense.clear();
  c.model.dlrm.label = "item_action_weight";
  c.model.dlrm.features = {{"uid", "user"},
                           {"item_id", "item", model::FeatureOf::kEvent},
                           {"item_candidate_id", "item", model::FeatureOf::kCandidate}};
  // Columns that the model does not read will do, too, and one of the sample for all of its ids.
  c.sparse.tables = {{"user", 200}, {"item", 200}};
  for (sparse::TableConfig& table : c.sparse.tables) {
    table.kind = sparse::TableKind::kDynamic;
    table.evict = sparse::Evict::kScore;
    table.score = {"dummy_query_time"};
  }
  c.sparse.tables[1].score = {"item_query_time", "action_timestamp"};
  LoopOptions options;
  options.overwrite = true;
  const TrainSummary summary = train_loop(c, folder, options);
  EXPECT_EQ(summary.steps, 3);
  ASSERT_TRUE(summary.held_out);
  EXPECT_GT(summary.held_out->samples, 0);
  const auto message = [&](ErrorCode code, const std::string& column) {
    c.sparse.tables[1].score = {column};
    return base::message_of(code, [&] { train_loop(c, folder, options); });
  };
  EXPECT_TRUE(base::contains(message(ErrorCode::kConfig, "query_time"),
                             "`score` of table `item` reads column `query_time`, which samples of "
                             "the store do not have"));
  EXPECT_TRUE(base::contains(message(ErrorCode::kConfig, "action_timestamp"),
                             "has a value for each id of column `item_candidate_id`"));
  std::filesystem::remove_all(store.folder);
}

TEST_F(DlrmRunTest, WhatTheLogDoesNotHaveIsSaid) {
  const auto message = [&](const std::vector<std::string>& sets) {
    const RunConfig c = dlrm_config(sets);
    return std::string(base::error_of([&] { train_loop(c, folder); })->what());
  };
  EXPECT_TRUE(base::contains(message({"data.interactions.dense=8"}), "8 numbers in `dense`"));
  EXPECT_TRUE(base::contains(message({"model.dlrm.label=clicked"}), "reads column `clicked`"));
  EXPECT_TRUE(base::contains(message({"data.interactions.users=3000"}),
                             "table `user` has 2000 rows, but column `user_id` has 3000 ids"));
  EXPECT_TRUE(
      base::contains(base::error_of([] { dlrm_config({"parallel.tensor_parallel=2"}); })->what(),
                     "shares attention heads, of which this model has none"));
  EXPECT_TRUE(base::contains(message({"data.batch_size=2000000"}), "lower data.batch_size"));
  const auto refused = [](const std::string& column) {
    return std::string(base::error_of([&] {
                         dlrm_config({"sparse.tables.0.kind=dynamic", "sparse.tables.0.evict=score",
                                      "sparse.tables.0.score=" + column});
                       })->what());
  };
  EXPECT_TRUE(base::contains(refused("dense"), "which has floats"));
  EXPECT_TRUE(base::contains(refused("time"), "they have: "));
}

/// A name alone stands for a list of one.
TEST_F(DlrmRunTest, LabelsMayBeScores) {
  RunConfig c = dlrm_config({"sparse.tables.0.kind=dynamic", "sparse.tables.0.evict=score",
                             "sparse.tables.0.max_rows=256", "sparse.tables.0.score=label",
                             "data.batch_size=100"});
  EXPECT_EQ(c.sparse.tables[0].score, std::vector<std::string>{"label"});
  Trainer trainer(c, Device::cpu());
  const data::Interactions log(c.data.interactions, 1);
  Batch batch;
  int64_t labels = 0;
  for (int64_t step = 0; step < 20; ++step) {
    log.fill(step * c.data.batch_size, c.data.batch_size, batch);
    step_on(trainer, batch);
    for (const int64_t label : batch.column("label").values.span()) labels += label;
  }
  const double share = static_cast<double>(labels) / (20.0 * 100);
  sparse::Table& table = trainer.tables().table(sparse::TableId{0});
  EXPECT_GT(table.stats()->evicted, 0);
  int64_t liked = 0, rows = 0;
  for (const sparse::TableArray& array : table.snapshot(sparse::Extent::kAll)) {
    if (array.name != "stamp") continue;
    rows = array.value.size(0);
    for (int64_t r = 0; r < rows; ++r) liked += array.value.row<int64_t>(r)[1];
  }
  EXPECT_GT(static_cast<double>(liked), 1.2 * share * static_cast<double>(rows));
}

TEST(DlrmPlanTest, StepsStayBelowThePlan) {
  const RunConfig c = short_config();
  Trainer trainer(c, Device::cpu());
  const data::Interactions log(c.data.interactions, 1);
  Batch batch;
  log.fill(0, c.data.batch_size, batch);
  step_on(trainer, batch);
  const model::StepMemory plan = step_memory(c, Device::cpu());
  const int64_t counted = plan.rows + plan.kept + plan.working;
  EXPECT_LE(trainer.arena().high_water(), counted + counted / 5);
  EXPECT_GE(trainer.arena().high_water(), counted / 4);
  EXPECT_EQ(plan_run(c, Device::cpu()).arena_bytes, trainer.arena().capacity());
}

/// Two of three ways that a model can fail to learn (optimizer, bags, interaction) would leave it
/// at the means of users and items.
TEST_F(SlowDlrmRunTest, AMadeUpLogIsLearned) {
  const RunConfig c = dlrm_config();
  const data::Interactions log(c.data.interactions, static_cast<uint64_t>(c.train.seed));
  Batch batch;
  log.fill(log.num_train(), c.data.interactions.samples - log.num_train(), batch);
  std::vector<float> labels;
  for (const int64_t label : batch.column("label").values.span()) {
    labels.push_back(static_cast<float>(label));
  }
  const data::InteractionMeans means(log);
  const double baseline = std::max(ops::exact_auc(means.by_user(batch), labels),
                                   ops::exact_auc(means.by_item(batch), labels));
  const TrainSummary summary = train_loop(c, folder);
  ASSERT_TRUE(summary.oracle_auc && summary.held_out);
  const double share = (summary.held_out->auc() - baseline) / (*summary.oracle_auc - baseline);
  EXPECT_GE(share, 0.8) << "AUC " << summary.held_out->auc() << ", baseline " << baseline
                        << ", oracle " << *summary.oracle_auc;
}

}  // namespace
}  // namespace segue::train
