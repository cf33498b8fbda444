// Runs of several ranks, as threads.

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/stage.h"
#include "base/test_util.h"
#include "comm/world.h"
#include "train/run/loop.h"
#include "train/step/layouts_test_util.h"

namespace segue::train {
namespace {

constexpr double kTimeout = 60;

RunConfig config_for(int64_t steps) {
  Layout layout;
  layout.sharding = sparse::Sharding::kRow;
  layout.balance = true;
  RunConfig c = layout_config(layout);
  c.train.steps = steps;
  c.train.log_every = 2;
  c.checkpoint.every_steps = 4;
  return c;
}

/// What the first rank says; all must have done as many steps.
TrainSummary train_on(int ranks, const RunConfig& config, const std::string& folder) {
  std::vector<TrainSummary> summaries(static_cast<size_t>(ranks));
  comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
    LoopOptions options;
    options.own_process = false;
    options.allow_config_changes = {"train.steps"};
    summaries[static_cast<size_t>(world.rank())] = train_loop(config, folder, options, world);
  });
  for (const TrainSummary& s : summaries) {
    EXPECT_EQ(s.steps, config.train.steps);
    EXPECT_TRUE(s.finished);
    EXPECT_EQ(s.held_out->loss, summaries[0].held_out->loss);
  }
  return summaries[0];
}

TEST(LoopRanksTest, RunsAreThoseOfOneRank) {
  RunConfig config = config_for(12);
  config.eval.every_steps = 5;
  const TrainSummary one = train_on(1, config, base::temp_path("one"));
  for (const int ranks : {2, 3}) {
    config.parallel.pipeline = ranks == 3 ? Pipeline::kOn : Pipeline::kOff;
    const TrainSummary several =
        train_on(ranks, config, base::temp_path("on" + std::to_string(ranks)));
    EXPECT_EQ(several.samples, one.samples);
    EXPECT_NEAR(several.last_loss, one.last_loss, 1e-5 * one.last_loss);
    EXPECT_NEAR(several.held_out->loss, one.held_out->loss, 1e-5 * one.held_out->loss);
    EXPECT_NEAR(several.held_out->auc(), one.held_out->auc(), 1e-5);
  }
}

/// Of events, candidates and the sample.
TEST(LoopRanksTest, FeaturesOfSeveralValuesAreThoseOfOneRank) {
  const auto config = [](int64_t steps) {
    RunConfig c = config_for(steps);
    c.model.additional.push_back({"genre", "candidate_genre", "artist", 3});
    c.model.contextual.push_back({.name = "taste", .table = "artist", .values = 2});
    return c;
  };
  const TrainSummary one = train_on(1, config(12), base::temp_path("one"));
  const TrainSummary two = train_on(2, config(12), base::temp_path("two"));
  EXPECT_EQ(two.samples, one.samples);
  EXPECT_NEAR(two.last_loss, one.last_loss, 1e-5 * one.last_loss);
  EXPECT_NEAR(two.held_out->loss, one.held_out->loss, 1e-5 * one.held_out->loss);
  const std::string folder = base::temp_path("parts");
  train_on(2, config(6), folder);
  const TrainSummary resumed = train_on(2, config(12), folder);
  EXPECT_TRUE(resumed.resumed);
  EXPECT_EQ(resumed.last_loss, two.last_loss);
  EXPECT_EQ(resumed.held_out->loss, two.held_out->loss);
}

TEST(LoopRanksTest, GoesOnWithEqualBitsOnAsManyRanks) {
  const TrainSummary whole = train_on(3, config_for(12), base::temp_path("whole"));
  const std::string folder = base::temp_path("parts");
  train_on(3, config_for(6), folder);
  const TrainSummary resumed = train_on(3, config_for(12), folder);
  EXPECT_TRUE(resumed.resumed);
  EXPECT_EQ(resumed.last_loss, whole.last_loss);
  EXPECT_EQ(resumed.held_out->loss, whole.held_out->loss);
}

TEST(LoopRanksTest, GoesOnWithAnyNumberOfRanks) {
  const TrainSummary whole = train_on(1, config_for(12), base::temp_path("whole"));
  for (const int before : {1, 2, 3, 4}) {
    for (const int after : {1, 2, 3, 4}) {
      if (before == after) continue;
      const std::string folder =
          base::temp_path("from" + std::to_string(before) + "to" + std::to_string(after));
      train_on(before, config_for(6), folder);
      const TrainSummary resumed = train_on(after, config_for(12), folder);
      EXPECT_TRUE(resumed.resumed);
      EXPECT_NEAR(resumed.last_loss, whole.last_loss, 1e-5 * whole.last_loss)
          << before << " to " << after;
    }
  }
}

