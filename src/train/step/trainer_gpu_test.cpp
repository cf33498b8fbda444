#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

class GpuTrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
  }
};

RunConfig config_of(bool gated, Precision precision) {
  RunConfig c = tiny_config();
  c.train.precision = precision;
  if (gated) {
    c.model.layer = model::LayerKind::kGated;
    c.model.tokens = model::TokenKind::kInterleaved;
    c.model.max_seq_len = 48;
  }
  return c;
}

std::vector<double> losses_on(Device device, const RunConfig& config, int64_t steps) {
  Trainer trainer(config, device);
  const data::RandomBatches data = random_batches(config);
  Batch batch;
  std::vector<double> losses;
  for (int64_t step = 1; step <= steps; ++step) {
    data.fill(step, batch);
    losses.push_back(step_on(trainer, batch).loss);
  }
  return losses;
}

TEST_F(GpuTrainerTest, LossesFollowTheCpu) {
  for (const bool gated : {false, true}) {
    const RunConfig c = config_of(gated, Precision::kF32);
    const std::vector<double> cpu = losses_on(Device::cpu(), c, 20);
    const std::vector<double> gpu = losses_on(Device::cuda(), c, 20);
    for (size_t i = 0; i < cpu.size(); ++i) {
      EXPECT_NEAR(gpu[i], cpu[i], 1e-4 * std::abs(cpu[i])) << "step " << i + 1;
    }
    const std::vector<double> bf16 =
        losses_on(Device::cuda(), config_of(gated, Precision::kBf16), 20);
    for (size_t i = 0; i < cpu.size(); ++i) {
      EXPECT_NEAR(bf16[i], cpu[i], 2e-2 * std::abs(cpu[i])) << "step " << i + 1;
    }
  }
}

TEST_F(GpuTrainerTest, BatchesPreparedAStepAheadGiveEqualBits) {
  RunConfig c = config_of(false, Precision::kF32);
  constexpr int64_t kSteps = 20;
  const std::vector<double> expected = losses_on(Device::cuda(), c, kSteps);
  Trainer trainer(c, Device::cuda());
  const data::RandomBatches data = random_batches(c);
  std::array<Batch, 2> batches;
  const std::unique_ptr<model::PreparedBatch> prepared[] = {trainer.model().new_batch(),
                                                            trainer.model().new_batch()};
  const auto prepare = [&](int64_t step) {
    const auto i = static_cast<size_t>(step % 2);
    data.fill(step, batches[i]);
    trainer.prepare(batches[i], *prepared[i]);
  };
  std::vector<double> losses;
  prepare(1);
  for (int64_t step = 1; step <= kSteps; ++step) {
    // Into the memory that the updates of the step before may still be reading.
    prepare(step + 1);
    const StepStats stats = trainer.step(*prepared[static_cast<size_t>(step % 2)]);
    losses.push_back(stats.loss);
    EXPECT_GT(stats.launches, 0);
  }
  EXPECT_EQ(losses, expected);
}

TEST_F(GpuTrainerTest, RepeatedRunsGiveEqualBits) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    const RunConfig c = config_of(false, precision);
    EXPECT_EQ(losses_on(Device::cuda(), c, 20), losses_on(Device::cuda(), c, 20));
  }
}

TEST_F(GpuTrainerTest, NonFiniteGradientsNameTheCulpritAndChangeNothing) {
  const RunConfig c = config_of(false, Precision::kF32);
  Trainer trainer(c, Device::cuda());
  const data::RandomBatches data = random_batches(c);
  Batch batch;
  data.fill(1, batch);
  step_on(trainer, batch);
  model::Parameters& parameters = trainer.model().parameters();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor value =
      parameters.get("_hstu_transducer._output_postprocessor._layer_norm.bias").value;
  copy(value.narrow(0, 0, 1), host_view(std::span(&nan, 1)));
  const Tensor values = parameters.values();
  std::vector<float> before(static_cast<size_t>(values.elements())), after(before.size());
  copy(host_view(std::span(before)), values);
  const auto error = base::error_of([&] { step_on(trainer, batch); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNumeric);
  EXPECT_EQ(trainer.steps_done(), 1);
  copy(host_view(std::span(after)), values);
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_TRUE(before[i] == after[i] || (std::isnan(before[i]) && std::isnan(after[i])));
  }
}

TEST_F(GpuTrainerTest, EvaluationFollowsTheCpu) {
  const RunConfig c = config_of(false, Precision::kF32);
  std::vector<Batch> batches(2);
  for (int64_t i = 0; i < 2; ++i) random_batches(c).fill(100 + i, batches[static_cast<size_t>(i)]);
  Trainer cpu(c, Device::cpu()), gpu(c, Device::cuda());
  const auto evaluate = [&](Trainer& trainer) {
    Evaluator evaluator(c.model.tasks);
    for (const Batch& batch : batches) evaluator.add(predict_on(trainer, batch));
    return evaluator.result();
  };
  const Evaluation expected = evaluate(cpu), found = evaluate(gpu);
  EXPECT_NEAR(found.loss, expected.loss, 1e-5);
  EXPECT_NEAR(found.auc(), expected.auc(), 1e-3);
}

}  // namespace
}  // namespace segue::train
