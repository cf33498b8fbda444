#include "train/plan/memory_plan.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

RunConfig full_config() { return filling_memory(tiny_config()); }

std::vector<std::pair<std::string, RunConfig>> variants() {
  std::vector<std::pair<std::string, RunConfig>> all{{"concat", full_config()}};
  RunConfig c = full_config();
  c.model.identities = {false, false, false};
  all.emplace_back("identities off", c);
  c.model.recompute = {true, true, true};
  all.emplace_back("recompute", c);
  c = full_config();
  c.model.layer = model::LayerKind::kGated;
  c.model.tokens = model::TokenKind::kInterleaved;
  c.model.max_seq_len = 256;
  all.emplace_back("gated", c);
  c.model.labels = model::LabelKind::kEveryItem;
  c.model.head = model::HeadKind::kDirect;
  all.emplace_back("every item is a label", c);
  c = full_config();
  c.train.precision = Precision::kF64;
  all.emplace_back("f64", c);
  c = full_config();
  c.train.micro_batch_tokens = 1 << 20;
  all.emplace_back("one micro-batch", c);
  c = full_config();
  c.model.layers = 4;
  c.model.additional.clear();
  c.sparse.backward_wire = sparse::Wire::kF16;
  all.emplace_back("no additional features", c);
  c = full_config();
  c.model.additional[0].values = 6;
  c.model.contextual[0].values = 3;
  c.sparse.tables[1].rows = 1'000'000;  // more ids, and still nearly all different
  all.emplace_back("features of several values", c);
  c = full_config();
  c.model.layers = 3;
  c.model.truncation = {1, 20};
  c.train.micro_batch_tokens = 1 << 20;  // all of them are long: nothing but one micro-batch
  all.emplace_back("truncated", c);
  c = full_config();
  c.train.precision = Precision::kBf16;
  all.emplace_back("bf16", c);
  c.model.head_precision = model::HeadPrecision::kTraining;
  all.emplace_back("bf16, head too", c);
  c.model.head = model::HeadKind::kDirect;
  all.emplace_back("bf16, direct head too", c);
  c = all[all.size() - 3].second;
  c.model.dim = 64;  // on a GPU attention of the last layer then norms its rows itself
  all.emplace_back("bf16, 64 columns", c);
  c.model.layers = 1;
  all.emplace_back("bf16, 64 columns, one layer", c);
  return all;
}

int64_t peak_of(const RunConfig& c, Device device) {
  Trainer trainer(c, device);
  const data::RandomBatches data = random_batches(c);
  Batch batch;
  for (int64_t step = 1; step <= 2; ++step) {
    data.fill(step, batch);
    step_on(trainer, batch);
  }
  EXPECT_EQ(trainer.arena().capacity(), plan_run(c, device).arena_bytes);
  return trainer.arena().high_water();
}

void expect_planned(Device device) {
  for (const auto& [name, c] : variants()) {
    if (device.is_cuda() && c.train.precision == Precision::kF64) continue;
    SCOPED_TRACE(name);
    const model::StepMemory plan = step_memory(c, device);
    const int64_t counted = plan.rows + plan.kept + plan.working;
    const int64_t peak = peak_of(c, device);
    EXPECT_LE(peak, counted + counted / 5);
    EXPECT_GE(peak, device.is_cpu() ? counted * 9 / 10 : counted / 2);
  }
}

TEST(MemoryPlanTest, StepsStayBelowThePlanAndNearIt) { expect_planned(Device::cpu()); }

TEST(GpuMemoryPlanTest, StepsStayBelowThePlanAndNearIt) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
  expect_planned(Device::cuda());
}

TEST(MemoryPlanTest, RecomputeSavesWhatItNoLongerKeeps) {
  RunConfig c = full_config();
  const MemoryPlan plan = memory_plan(c, Device::cuda());
  ASSERT_EQ(plan.switches.size(), 3u);
  for (const model::MemorySwitch& s : plan.switches) {
    EXPECT_GE(s.bytes, 0) << s.key;
    EXPECT_TRUE(base::contains(plan.switches_text(), s.key));
  }
  c.model.layers = 8;  // a layer that is rebuilt lives once, kept ones add up
  for (const model::MemorySwitch& s : memory_plan(c, Device::cuda()).switches) {
    EXPECT_GT(s.bytes, 0) << s.key;
  }
}

