// Ways of training that are more than one candidate at a time, once through a store, from nothing.

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "data/synth/synth_output.h"
#include "ops/metrics.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/loop.h"
#include "train/run/loop_test_util.h"
#include "train/run/scoring.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

using base::contains;
using base::message_of;
using model::TokenKind;

class RecipesTest : public LoopTest {
 protected:
  void SetUp() override {
    LoopTest::SetUp();
    data::SynthConfig log;
    log.users = 30;
    log.items = 150;
    log.days = 12;
    log.events_per_user = 40;
    data::SynthStoreConfig target;
    target.folder = store = base::temp_path("store");
    target.history_length = 16;
    target.min_history = {4};
    data::write_synth_store(data::SynthLog(log), target);
  }
  void TearDown() override {
    LoopTest::TearDown();
    std::filesystem::remove_all(store);
    std::filesystem::remove_all(folder + "_other");
  }

  RunConfig config() const {
    RunConfig c = store_config(store);
    c.data.stream.shuffle_fraction = 1;
    c.train.steps = 0;
    c.eval.max_batches = 0;
    return c;
  }
  RunConfig every_item(TokenKind tokens) const {
    RunConfig c = config();
    c.model.labels = model::LabelKind::kEveryItem;
    c.model.tokens = tokens;
    c.data.batch_size = 5;
    return c;
  }
  std::string refusal(const RunConfig& c) const {
    return message_of(ErrorCode::kConfig, [&] { c.validate(), train_loop(c, folder); });
  }

  /// A run that is stopped and resumed twice leaves what one does that is not.
  void expect_resumable(RunConfig c) {
    const std::string straight = folder + "_other";
    const TrainSummary whole = train_loop(c, straight);
    ASSERT_TRUE(whole.finished);
    ASSERT_GT(whole.steps, 6);
    c.checkpoint.every_steps = 1;
    LoopOptions options;
    options.allow_config_changes = {"train.steps"};
    for (const int64_t share : {3, 2}) {
      c.train.steps = whole.steps / share;
      train_loop(c, folder, options);
    }
    c.train.steps = 0;
    const TrainSummary resumed = train_loop(c, folder, options);
    EXPECT_TRUE(resumed.resumed);
    EXPECT_EQ(resumed.steps, whole.steps);
    EXPECT_EQ(resumed.samples, whole.samples);
    EXPECT_EQ(resumed.held_out->auc(), whole.held_out->auc());
    EXPECT_EQ(model_bytes(folder, whole.steps), model_bytes(straight, whole.steps));
  }
  /// All arrays of a checkpoint but those of evaluations, of which a resumed run had more.
  static std::map<std::string, std::string> model_bytes(const std::string& run, int64_t step) {
    std::map<std::string, std::string> files = checkpoint_bytes(run, step);
    std::erase_if(files, [](const auto& file) { return contains(file.first, "metrics"); });
    return files;
  }

  std::string store;
};

TEST_F(RecipesTest, EveryItemOfAStoreIsTrainedOnceAnEpoch) {
  for (const TokenKind tokens : {TokenKind::kMerged, TokenKind::kPaired}) {
    RunConfig c = every_item(tokens);
    const TrainSummary summary = train_loop(c, folder);
    EXPECT_TRUE(summary.finished);
    RunConfig one = config();
    const StoreScorer anchors(one), samples(c);
    ASSERT_TRUE(summary.held_out);
    EXPECT_EQ(summary.held_out->labels, std::ssize(anchors.anchors()));
    EXPECT_LT(summary.samples, train_loop(one, folder + "_other").samples);
    std::filesystem::remove_all(folder);
    std::filesystem::remove_all(folder + "_other");
  }
}

/// Predictions belong to the events that were asked about, in their order, in whatever batches.
TEST_F(RecipesTest, ScoresOfEveryItemAreThoseOfItsEvents) {
  RunConfig c = every_item(TokenKind::kPaired);
  const TrainSummary summary = train_loop(c, folder);
  TrainedModel model = open_model(folder);
  const StoreScorer scorer(c);
  const std::vector<int64_t> positions = scorer.anchors();
  std::vector<float> predictions, labels;
  scorer.score(*model.trainer, positions, [&](const model::Pass& pass) {
    predictions.insert(predictions.end(), pass.predictions.begin(), pass.predictions.end());
    labels.insert(labels.end(), pass.labels.begin(), pass.labels.end());
  });
  ASSERT_EQ(predictions.size(), positions.size());
  const std::span<const uint8_t> plus = scorer.store().in_pool(0);
  for (size_t i = 0; i < positions.size(); ++i) {
    EXPECT_EQ(labels[i], plus[static_cast<size_t>(positions[i])] != 0 ? 1.f : 0.f) << i;
  }
  EXPECT_EQ(ops::exact_auc(predictions, labels), summary.held_out->auc());
  const std::vector<data::CandidateQuery> pairs(
      3, {.user = scorer.store().users()[static_cast<size_t>(positions[0])],
          .item = 7,
          .time = 1 << 30});
  scorer.score(*model.trainer, pairs, [&](const model::Pass& pass) {
    EXPECT_EQ(pass.predictions.size(), 3U);
    EXPECT_EQ(pass.predictions[0], pass.predictions[2]);
  });
}

