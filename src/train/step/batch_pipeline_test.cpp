// What goes on in the background, and what happens when it fails.

#include "train/step/batch_pipeline.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "comm/world.h"
#include "train/step/layouts_test_util.h"

namespace segue::train {
namespace {

/// A source whose batch number `bad` (from 1; 0: none) has an id outside its table. Counts batches.
class SpoiledSource final : public Source {
 public:
  SpoiledSource(std::unique_ptr<Source> source, std::string column, int64_t bad)
      : source_(std::move(source)), column_(std::move(column)), bad_(bad) {}

  data::StreamPosition first() const override { return source_->first(); }
  void start(data::StreamPosition from) override { source_->start(from); }
  data::StreamPosition end() const override { return source_->end(); }
  std::optional<data::BatchInfo> next(Batch& batch) override {
    const std::optional<data::BatchInfo> delivery = source_->next(batch);
    if (++fetched_ != bad_) return delivery;
    for (Batch::Column& column : batch.columns) {
      if (column.name == column_) column.values[0] = 1'000'000;
    }
    return delivery;
  }
  void prefetch_evaluation(int64_t after) override { source_->prefetch_evaluation(after); }
  void start_evaluation(int64_t after) override { source_->start_evaluation(after); }
  std::optional<data::BatchInfo> next_evaluation(Batch& batch) override {
    return source_->next_evaluation(batch);
  }
  int64_t train_samples() const override { return source_->train_samples(); }
  int64_t eval_samples() const override { return source_->eval_samples(); }

  int64_t fetched() const { return fetched_; }

