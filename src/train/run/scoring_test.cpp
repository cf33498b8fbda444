#include "train/run/scoring.h"

#include <filesystem>
#include <map>
#include <optional>

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

TEST_F(StoreScoringTest, RulesAreOfTheEventsAskedFor) {
  const RunConfig config = store_config(folder);
  const StoreScorer scorer(config);
  const std::vector<model::TaskConfig> tasks = make_model(config)->tasks();
  const auto aucs = [&](std::span<const int64_t> positions) {
    std::map<std::string, double> result;
    const std::vector<data::Rule> rules = scorer.facts(tasks, positions).rules.at(0);
    std::vector<float> labels;
    for (const int64_t p : positions) {
      labels.push_back(scorer.store().in_pool(0)[static_cast<size_t>(p)] != 0 ? 1.f : 0.f);
    }
    for (const data::Rule& rule : rules) {
      result[rule.name] = ops::exact_auc(rule.predictions, labels);
    }
    return result;
  };
  std::vector<int64_t> all;
  for (int64_t window = 0; window < 10; ++window) {
    const std::vector<int64_t> some = scorer.anchors(window);
    all.insert(all.begin(), some.begin(), some.end());
  }
  const auto of_all = aucs(all);
  const std::optional<double> oracle = scorer.oracle_auc(all);
  ASSERT_TRUE(oracle);
  for (const char* name : {"item", "user", "user-artist"}) {
    ASSERT_TRUE(of_all.contains(name)) << name;
    EXPECT_GT(*oracle, of_all.at(name)) << name;
  }
  all.resize(all.size() / 2);
  EXPECT_NE(aucs(all), of_all);
}

}  // namespace
}  // namespace segue::train