TEST_F(RecipesTest, WhatWouldTellOfLaterEventsIsRefused) {
  RunConfig c = every_item(TokenKind::kMerged);
  c.model.attention.contextual_mask = true;
  EXPECT_TRUE(contains(refusal(c), "contextual_mask = false")) << refusal(c);
  c = every_item(TokenKind::kMerged);
  c.model.attention.score_scale = model::ScoreScale::kBatchMax;
  EXPECT_TRUE(contains(refusal(c), "score_scale = \"max_seq_len\"")) << refusal(c);
  c = every_item(TokenKind::kMerged);
  c.model.contextual.at(0).min_sequence = 5;
  EXPECT_TRUE(contains(refusal(c), "min_sequence = 5")) << refusal(c);
  c = every_item(TokenKind::kMerged);
  c.data.stream.sort_by_time = true;
  EXPECT_TRUE(contains(refusal(c), "sort_by_time")) << refusal(c);
  c = every_item(TokenKind::kMerged);
  c.model.contextual.push_back({"user_x_artist", "user", 1, 0});
  EXPECT_TRUE(contains(refusal(c), "a cross of uid, artist_id")) << refusal(c);
}

TEST_F(RecipesTest, EpochsResumeBitForBit) {
  RunConfig c = every_item(TokenKind::kPaired);
  const int64_t once = train_loop(c, folder).steps;
  std::filesystem::remove_all(folder);
  c.train.epochs = 3;
  expect_resumable(c);
  EXPECT_EQ(Checkpoint(folder + "/checkpoints/step-" + std::to_string(3 * once)).step(), 3 * once);
}

TEST_F(RecipesTest, EpochsNeedAStoreAndAHeldOutFuture) {
  RunConfig c = config();
  c.train.epochs = 2;
  c.data.stream.eval = data::EvalMode::kNextWindow;
  EXPECT_TRUE(contains(refusal(c), "data.stream.eval = \"fixed\"")) << refusal(c);
  c = tiny_config();
  c.train.epochs = 2;
  EXPECT_TRUE(contains(refusal(c), "data.store")) << refusal(c);
  c.train.epochs = 0;
  EXPECT_TRUE(contains(refusal(c), "train.epochs")) << refusal(c);
}

TEST_F(RecipesTest, ARunMayBeginWithTheWeightsOfAnother) {
  RunConfig c = config();
  c.train.steps = 4;
  const std::string other = folder + "_other";
  train_loop(c, other);
  c.train.init_from = other;
  c.train.seed = 5;
  c.train.steps = 1;
  c.optimizer.lr = c.optimizer.sparse_lr = 0;
  train_loop(c, folder);
  const Checkpoint from = open_checkpoint(other), begun = open_checkpoint(folder);
  int64_t same = 0, states = 0;
  for (const Checkpoint::Array& array : begun.arrays()) {
    const auto theirs = std::ranges::find_if(from.arrays(), [&](const Checkpoint::Array& a) {
      return a.file == array.file && a.name == array.name;
    });
    if (theirs == from.arrays().end() || array.file == "metrics") continue;
    const auto bytes = [](const Checkpoint::Array& a) {
      std::string all;
      for (const StoredPart& part : a.parts) {
        for (const StoredPart::Run& run : part.runs) {
          all.append(reinterpret_cast<const char*>(run.bytes.data()), run.bytes.size());
        }
      }
      return all;
    };
    const bool weight = array.name.starts_with("param/") || array.name.starts_with("weight/");
    EXPECT_EQ(bytes(array) == bytes(*theirs), weight) << array.name;
    (weight ? same : states) += 1;
  }
  EXPECT_GT(same, 20);
  EXPECT_GT(states, 20);
}

TEST_F(RecipesTest, WeightsThatDoNotFitAreNamed) {
  RunConfig c = config();
  c.train.steps = 1;
  const std::string other = folder + "_other";
  train_loop(c, other);
  c.train.init_from = other;
  c.model.hidden = 24;
  EXPECT_TRUE(contains(refusal(c), "train.init_from")) << refusal(c);
  EXPECT_TRUE(contains(refusal(c), "_content_embedding_mlp")) << refusal(c);
  c = config();
  c.train.init_from = folder + "_nowhere";
  EXPECT_THROW(train_loop(c, folder), Error);
}

/// Only matching in the history helps, and the best that can be done is known.
TEST(SlowRecipesTest, MatchingIsSolved) {
  base::ConfigSources sources;
  sources.file = "configs/matching.toml";
  const RunConfig c = load_run_config(sources);
  const std::string folder = base::temp_path("matching");
  const TrainSummary summary = train_loop(c, folder);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(summary.held_out && summary.oracle_auc);
  EXPECT_GE((summary.held_out->auc() - 0.5) / (*summary.oracle_auc - 0.5), 0.99);
}

}  // namespace
}  // namespace segue::train