/// Of the group of results, by the marks that exchanges leave: batches are made on other threads.
TEST(LoopRanksTest, TheLoopAddsNoExchangesToThoseOfAStep) {
  constexpr int kRanks = 2;
  const auto gathers = [](int64_t steps) {
    RunConfig config = config_for(steps);
    config.parallel.pipeline = Pipeline::kOn;
    config.checkpoint.every_steps = 0;
    base::start_stage_recording();
    train_on(kRanks, config, base::temp_path("gathers" + std::to_string(steps)));
    const base::StageRecording recording = base::stop_stage_recording();
    return std::ranges::count_if(recording.events, [&](const base::StageEvent& event) {
      const std::string& thread = recording.threads[static_cast<size_t>(event.thread)];
      return std::string_view(event.name) == "all_gather" && !thread.starts_with("pipeline");
    });
  };
  EXPECT_EQ(gathers(19) - gathers(10), 9 * kRanks);
}

TEST(LoopRanksTest, MetricsTellAboutRanks) {
  const std::string folder = base::temp_path("run");
  train_on(2, config_for(4), folder);
  const std::string metrics = base::read_file(folder + "/metrics.jsonl");
  for (const char* key : {"\"ranks\": 2", "imbalance_before", "imbalance_after", "bytes_sent"}) {
    EXPECT_TRUE(base::contains(metrics, key)) << key;
  }
}

TEST(LoopRanksTest, AnErrorOfOneRankEndsAll) {
  const auto error = base::error_of([&] {
    comm::run_as_threads(3, kTimeout, [&](comm::World& world) {
      LoopOptions options;
      options.own_process = false;
      RunConfig config = config_for(50);
      if (world.rank() == 1) config.train.arena_gib = 1e-4;  // it runs out of memory
      train_loop(config, base::temp_path("broken"), options, world);
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory) << error->what();
}

TEST(LoopRanksTest, RanksWithAnotherConfigAreRefused) {
  const auto error = base::error_of([&] {
    comm::run_as_threads(2, kTimeout, [&](comm::World& world) {
      LoopOptions options;
      options.own_process = false;
      RunConfig config = config_for(4);
      if (world.rank() == 1) config.train.seed = 7;
      train_loop(config, base::temp_path("differ"), options, world);
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kConfig) << error->what();
  EXPECT_TRUE(base::contains(error->what(), "train.seed: 1 there, 7 here"));
}

/// What is not finite on one rank is left out on all: they go on together, and stop together.
TEST(LoopRanksTest, StepsThatAreNotFiniteAreLeftOutByAll) {
  for (const Pipeline pipeline : {Pipeline::kOff, Pipeline::kOn}) {
    const std::string name = pipeline == Pipeline::kOn ? "ahead" : "in_turn";
    std::vector<std::string> said(3);
    comm::run_as_threads(3, kTimeout, [&](comm::World& world) {
      LoopOptions options;
      options.own_process = false;
      RunConfig config = config_for(12);
      config.parallel.pipeline = pipeline;
      config.optimizer.lr = 1e30;  // the second step cannot be finite
      config.optimizer.clip_norm = 0;
      config.train.non_finite = NonFinite::kSkip;
      config.train.max_skipped = 3;
      const auto error =
          base::error_of([&] { train_loop(config, base::temp_path(name), options, world); });
      ASSERT_TRUE(error);
      said[static_cast<size_t>(world.rank())] = error->what();
    });
    for (const std::string& text : said) EXPECT_TRUE(base::contains(text, "step 2: ")) << text;
  }
}

/// By the rank that failed, while it still runs.
TEST(LoopRanksTest, TheOthersAreToldWhy) {
  std::string heard;
  std::promise<void> told;
  std::future<void> all_told = told.get_future();
  comm::run_as_threads(2, kTimeout, [&](comm::World& world) {
    LoopOptions options;
    options.own_process = false;
    RunConfig config = config_for(50);
    if (world.rank() == 1) config.train.arena_gib = 1e-4;  // it runs out of memory
    const auto error =
        base::error_of([&] { train_loop(config, base::temp_path("broken"), options, world); });
    ASSERT_TRUE(error);
    if (world.rank() == 1) {
      all_told.wait_for(std::chrono::seconds(20));
    } else {
      heard = error->what();
      told.set_value();
    }
  });
  EXPECT_TRUE(base::contains(heard, "rank 1 gave up")) << heard;
  EXPECT_TRUE(base::contains(heard, "arena")) << heard;
}

}  // namespace
}  // namespace segue::train
