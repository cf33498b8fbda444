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

TEST(ScoringTest, BaselinesAreOfTheEventsAskedFor) {
  data::SynthConfig log;
  log.users = 40;
  log.items = 200;
  log.events_per_user = 60;
  data::SynthStoreConfig target;
  target.folder = base::temp_path("baselines");
  target.history_length = 16;
  target.min_history = {4};
  data::write_synth_store(data::SynthLog(log), target);
  {
    const data::EventStore store(target.folder, data::schema_for(target.folder).samples());
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
  std::filesystem::remove_all(target.folder);
}

}  // namespace
}  // namespace segue::train
