// Whole steps on a GPU against the CPU, for random models, and state that moves between the two.

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/test_util.h"
#include "model/ranker.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/plan/memory_plan.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

class GpuStepTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
  }
};

RunConfig random_config(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto one_of = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  const auto coin = [&] { return random() % 2 == 0; };
  RunConfig c = tiny_config();
  model::ModelConfig& m = c.model;
  m.dim = one_of({16, 32, 64, 136});
  m.heads = one_of({1, 2, 4});
  m.qk_dim = m.v_dim = one_of({8, 16, 32, 64});
  m.layers = one_of({1, 2, 3});
  m.hidden = one_of({16, 40});
  m.layer = coin() ? model::LayerKind::kConcat : model::LayerKind::kGated;
  const bool groups = coin() && m.heads > 1;
  m.output_norm = groups ? model::OutputNorm::kGroup : model::OutputNorm::kLayer;
  m.tokens = coin() ? model::TokenKind::kMerged : model::TokenKind::kInterleaved;
  m.postprocessor = coin() ? model::PostprocessorKind::kL2 : model::PostprocessorKind::kLayerNorm;
  m.attention.contextual_mask = coin();
  m.attention.window = one_of({0, 0, 5, 70});
  m.attention.score_scale = coin() ? model::ScoreScale::kBatchMax : model::ScoreScale::kMaxSeqLen;
  m.identities = {coin(), coin(), coin()};
  m.recompute = {coin(), coin(), coin()};
  if (coin()) m.additional.clear();
  c.sparse.dim = one_of({8, 32});
  c.data.batch_size = one_of({1, 3, 24});
  // Lengths around the edges of tiles.
  c.data.random.lengths.low = one_of({0, 0, 1, 60});
  c.data.random.lengths.high = c.data.random.lengths.low + one_of({1, 3, 8, 130});
  m.max_seq_len = 2 * c.data.random.lengths.high + 8;
  c.train.micro_batch_tokens = one_of({1, 200, 1 << 20});
  c.train.arena_gib = 0;
  return c;
}

TEST_F(GpuStepTest, RandomModelsFollowTheCpu) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const RunConfig c = random_config(seed);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Trainer cpu(c, Device::cpu()), gpu(c, Device::cuda());
    const data::RandomBatches data = random_batches(c);
    Batch batch;
    for (int64_t step = 1; step <= 3; ++step) {
      data.fill(step, batch);
      const StepStats expected = step_on(cpu, batch), found = step_on(gpu, batch);
      EXPECT_NEAR(found.loss, expected.loss, 1e-4 * std::abs(expected.loss) + 1e-6);
      EXPECT_NEAR(found.gradient_norm, expected.gradient_norm,
                  2e-3 * expected.gradient_norm + 1e-6);
    }
  }
}

// ---- repeated work gives equal bits ----

/// The published model beside small tables, with sequences of many tiles.
RunConfig published_config() {
  RunConfig c;
  model::Preset preset = model::preset("yambda-5b");
  c.model = std::move(preset.model);
  c.sparse = std::move(preset.tables);
  c.optimizer = preset.optimizer;
  c.optimizer.warmup_steps = 0;
  c.optimizer.lr = 1e-4;
  c.optimizer.sparse_lr = 1e-3;
  for (sparse::TableConfig& t : c.sparse.tables) t.rows = 20'000;
  c.data.batch_size = 64;
  c.data.random.lengths.high = 800;
  c.train.precision = Precision::kBf16;
  return c;
}

std::vector<std::byte> bytes_of(const Tensor& t, const Stream& stream) {
  std::vector<std::byte> bytes(static_cast<size_t>(t.bytes()));
  copy_bytes(bytes.data(), Device::cpu(), t.data, t.device, bytes.size(), &stream);
  stream.synchronize();
  return bytes;
}