 private:
  std::unique_ptr<Source> source_;
  std::string column_;
  int64_t bad_ = 0, fetched_ = 0;
};

SpoiledSource spoiled(const RunConfig& config, int64_t bad, int rank = 0, int ranks = 1) {
  return {make_source(config, rank, ranks), config.model.item.candidate, bad};
}

void start(BatchPipeline& pipeline, SpoiledSource& source) {
  source.start(source.first());
  pipeline.start([&](Batch& batch) { return source.next(batch); });
}

/// One rank cannot prepare the batch after this one, and the others wait for it in the background.
/// It must not begin to evaluate meanwhile: the exchanges of the two batches would meet.
TEST(BatchPipelineTest, AFailureInTheBackgroundComesBeforeAnEvaluation) {
  constexpr double kTimeout = 10;
  Layout layout;
  layout.sharding = sparse::Sharding::kRow;
  const RunConfig config = layout_config(layout);
  const auto error = base::error_of([&] {
    comm::run_as_threads(2, kTimeout, [&](comm::World& world) {
      Ranks ranks(world, config, Device::cpu());
      Trainer trainer(config, Device::cpu(), ranks);
      SpoiledSource source = spoiled(config, world.rank() == 1 ? 2 : 0, world.rank(), world.size());
      BatchPipeline pipeline(trainer, sparse::Mode::kTraining, Pipeline::kOn);
      start(pipeline, source);
      trainer.step(*pipeline.next()->prepared);
      pipeline.settle();
      BatchPipeline evaluation(trainer, sparse::Mode::kEvaluation, Pipeline::kOn);
      source.start_evaluation(-1);
      evaluation.start([&](Batch& batch) { return source.next_evaluation(batch); });
      trainer.predict(*evaluation.next()->prepared);
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfRange) << error->what();
}

/// A batch that no step will use is not looked at: whatever is wrong with it does not matter.
TEST(BatchPipelineTest, NothingIsFetchedBehindTheLastBatch) {
  const RunConfig config = layout_config({});
  Trainer trainer(config, Device::cpu());
  SpoiledSource source = spoiled(config, 2);
  BatchPipeline pipeline(trainer, sparse::Mode::kTraining, Pipeline::kOn);
  start(pipeline, source);
  ASSERT_NE(pipeline.next(/*more=*/0), nullptr);
  EXPECT_NO_THROW(pipeline.settle());
  EXPECT_EQ(source.fetched(), 1);
  EXPECT_THROW(pipeline.next(), Error);  // asked for after all
}

/// Batches ahead are looked at as far as they will be asked for: one, then two.
TEST(BatchPipelineTest, TwoBatchesAreFetchedAheadAndNoMore) {
  const RunConfig config = layout_config({});
  Trainer trainer(config, Device::cpu());
  SpoiledSource source = spoiled(config, 0);
  BatchPipeline pipeline(trainer, sparse::Mode::kTraining, Pipeline::kOn);
  start(pipeline, source);
  const int64_t all = 6, fetched[all] = {3, 4, 5, 6, 6, 6};
  for (int64_t i = 0; i < all; ++i) {
    trainer.step(*pipeline.next(all - 1 - i)->prepared);
    pipeline.settle();
    EXPECT_EQ(source.fetched(), fetched[i]) << i;
  }
}

/// A failure two batches ahead waits until its batch is asked for, as it would without the
/// pipeline.
TEST(BatchPipelineTest, AFailureComesWithItsBatch) {
  for (const Pipeline mode : {Pipeline::kOff, Pipeline::kOn}) {
    const RunConfig config = layout_config({});
    Trainer trainer(config, Device::cpu());
    SpoiledSource source = spoiled(config, 4);
    BatchPipeline pipeline(trainer, sparse::Mode::kTraining, mode);
    start(pipeline, source);
    for (int step = 1; step <= 3; ++step) trainer.step(*pipeline.next()->prepared);
    const auto error = base::error_of([&] { pipeline.next(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kOutOfRange) << error->what();
    EXPECT_EQ(trainer.steps_done(), 3);
  }
}

/// An evaluation between two steps is made by its own threads, gives the bits that it gives without
/// them, and leaves the batches of training as they were.
TEST(BatchPipelineTest, EvaluationIsPreparedInTheBackground) {
  const RunConfig config = layout_config({});
  const std::thread::id caller = std::this_thread::get_id();
  const auto run = [&](Pipeline mode) {
    Trainer trainer(config, Device::cpu());
    SpoiledSource source = spoiled(config, 0);
    BatchPipeline training(trainer, sparse::Mode::kTraining, mode);
    BatchPipeline evaluation(trainer, sparse::Mode::kEvaluation, mode);
    start(training, source);
    std::vector<float> results;
    for (int step = 0; step < 3; ++step) {
      results.push_back(static_cast<float>(trainer.step(*training.next()->prepared).loss));
      training.settle();
      source.start_evaluation(-1);
      evaluation.start([&](Batch& batch) {
        EXPECT_EQ(std::this_thread::get_id() != caller, mode == Pipeline::kOn);
        return source.next_evaluation(batch);
      });
      int64_t batches = 0;
      while (const BatchPipeline::Item* item = evaluation.next()) {
        const model::Pass pass = trainer.predict(*item->prepared);
        results.insert(results.end(), pass.predictions.begin(), pass.predictions.end());
        ++batches;
        if (step == 1) break;  // left early
      }
      evaluation.settle();
      EXPECT_EQ(batches, step == 1 ? 1 : config.eval.max_batches);
    }
    EXPECT_EQ(source.fetched(), mode == Pipeline::kOn ? 5 : 3);
    return results;
  };
  EXPECT_EQ(run(Pipeline::kOn), run(Pipeline::kOff));
}

TEST(BatchPipelineTest, ASettledBatchComesNext) {
  const RunConfig config = layout_config({});
  Trainer trainer(config, Device::cpu());
  SpoiledSource source = spoiled(config, 0);
  BatchPipeline pipeline(trainer, sparse::Mode::kTraining, Pipeline::kOn);
  start(pipeline, source);
  for (int64_t i = 0; i < 4; ++i) {
    const BatchPipeline::Item* item = pipeline.next();
    ASSERT_NE(item, nullptr);
    EXPECT_EQ(item->delivery.position.batch, i);
    if (i % 2 == 0) pipeline.settle();
    if (i == 2) pipeline.settle();
  }
}

}  // namespace
}  // namespace segue::train