TEST(MemoryPlanTest, BitsOfDropoutAreKeptOnAGpu) {
  RunConfig on = full_config();
  on.model.dropout = on.model.input_dropout = 0.1;
  RunConfig off = on;
  off.model.dropout = off.model.input_dropout = 0;
  const auto kept = [](const RunConfig& c, Device device) { return step_memory(c, device).kept; };
  EXPECT_GT(kept(on, Device::cuda()), kept(off, Device::cuda()));
  EXPECT_EQ(kept(on, Device::cpu()), kept(off, Device::cpu()));
}

/// Of one layer, that at target rows: its input, statistics of its norm, and h = norm(input) unless
/// attention makes that on the way.
TEST(MemoryPlanTest, NormedRowsOfTheLastLayerCountWhereTheyAreStored) {
  RunConfig c = full_config();
  c.model.layers = 1;
  c.model.dropout = c.model.input_dropout = 0;
  const auto bytes_per_token = [&](int64_t dim, Precision precision, Device device) {
    c.model.dim = dim;
    c.train.precision = precision;
    constexpr int64_t kTokens = 2048;
    c.train.micro_batch_tokens = kTokens;
    const int64_t once = step_memory(c, device).kept;
    c.train.micro_batch_tokens = 2 * kTokens;
    return static_cast<double>(step_memory(c, device).kept - once) / kTokens;
  };
  const Device cpu = Device::cpu(), gpu = Device::cuda();
  constexpr int64_t kStatistics = 2 * 4 + 6 * 4;  // and the indices of a token
  EXPECT_EQ(bytes_per_token(64, Precision::kBf16, gpu), 64 * 2 + kStatistics);
  EXPECT_EQ(bytes_per_token(96, Precision::kBf16, gpu), 2 * 96 * 2 + kStatistics);
  EXPECT_EQ(bytes_per_token(64, Precision::kF32, gpu), 2 * 64 * 4 + kStatistics);
  EXPECT_EQ(bytes_per_token(64, Precision::kBf16, cpu), 2 * 64 * 4 + kStatistics);
}

TEST(MemoryPlanTest, AGivenArenaIsTaken) {
  RunConfig c = full_config();
  c.train.arena_gib = 0.25;
  EXPECT_EQ(plan_run(c, Device::cpu()).arena_bytes, int64_t{1} << 28);
  EXPECT_TRUE(base::contains(memory_plan(c, Device::cpu()).text(), "train.arena_gib"));
}

TEST(MemoryPlanTest, TooLittleMemoryGivesTheTableAndTheKeys) {
  const RunConfig c = full_config();
  const MemoryPlan plan = memory_plan(c, Device::cuda());
  const auto error = base::error_of([&] { require_memory(plan, Device::cuda(), 1e6); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory);
  for (const char* word :
       {"rows of a batch", "data.batch_size", "train.micro_batch_tokens", "model.recompute.uvqk"}) {
    EXPECT_TRUE(base::contains(error->what(), word)) << word;
  }
}

TEST(MemoryPlanTest, OnTheCpuAnArenaThatDoesNotFitIsAWarning) {
  const MemoryPlan plan = memory_plan(full_config(), Device::cpu());
  const double arena = plan.of(Purpose::kActivation), rest = plan.total() - arena;
  ASSERT_GT(arena, 0);
  EXPECT_NO_THROW(require_memory(plan, Device::cpu(), rest + arena / 2));
  EXPECT_TRUE(base::error_of(
      [&] { require_memory(plan, Device::cpu(), rest + arena / 2, /*full_batches=*/true); }));
  EXPECT_TRUE(base::error_of([&] { require_memory(plan, Device::cpu(), rest / 2); }));
  EXPECT_TRUE(base::error_of([&] { require_memory(plan, Device::cuda(), rest + arena / 2); }));
}

}  // namespace
}  // namespace segue::train
