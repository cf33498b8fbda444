#include "train/step/trainer.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

/// Predictions of a step are counted while the next one runs, or when somebody asks for metrics.
TEST(TrainerTest, WhatIsDoneMeanwhileSeesTheStepBefore) {
  const RunConfig c = tiny_config();
  Trainer trainer(c, Device::cpu());
  const data::RandomBatches data = random_batches(c);
  std::vector<int64_t> seen;
  trainer.set_meanwhile([&] { seen.push_back(trainer.window().labels_seen()); });
  Batch batch;
  for (int64_t step = 1; step <= 3; ++step) {
    data.fill(step, batch);
    step_on(trainer, batch);
  }
  const int64_t each = c.data.batch_size;
  EXPECT_EQ(seen, (std::vector<int64_t>{0, each, 2 * each}));
  EXPECT_EQ(trainer.window().labels_seen(), 3 * each);
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], tolerance * std::abs(b[i])) << "step " << i + 1;
  }
}

std::vector<float> copy_of(const Tensor& t) {
  const std::span<float> values = t.reshape({t.elements()}).span<float>();
  return {values.begin(), values.end()};
}

double mean(const std::vector<double>& values, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

RunConfig load_file(const char* path) {
  base::ConfigSources sources;
  sources.file = path;
  sources.use_environment = false;
  return load_run_config(sources);
}

// ---- what the losses must not depend on ----

TEST(TrainerTest, RepeatedRunsGiveEqualBits) {
  EXPECT_EQ(losses_of(tiny_config()), losses_of(tiny_config()));
}

TEST(TrainerTest, AnyNumberOfThreadsGivesEqualBits) {
  std::vector<std::vector<double>> losses;
  for (const int threads : {1, 2, 5}) {
    const ThreadsScope scope(threads);
    losses.push_back(losses_of(tiny_config(), 10));
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

TEST(TrainerTest, AModelLargeEnoughToBeSharedByThreadsGivesEqualBits) {
  RunConfig c = load_file("configs/random.toml");
  c.data.batch_size = 128;
  std::vector<std::vector<double>> losses;
  for (const int threads : {1, 2, 3}) {
    const ThreadsScope scope(threads);
    losses.push_back(losses_of(c, 4));
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

TEST(TrainerTest, MicroBatchCutChangesOnlyRounding) {
  RunConfig c = tiny_config();
  const std::vector<double> whole = losses_of(c, 10);
  for (const int64_t tokens : {1, 50, 200}) {
    c.train.micro_batch_tokens = tokens;
    expect_close(losses_of(c, 10), whole, 1e-5);
  }
}

TEST(TrainerTest, MicroBatchCutIsExactInDouble) {
  RunConfig c = tiny_config();
  c.train.precision = Precision::kF64;
  const std::vector<double> whole = losses_of(c, 10);
  c.train.micro_batch_tokens = 50;
  expect_close(losses_of(c, 10), whole, 1e-11);
}

TEST(TrainerTest, IdentitiesChangeOnlyRounding) {
  RunConfig c = tiny_config();
  const std::vector<double> on = losses_of(c, 10);
  const model::IdentityConfig cases[] = {
      {false, true, true}, {true, false, true}, {true, true, false}, {false, false, false}};
  for (const model::IdentityConfig& identities : cases) {
    c.model.identities = identities;
    expect_close(losses_of(c, 10), on, 1e-5);
  }
}

TEST(TrainerTest, IdentitiesAreExactInDouble) {
  RunConfig c = tiny_config();
  c.train.precision = Precision::kF64;
  const std::vector<double> on = losses_of(c, 10);
  c.model.identities = {false, false, false};
  expect_close(losses_of(c, 10), on, 1e-11);
}

TEST(TrainerTest, RecomputeGivesEqualBits) {
  for (const auto layer : {model::LayerKind::kConcat, model::LayerKind::kGated}) {
    RunConfig c = tiny_config();
    c.model.layer = layer;
    c.model.layers = 3;  // the last one may run at targets only
    const std::vector<double> kept = losses_of(c);
    const model::RecomputeConfig cases[] = {
        {true, false, false}, {false, true, false}, {false, false, true}, {true, true, true}};
    for (const model::RecomputeConfig& recompute : cases) {
      c.model.recompute = recompute;
      EXPECT_EQ(losses_of(c), kept);
    }
  }
}

TEST(TrainerTest, DropoutAndSeedMatter) {
  RunConfig c = tiny_config();
  const std::vector<double> with_dropout = losses_of(c);
  c.model.dropout = c.model.input_dropout = 0;
  EXPECT_NE(losses_of(c), with_dropout);
  c = tiny_config();
  c.train.seed = 2;
  EXPECT_NE(losses_of(c), with_dropout);
}

// ---- training works ----

TEST(TrainerTest, LossFalls) {
  RunConfig c = tiny_config();
  c.optimizer.lr = 3e-3;
  const std::vector<double> losses = losses_of(c, 60);
  EXPECT_LT(mean(losses, 50, 60), 0.85 * mean(losses, 0, 10));
}

TEST(TrainerTest, EveryPrecisionTrains) {
  const std::vector<double> f32 = losses_of(tiny_config());
  for (const auto& [precision, tolerance] :
       {std::pair(Precision::kF64, 1e-5), std::pair(Precision::kBf16, 2e-2)}) {
    RunConfig c = tiny_config();
    c.train.precision = precision;
    expect_close(losses_of(c), f32, tolerance);
  }
}

TEST(TrainerTest, ArenaIsEmptyBetweenStepsAndDoesNotGrow) {
  const RunConfig c = tiny_config();
  Trainer trainer(c, Device::cpu());
  Batch batch;
  random_batches(c).fill(1, batch);
  step_on(trainer, batch);
  EXPECT_EQ(trainer.arena().used(), 0);
  const int64_t high_water = trainer.arena().high_water();
  for (int i = 0; i < 3; ++i) step_on(trainer, batch);
  EXPECT_EQ(trainer.arena().high_water(), high_water);
}

TEST(TrainerTest, StatsDescribeTheStep) {
  RunConfig c = tiny_config();
  c.optimizer.warmup_steps = 4;
  Trainer trainer(c, Device::cpu());
  Batch batch;
  random_batches(c).fill(1, batch);
  step_on(trainer, batch);
  const StepStats stats = step_on(trainer, batch);
  EXPECT_EQ(stats.step, 2);
  EXPECT_EQ(trainer.steps_done(), 2);
  EXPECT_EQ(stats.samples, c.data.batch_size);
  EXPECT_EQ(stats.tokens, batch.column("item").values.size() + 3 * stats.samples);
  EXPECT_DOUBLE_EQ(stats.rates.dense, 1e-3 / 4);
  EXPECT_DOUBLE_EQ(stats.loss, stats.task_losses[0] + stats.task_losses[1]);
  EXPECT_GT(stats.gradient_norm, 0);
  EXPECT_GT(stats.model_flops, 0);
  EXPECT_GT(stats.seconds, 0);
}

TEST(TrainerTest, EmptyBatchIsLegal) {
  const RunConfig c = tiny_config();
  Trainer trainer(c, Device::cpu());
  Batch batch;
  random_batches(c).fill(1, 0, 0, batch);
  const std::vector<float> before = copy_of(trainer.model().parameters().values());
  EXPECT_EQ(step_on(trainer, batch).loss, 0);
  EXPECT_EQ(copy_of(trainer.model().parameters().values()), before);
}

TEST(TrainerTest, EvaluationChangesNothing) {
  const RunConfig c = tiny_config();
  Trainer trainer(c, Device::cpu());
  constexpr int64_t kBatches = 3;
  const std::vector<float> parameters = copy_of(trainer.model().parameters().values());
  const std::vector<float> items =
      copy_of(trainer.tables().table(sparse::TableId{0}).resident().weights);
  const auto evaluate = [&] {
    Evaluator evaluator(c.model.tasks);
    Batch batch;
    for (int64_t i = 0; i < kBatches; ++i) {
      random_batches(c).fill(100 + i, batch);
      evaluator.add(predict_on(trainer, batch));
    }
    return evaluator.result();
  };
  const Evaluation first = evaluate();
  const Evaluation second = evaluate();
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.auc(), second.auc());
  EXPECT_EQ(first.samples, 3 * c.data.batch_size);
  EXPECT_EQ(first.labels, first.samples);
  ASSERT_EQ(first.tasks.size(), 2u);
  EXPECT_EQ(first.tasks[0].name, "listen");
  EXPECT_NEAR(first.loss, first.tasks[0].loss + first.tasks[1].loss, 1e-12);
  EXPECT_GT(first.normalized_entropy(), 0);
  EXPECT_EQ(copy_of(trainer.model().parameters().values()), parameters);
  EXPECT_EQ(copy_of(trainer.tables().table(sparse::TableId{0}).resident().weights), items);
}

TEST(TrainerTest, CountsPredictionsSinceTheStartAndInTheWindow) {
  RunConfig c = tiny_config();
  c.train.metric_window = c.data.batch_size;
  Trainer trainer(c, Device::cpu());
  const data::RandomBatches data = random_batches(c);
  Batch batch;
  data.fill(1, batch);
  step_on(trainer, batch);
  // One batch fills the window: both see the same labels, one of them in bins.
  EXPECT_NEAR(trainer.lifetime().value(0), trainer.window().quality(0).auc, 1e-2);
  EXPECT_NE(trainer.lifetime().value(0), 0.5);
  const double first = trainer.window().quality(0).auc;
  data.fill(2, batch);
  step_on(trainer, batch);
  EXPECT_NE(trainer.window().quality(0).auc, first);
  EXPECT_EQ(trainer.window().labels_seen(), 2 * c.data.batch_size);
}

// ---- trouble ----

TEST(TrainerTest, NonFiniteLossNamesStepAndTaskAndChangesNothing) {
  const RunConfig c = tiny_config();
  Trainer trainer(c, Device::cpu());
  const data::RandomBatches data = random_batches(c);
  Batch batch;
  data.fill(1, batch);
  step_on(trainer, batch);
  Tensor values = trainer.model().parameters().values();
  values.ptr<float>()[values.elements() / 2] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> users =
      copy_of(trainer.tables().table(sparse::TableId{2}).resident().weights);
  data.fill(2, batch);
  const auto error = base::error_of([&] { step_on(trainer, batch); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNumeric);
  EXPECT_TRUE(base::contains(error->what(), "step 2"));
  EXPECT_TRUE(base::contains(error->what(), "optimizer.lr"));
  EXPECT_EQ(copy_of(trainer.tables().table(sparse::TableId{2}).resident().weights), users);
  EXPECT_EQ(trainer.steps_done(), 1);
}

TEST(TrainerTest, DivergenceEndsInAnError) {
  RunConfig c = tiny_config();
  c.optimizer.lr = 1e30;
  c.optimizer.clip_norm = 0;
  const auto error = base::error_of([&] { losses_of(c, 20); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNumeric);
  EXPECT_TRUE(base::contains(error->what(), "is not finite"));
}

TEST(TrainerTest, IdOutOfRangeNamesFeatureIdAndTable) {
  const RunConfig c = tiny_config();
  Trainer trainer(c, Device::cpu());
  Batch batch;
  random_batches(c).fill(1, batch);
  Batch::Column& artists = batch.column("candidate_artist");
  const int64_t good = artists.values[3];
  artists.values[3] = 777;
  const auto error = base::error_of([&] { step_on(trainer, batch); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfRange);
  for (const char* part : {"candidate_artist", "777", "`artist`"}) {
    EXPECT_TRUE(base::contains(error->what(), part));
  }
  artists.values[3] = good;  // the trainer is as it was
  EXPECT_EQ(step_on(trainer, batch).loss, losses_of(c, 1)[0]);
}

TEST(TrainerTest, SmallArenaNamesTheKeysToChange) {
  RunConfig c = tiny_config();
  c.train.arena_gib = 1e-4;
  const auto error = base::error_of([&] { losses_of(c, 1); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(base::contains(error->what(), "train.arena_gib"));
  EXPECT_TRUE(base::contains(error->what(), "train.micro_batch_tokens"));
}

// ---- the other published variant ----

TEST(TrainerTest, GatedInterleavedVariantTrains) {
  RunConfig c = load_file("configs/gated-interleaved.toml");
  c.data.batch_size = 16;
  EXPECT_EQ(c.model.tasks.size(), 8u);
  const std::vector<double> losses = losses_of(c, 12);
  EXPECT_LT(mean(losses, 9, 12), mean(losses, 0, 3));
}

}  // namespace
}  // namespace segue::train
