#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include "model/ranker_test_util.h"
#include "ops/gpu_test_util.h"

namespace segue::model {
namespace {

using ops::test::ModeBed;

/// Loss and dense gradients of a step, summed over ranks, and the logits of all ranks in order.
struct Outcome {
  double loss = 0;
  std::vector<double> gradients, logits;
};

/// `samples` of the batch per rank; all ranks share the device and attention. One rank: nothing is
/// shared. Models of one task, so that logits of ranks stand one after the other.
Outcome run(Device device, const ModelConfig& config, Precision precision,
            const std::vector<int64_t>& samples) {
  const Batch batch = tiny_batch();
  const int ranks = static_cast<int>(samples.size());
  const auto denominator = static_cast<double>(BatchLayout(config, batch).labels());
  std::vector<std::vector<double>> logits(samples.size());
  Outcome out;
  std::mutex mutex;
  comm::run_as_threads(ranks, 60, [&](comm::World& world) {
    const auto group = HeadGroup::open(world, device, ranks, config.heads);
    ModeBed bed(device, precision);
    sparse::Tables tables(tiny_tables(), device, DType::kF32, 3);
    Ranker ranker(config, tables, device, DType::kF32, 5);
    if (ranks > 1) ranker.set_head_group(group.get());
    ranker.parameters().zero_grads(bed.exec.stream);
    int64_t first = 0;
    for (int q = 0; q < world.rank(); ++q) first += samples[static_cast<size_t>(q)];
    const auto me = static_cast<size_t>(world.rank());
    const Pass pass = ranker.run(bed.exec, batch.slice(first, samples[me]),
                                 {.micro_batch_tokens = 12, .loss_denominator = denominator});
    const std::vector<double> grads = bed.values(ranker.parameters().grads());
    const std::lock_guard lock(mutex);
    logits[me] = pass.logits;
    out.loss += pass.loss;
    out.gradients.resize(grads.size());
    for (size_t i = 0; i < grads.size(); ++i) out.gradients[i] += grads[i];
  });
  for (const auto& part : logits) out.logits.insert(out.logits.end(), part.begin(), part.end());
  return out;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double x : values) most = std::max(most, std::abs(x));
  return most;
}

/// Bounds of the differences between one rank and two, relative to the largest value.
struct Bounds {
  double logits, gradients;
};
void expect_agreement(Device device, Precision precision, Bounds bounds) {
  for (ModelConfig config : {tiny_config(), tiny_gated_config(), tiny_masked_config()}) {
    config.tasks.resize(1);
    for (const bool recompute : {false, true}) {
      config.recompute = {recompute, recompute, recompute};
      const Outcome alone = run(device, config, precision, {4});
      for (const std::vector<int64_t>& samples :
           {std::vector<int64_t>{1, 3}, std::vector<int64_t>{4, 0}}) {
        const Outcome shared = run(device, config, precision, samples);
        EXPECT_NEAR(shared.loss, alone.loss, bounds.logits * std::abs(alone.loss) + 1e-6);
        ASSERT_EQ(shared.logits.size(), alone.logits.size());
        EXPECT_LE(ops::test::largest_difference(shared.logits, alone.logits),
                  bounds.logits * largest(alone.logits));
        EXPECT_LE(ops::test::largest_difference(shared.gradients, alone.gradients),
                  bounds.gradients * largest(alone.gradients));
      }
    }
  }
}

TEST(RankerHeadsBf16Test, RoundsAsOneRankDoes) {
  // Forward to the bit. Gradients of rows are rounded on every rank before ranks are added up.
  expect_agreement(Device::cpu(), Precision::kBf16, {.logits = 0, .gradients = 0x1p-8});
}

class GpuRankerHeadsTest : public ops::test::GpuTest {};

TEST_F(GpuRankerHeadsTest, RanksThatShareAGpuAgreeWithOne) {
  expect_agreement(Device::cuda(), Precision::kF32, {.logits = 1e-4, .gradients = 1e-4});
  // Products of other sizes may add in another order, and then round another way.
  expect_agreement(Device::cuda(), Precision::kBf16, {.logits = 0x1p-5, .gradients = 0x1p-5});
}

}  // namespace
}  // namespace segue::model
