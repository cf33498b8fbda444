// Any layout, same training.

#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "train/step/layouts_test_util.h"

namespace segue::train {
namespace {

constexpr int64_t kSteps = 100;
constexpr double kTimeout = 60;

Trained alone(const Layout& layout) {
  Layout one;
  one.wire = layout.wire;
  const std::unique_ptr<comm::World> world = comm::self_world();
  return train_layout(*world, one, kSteps);
}

/// The f32 wire moves nothing but the order of sums; 16-bit wires round gradients per rank.
double tolerance_of(const Layout& layout) {
  return layout.wire == sparse::Wire::kF32 ? 1e-5 : 1e-3;
}

void expect_trains_as_one_rank(const Layout& layout) {
  const Trained expected = alone(layout);
  std::vector<Trained> trained(static_cast<size_t>(layout.ranks));
  comm::run_as_threads(layout.ranks, kTimeout, [&](comm::World& world) {
    trained[static_cast<size_t>(world.rank())] = train_layout(world, layout, kSteps);
  });
  expect_same_training(trained[0], expected, tolerance_of(layout));
  for (const Trained& t : trained) {  // all ranks know the same
    EXPECT_EQ(t.losses, trained[0].losses);
    EXPECT_EQ(t.lifetime_auc, trained[0].lifetime_auc);
    EXPECT_EQ(t.eval_loss, trained[0].eval_loss);
  }
}

std::string name_of(const testing::TestParamInfo<Layout>& info) { return info.param.name(); }

class LayoutsTest : public testing::TestWithParam<Layout> {};
TEST_P(LayoutsTest, TrainsAsOneRank) { expect_trains_as_one_rank(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Pairwise, LayoutsTest, testing::ValuesIn(pairwise_layouts()), name_of);

class SlowLayoutsTest : public testing::TestWithParam<Layout> {};
TEST_P(SlowLayoutsTest, TrainsAsOneRank) { expect_trains_as_one_rank(GetParam()); }
INSTANTIATE_TEST_SUITE_P(All, SlowLayoutsTest, testing::ValuesIn(all_layouts()), name_of);

/// Ranks that share a GPU: what they exchange goes through host memory.
TEST(GpuLayoutsTest, RanksSharingAGpuTrainAsOneRank) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  using sparse::Sharding;
  const std::unique_ptr<comm::World> self = comm::self_world();
  const Trained expected = train_layout(*self, {}, kSteps, Device::cuda());
  for (const Layout& layout :
       {Layout{2, Sharding::kRow, sparse::Wire::kF32, true, true, 1},
        Layout{2, Sharding::kColumn, sparse::Wire::kF32, false, false, 2},
        Layout{4, Sharding::kTable, sparse::Wire::kF32, true, true, 2},
        Layout{4, Sharding::kReplicated, sparse::Wire::kF32, true, false, 1},
        Layout{3, Sharding::kTableRow, sparse::Wire::kF16, false, true, 1}}) {
    SCOPED_TRACE(layout.name());
    Trained first;
    comm::run_as_threads(layout.ranks, kTimeout, [&](comm::World& world) {
      const Trained trained = train_layout(world, layout, kSteps, Device::cuda());
      if (world.rank() == 0) first = trained;
    });
    expect_same_training(first, expected, tolerance_of(layout));
  }
}

TEST(GpuLayoutsTest, OneRankOverNcclGivesTheBitsOfOneAlone) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const std::unique_ptr<comm::World> self = comm::self_world();
  const Trained expected = train_layout(*self, {}, kSteps, Device::cuda());
  comm::CommConfig config;
  config.transport = comm::Transport::kNccl;
  const std::unique_ptr<comm::World> world = comm::join_world(config);
  const Trained trained = train_layout(*world, {}, kSteps, Device::cuda(), config);
  EXPECT_EQ(trained.losses, expected.losses);
  EXPECT_EQ(trained.eval_loss, expected.eval_loss);
}

TEST(RanksTest, RepeatedRunsGiveEqualBitsWithAndWithoutThePipeline) {
  std::vector<std::vector<double>> losses;
  for (const bool pipeline : {false, true, true}) {
    const Layout layout{3, sparse::Sharding::kRow, sparse::Wire::kF16, true, pipeline, 1};
    std::vector<double> of_first;
    comm::run_as_threads(3, kTimeout, [&](comm::World& world) {
      const Trained trained = train_layout(world, layout, 20);
      if (world.rank() == 0) of_first = trained.losses;
    });
    losses.push_back(of_first);
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[1], losses[2]);
}

TEST(RanksTest, ATensorParallelSizeThatDoesNotDivideIsRefused) {
  Layout layout;
  layout.ranks = 3;
  layout.tensor_parallel = 2;
  const std::unique_ptr<comm::World> world = comm::self_world();
  const std::optional<Error> error =
      base::error_of([&] { const Ranks ranks(*world, layout_config(layout), Device::cpu()); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(base::contains(error->what(), "parallel.tensor_parallel"));
}

TEST(RanksTest, RanksOnTheSameCoresShareThem) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) GTEST_SKIP() << "OMP_NUM_THREADS decides";
  const ThreadsScope restore(base::num_threads());
  const int all = fair_threads(Ranks());
  for (const int ranks : {2, 3}) {
    comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
      const Ranks group(world, layout_config({}), Device::cpu());
      EXPECT_EQ(fair_threads(group), std::max(1, all / ranks));
    });
  }
}

/// Losses of the first steps; the same on all ranks.
std::vector<double> losses_on(int ranks, const RunConfig& config) {
  std::vector<double> losses;
  comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
    Ranks group(world, config, Device::cpu());
    Trainer trainer(config, Device::cpu(), group);
    const std::unique_ptr<Source> source = make_source(config, world.rank(), world.size());
    source->start(source->first());
    Batch batch;
    for (int step = 0; step < 10; ++step) {
      source->next(batch);
      const double loss = step_on(trainer, batch).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

void expect_losses_of_one_rank(int ranks, const RunConfig& config) {
  RunConfig alone = config;
  alone.parallel.tensor_parallel = 1;
  const std::vector<double> expected = losses_on(1, alone);
  const std::vector<double> losses = losses_on(ranks, config);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << "step " << i + 1;
  }
}

/// As many ranks as samples, and more: some have nothing to do, and nobody waits for them.
TEST(RanksTest, RanksWithoutSamplesTakePart) {
  Layout layout;
  layout.sharding = sparse::Sharding::kRow;
  RunConfig config = layout_config(layout);
  config.data.batch_size = 2;
  expect_losses_of_one_rank(4, config);
}

/// The longest sample of a batch lies on one rank, and its length counts on all.
TEST(RanksTest, ScoresAreDividedByTheLongestSampleOfAllRanks) {
  RunConfig config = layout_config({});
  config.data.batch_size = 6;
  config.optimizer.lr = 1e-2;
  config.model.attention.score_scale = model::ScoreScale::kBatchMax;
  expect_losses_of_one_rank(3, config);
  config.parallel.tensor_parallel = 2;
  expect_losses_of_one_rank(4, config);
}

}  // namespace
}  // namespace segue::train