TEST_F(GpuStepTest, RepeatedPassesOfThePublishedModelGiveEqualBits) {
  for (const bool identities : {true, false}) {
    RunConfig c = published_config();
    c.model.identities = {identities, identities, identities};
    sparse::Tables tables(c.sparse, Device::cuda(), DType::kF32, 1);
    model::Ranker ranker(c.model, tables, Device::cuda(), DType::kF32, 1);
    Arena arena(Device::cuda(), plan_run(c, Device::cuda()).arena_bytes);
    const Stream stream(Device::cuda());
    Exec exec;
    exec.arena = &arena;
    exec.stream = &stream;
    exec.device = Device::cuda();
    exec.precision = c.train.precision;
    exec.dropout_key = base::philox_key(1, 1);
    Batch batch;
    random_batches(c).fill(1, batch);
    std::vector<std::vector<std::byte>> first;
    std::map<std::string, int> different;
    const char* wanted = std::getenv("SEGUE_REPEATS");
    const int rounds = wanted != nullptr ? std::atoi(wanted) : 12;
    for (int round = 0; round < rounds; ++round) {
      const Arena::Mark mark(arena);
      ranker.parameters().zero_grads(&stream);
      const model::Pass pass = ranker.run(exec, batch, {.micro_batch_tokens = 1 << 20});
      std::vector<std::pair<std::string, Tensor>> all{{"losses", pass.results.losses},
                                                      {"logits", pass.results.logits},
                                                      {"rows", pass.all_row_gradients}};
      for (const model::Parameter& p : ranker.parameters().all()) all.emplace_back(p.name, p.grad);
      for (size_t i = 0; i < all.size(); ++i) {
        std::vector<std::byte> bytes = bytes_of(all[i].second, stream);
        if (round == 0) {
          first.push_back(std::move(bytes));
        } else if (bytes != first[i]) {
          ++different[all[i].first];
        }
      }
    }
    for (const auto& [name, times] : different) {
      ADD_FAILURE() << "identities " << identities << ": other bits in " << name << " in " << times
                    << " of " << rounds << " rounds";
    }
  }
}

TEST_F(GpuStepTest, RepeatedRunsOfThePublishedModelGiveEqualBits) {
  const RunConfig c = published_config();
  const auto run = [&] {
    Trainer trainer(c, Device::cuda());
    const data::RandomBatches data = random_batches(c);
    Batch batch;
    std::vector<double> losses;
    for (int64_t step = 1; step <= 50; ++step) {
      data.fill(step, batch);
      losses.push_back(step_on(trainer, batch).loss);
    }
    return losses;
  };
  const std::vector<double> first = run(), second = run();
  for (size_t i = 0; i < first.size(); ++i) ASSERT_EQ(first[i], second[i]) << "step " << i + 1;
}

/// Everything that a trainer saves, on the host.
std::vector<std::vector<std::byte>> state_of(Trainer& trainer) {
  std::vector<std::vector<std::byte>> all;
  for (const CheckpointArray& array : trainer.arrays()) {
    all.push_back(bytes_of(array.value, *trainer.stream()));
  }
  return all;
}

TEST_F(GpuStepTest, CheckpointsMoveBetweenCpuAndGpu) {
  const RunConfig c = tiny_config();
  const data::RandomBatches data = random_batches(c);
  Batch batch;
  for (const bool from_gpu : {true, false}) {
    SCOPED_TRACE(from_gpu ? "from the GPU" : "from the CPU");
    Trainer before(c, from_gpu ? Device::cuda() : Device::cpu());
    Trainer after(c, from_gpu ? Device::cpu() : Device::cuda());
    for (int64_t step = 1; step <= 5; ++step) {
      data.fill(step, batch);
      step_on(before, batch);
    }
    const std::string folder = base::temp_path(from_gpu ? "from_gpu" : "from_cpu");
    CheckpointWriter writer(folder, CheckpointConfig{});
    writer.save(5, before.arrays(), "{}", before.stream());
    ASSERT_TRUE(writer.wait().ok());
    const Checkpoint checkpoint(checkpoint_path(folder, 5));
    checkpoint.read(after.arrays(), after.stream());
    after.restore(checkpoint, 5, before.window().labels_seen());
    EXPECT_EQ(state_of(after), state_of(before));
    for (int64_t step = 6; step <= 10; ++step) {
      data.fill(step, batch);
      const double expected = step_on(before, batch).loss;
      EXPECT_NEAR(step_on(after, batch).loss, expected, 1e-4 * std::abs(expected)) << step;
    }
  }
}

}  // namespace
}  // namespace segue::train
