// What ranks tell each other at the end of a step.

#include "train/step/ranks.h"

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "train/step/layouts_test_util.h"

namespace segue::train {
namespace {

constexpr double kTimeout = 20;

/// Two tasks; sample b of rank r is number 2 b + r of the batch and has b labels.
struct Gathering {
  std::unique_ptr<model::PreparedBatch> prepared = std::make_unique<model::PreparedBatch>();
  model::Pass pass;
};
Gathering gathering_of(int rank) {
  Gathering g;
  g.prepared->rank_samples = {3, 2};
  g.prepared->rank_labels = {3, 1};
  g.prepared->global_labels = 4;
  g.pass.task_losses = {0, 0};
  g.pass.token_offsets = {0};
  g.pass.samples = g.prepared->rank_samples[static_cast<size_t>(rank)];
  for (int64_t b = 0; b < g.pass.samples; ++b) {
    g.prepared->sample_index.push_back(2 * b + rank);
    g.prepared->sample_labels.push_back(b);
    g.pass.token_offsets.push_back(g.pass.token_offsets.back() + 10 * b + rank);
    g.pass.num_labels += b;
  }
  for (int64_t task = 0; task < 2; ++task) {
    for (int64_t b = 0; b < g.pass.samples; ++b) {
      for (int64_t label = 0; label < b; ++label) {
        const auto value = static_cast<float>(100 * task + 10 * (2 * b + rank) + label);
        g.pass.predictions.push_back(value);
        g.pass.labels.push_back(-value);
      }
    }
  }
  return g;
}

TEST(RanksTest, PassesBecomeThatOfTheGlobalBatch) {
  comm::run_as_threads(2, kTimeout, [&](comm::World& world) {
    const Ranks ranks(world, tiny_config(), Device::cpu());
    Gathering g = gathering_of(world.rank());
    ranks.gather(*g.prepared, {}, g.pass);
    EXPECT_EQ(g.pass.samples, 5);
    EXPECT_EQ(g.pass.num_labels, 4);
    EXPECT_EQ(g.pass.token_offsets, (std::vector<int64_t>{0, 0, 1, 11, 22, 42}));
    EXPECT_EQ(g.pass.predictions, (std::vector<float>{20, 30, 40, 41, 120, 130, 140, 141}));
    EXPECT_EQ(g.pass.labels, (std::vector<float>{-20, -30, -40, -41, -120, -130, -140, -141}));
  });
}

TEST(RanksTest, AnyRankStopsAllAndTheFirstAloneSaves) {
  comm::run_as_threads(2, kTimeout, [&](comm::World& world) {
    const Ranks ranks(world, tiny_config(), Device::cpu());
    for (int wishes = 0; wishes < 256; ++wishes) {
      const auto wants = [&](int bit, int rank) { return ((wishes >> (2 * bit + rank)) & 1) != 0; };
      const int r = world.rank();
      const Ranks::StopSave mine{wants(0, r), wants(1, r), wants(2, r), wants(3, r)};
      Gathering g = gathering_of(r);
      for (const Ranks::StopSave& all :
           {ranks.agree(mine), ranks.gather(*g.prepared, mine, g.pass)}) {
        EXPECT_EQ(all.stop, wants(0, 0) || wants(0, 1));
        EXPECT_EQ(all.save, wants(1, 0));
        EXPECT_EQ(all.verified, wants(2, 0) && wants(2, 1));
        EXPECT_EQ(all.full, wants(3, 0) || wants(3, 1));
      }
    }
  });
}

TEST(RanksTest, AllWaitForTheLastOne) {
  comm::run_as_threads(3, kTimeout, [&](comm::World& world) {
    const Ranks ranks(world, tiny_config(), Device::cpu());
    int asked = 0, talks = 0;
    ranks.wait_until([&](double) { return ++asked > 2 * world.rank(); }, [&] { ++talks; });
    EXPECT_EQ(asked, 5);  // as often as the last rank
    EXPECT_EQ(talks, 4);
  });
}

/// A rank whose samples have other numbers of labels than it announced is refused by all.
TEST(RanksTest, LabelsThatDoNotAddUpAreRefused) {
  const std::vector<std::vector<int64_t>> labels{{0, 2}, {0, 0}, {-1, 2}};
  for (const std::vector<int64_t>& of_samples : labels) {
    comm::run_as_threads(2, kTimeout, [&](comm::World& world) {
      const Ranks ranks(world, tiny_config(), Device::cpu());
      Gathering g = gathering_of(world.rank());
      if (world.rank() == 1) g.prepared->sample_labels = of_samples;
      const std::string message =
          base::message_of(ErrorCode::kPeer, [&] { ranks.gather(*g.prepared, {}, g.pass); });
      EXPECT_TRUE(base::contains(message, "rank 1 announced 1 labels")) << message;
    });
  }
}

/// One for sums, on the device, and one for everything else.
TEST(RanksTest, ResultsTakeTwoExchanges) {
  Layout layout;
  layout.sharding = sparse::Sharding::kRow;
  const RunConfig config = layout_config(layout);
  comm::run_as_threads(3, kTimeout, [&](comm::World& world) {
    Ranks ranks(world, config, Device::cpu());
    Trainer trainer(config, Device::cpu(), ranks);
    trainer.set_wish([&] { return Ranks::StopSave{.stop = world.rank() == 2}; });
    const std::unique_ptr<Source> source = make_source(config, world.rank(), world.size());
    Batch batch;
    for (int step = 0; step < 3; ++step) {
      source->next(batch);
      const int64_t before = ranks.results->traffic().collectives;
      step_on(trainer, batch);
      EXPECT_EQ(ranks.results->traffic().collectives - before, 2);
      EXPECT_TRUE(trainer.agreed().stop);
    }
    const int64_t before = ranks.results->traffic().collectives;
    predict_on(trainer, batch);
    EXPECT_EQ(ranks.results->traffic().collectives - before, 2);
  });
}

}  // namespace
}  // namespace segue::train
