#include "train/run/scoring.h"

#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "data/inspect/inspect.h"
#include "data/synth/synth_output.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

TEST(ScoringTest, ARunOnRandomSamplesHasNoStore) {
  const std::string message =
      base::message_of(ErrorCode::kInvalidArgument, [] { StoreScorer scorer(tiny_config()); });
  EXPECT_TRUE(base::contains(message, "--set data.store=PATH")) << message;
}

/// Forty users, and what samples of them begin with.
class StoreScoringTest : public testing::Test {
 protected:
  void SetUp() override {
    data::SynthConfig log;
    log.users = 40;
    log.items = 200;
    log.events_per_user = 60;
    data::SynthStoreConfig target;
    target.folder = folder = base::temp_path("scored");
    target.history_length = 16;
    target.min_history = {4};
    data::write_synth_store(data::SynthLog(log), target);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::string folder;
};

/// Batches are filled and prepared ahead or not; the last one is smaller than the others.
TEST_F(StoreScoringTest, ThePipelineChangesNoBits) {
  RunConfig config = store_config(folder);
  config.data.batch_size = 7;
  Trainer trainer(config, Device::cpu());
  const auto scores = [&](Pipeline pipeline) {
    config.parallel.pipeline = pipeline;
    const StoreScorer scorer(config);
    std::vector<std::vector<float>> all;
    const auto each = [&](const model::Pass& pass) { all.push_back(pass.predictions); };
    std::vector<int64_t> positions = scorer.anchors();
    positions.resize(26);
    scorer.score(trainer, positions, each);
    std::vector<data::CandidateQuery> pairs;
    for (size_t i = 0; i < 15; ++i) {
      const int64_t user = scorer.store().users()[static_cast<size_t>(positions[i])];
      pairs.push_back({.user = user, .item = static_cast<int64_t>(i), .time = 1 << 30});
    }
    scorer.score(trainer, pairs, each);
    return all;
  };
  const std::vector<std::vector<float>> expected = scores(Pipeline::kOff);
  EXPECT_EQ(expected.size(), 4u + 3u);
  EXPECT_EQ(expected[3].size(), 5u);
  EXPECT_EQ(scores(Pipeline::kOn), expected);
}

TEST_F(StoreScoringTest, BaselinesAreOfTheEventsAskedFor) {
  const data::EventStore store(folder, data::schema_for(folder).samples());
  const auto aucs = [&](const std::vector<int64_t>& positions) {
    std::map<std::string, double> result;
    for (const Baseline& y : baselines(store, positions)) result[y.name] = y.auc;
    return result;
  };
  std::vector<int64_t> all(static_cast<size_t>(store.num_events()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(all.size() - 1 - i);
  const auto of_all = aucs(all);
  for (const char* name : {"item", "user", "user-artist"}) {
    ASSERT_TRUE(of_all.contains(name)) << name;
    EXPECT_GT(of_all.at("oracle"), of_all.at(name)) << name;
  }
  all.resize(all.size() / 2);
  EXPECT_NE(aucs(all), of_all);
  for (const auto& [name, auc] : aucs({})) EXPECT_EQ(auc, 0.5) << name;
}

}  // namespace
}  // namespace segue::train
