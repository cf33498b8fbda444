#include "train/run/run_state.h"

#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/test_util.h"
#include "data/store/store_identity.h"
#include "report/mlperf/mllog_run.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

TEST(RunStateTest, ComesBackWithEveryBit) {
  RunState state;
  state.step = 7;
  state.next = {3, int64_t{1} << 53};
  state.window = 2;
  state.eval_pending = true;
  state.last_auc = 0.1 + 0.2;
  state.interval.loss = 1.0 / 3;
  state.interval.lengths.assign(kLengthBins, 5);
  state.loss_score.variance = 5e-324;
  state.mllog = to_json(report::MllogState{.samples = 5});
  state.store = data::StoreIdentity{.content = 5, .ids = {{"user", 3, 9}}}.to_json();
  state.config = "[model]\nlayers = 3\n";
  const RunState back = run_state_from_json(to_json(state));
  EXPECT_EQ(to_json(back), to_json(state));
  EXPECT_EQ(back.next, state.next);
  EXPECT_EQ(back.last_auc, state.last_auc);
  EXPECT_EQ(back.interval.loss, state.interval.loss);
  EXPECT_EQ(back.loss_score.variance, state.loss_score.variance);
  EXPECT_EQ(back.mllog, state.mllog);
  EXPECT_EQ(back.store, state.store);
  EXPECT_EQ(back.config, state.config);
}

TEST(RunStateTest, AnotherVersionsStateIsSaid) {
  for (const char* text : {"{}", "[1]", "{\"step\": \"seven\"}", "no json"}) {
    const auto error = base::error_of([&] { run_state_from_json(text); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
  }
}

/// toml++ makes a table of every part of a key, and whoever walks over them goes as deep.
TEST(RunStateTest, ARecordedConfigWithAnEndlessKeyIsRefused) {
  RunState state;
  for (int i = 0; i < 200'000; ++i) state.config += "a.";
  state.config += "a = 1\n";
  EXPECT_TRUE(base::contains(
      base::message_of(ErrorCode::kCorrupt, [&] { run_state_from_json(to_json(state)); }),
      "line 1 of the recorded config"));
}

/// Each with a value that no run has ever had.
TEST(RunStateTest, ImpossibleValuesAreRefusedByName) {
  using Json = nlohmann::json;
  const int64_t most = std::numeric_limits<int64_t>::max();
  const Json whole = Json::parse(to_json(RunState{}));
  EXPECT_NO_THROW(run_state_from_json(whole.dump()));
  for (const auto& [name, value] : whole.items()) {
    std::vector<Json> values = {nullptr, Json::array({-1}), Json::object(), 1e300};
    if (value.is_number_integer()) values.insert(values.end(), {-2, most, 0.5, true, "5"});
    if (value.is_number()) values.emplace_back(std::numeric_limits<uint64_t>::max());
    if (value.is_boolean()) values.insert(values.end(), {0, 1, "true"});
    for (const Json& strange : values) {
      if (value.is_number_float() && strange.is_number()) continue;
      Json j = whole;
      j[name] = strange;
      const auto error = base::error_of([&] { run_state_from_json(j.dump()); });
      ASSERT_TRUE(error) << name << " = " << strange.dump();
      EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
      EXPECT_TRUE(base::contains(error->what(), "`" + name + "`"));
    }
  }
  for (const auto& [name, strange] : std::vector<std::pair<const char*, Json>>{
           {"wall_seconds", -1},
           {"loss_variance", -0.5},
           {"interval_lengths", std::vector<int64_t>(17, 1)},
           {"interval_lengths", std::vector<int64_t>(16, -1)},
           {"window", 1},  // behind the one that comes next
           {"eval_window", 1},
           {"mllog", "{}"},
           {"mllog", R"({"run_opened": true, "sizes_logged": true, "run_stopped": false,
                         "in_block": true, "samples": -5, "last_eval_samples": -1,
                         "last_eval_accuracy": 0})"},
           {"store", "{}"},
           {"store", R"({"content": "0", "segments": -1, "newest_segment": "0", "ids": []})"},
           {"config", "[model\nlayers = 3"}}) {
    Json j = whole;
    j[name] = strange;
    EXPECT_EQ(base::error_of([&] { run_state_from_json(j.dump()); })->code(), ErrorCode::kCorrupt)
        << name;
  }
}

TEST(RunStateTest, ACheckpointOf01HasNoStore) {
  auto json = nlohmann::json::parse(to_json(RunState{}));
  json.erase("store");
  EXPECT_EQ(run_state_from_json(json.dump()).store, "");
}

TEST(RunStateTest, AConfigThatIsNoTomlIsSaid) {
  EXPECT_EQ(base::error_of([] { require_same_config("[a", "", {}); })->code(), ErrorCode::kCorrupt);
}

TEST(RunStateTest, DifferencesNameKeyAndBothValues) {
  RunConfig before = tiny_config(), now = before;
  now.optimizer.lr = 0.1;
  now.sparse.tables[1].rows = 21;
  now.train.threads = 7;  // how, not what
  const auto differences = config_differences(base::to_toml(before), base::to_toml(now));
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].key, "optimizer.lr");
  EXPECT_EQ(differences[0].now, "0.1");  // no 0.10000000000000001
  EXPECT_EQ(differences[1].key, "sparse.tables.1.rows");
  EXPECT_EQ(differences[1].before, "20");

  const auto error = base::error_of(
      [&] { require_same_config(base::to_toml(before), base::to_toml(now), {"optimizer.lr"}); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(base::contains(error->what(), "sparse.tables.1.rows: was 20, now 21"));
  EXPECT_FALSE(base::contains(error->what(), "optimizer.lr: was"));
  EXPECT_NO_THROW(require_same_config(base::to_toml(before), base::to_toml(now),
                                      {"optimizer", "sparse.tables"}));
}

TEST(RunStateTest, RunsOfAVersionThatDidNotVerifyGoOn) {
  RunConfig config = tiny_config();
  std::string before = base::to_toml(config);
  const size_t at = before.find("verify = \"auto\"");
  ASSERT_NE(at, std::string::npos);
  before.erase(at, before.find('\n', at) - at);
  config.data.verify = data::VerifyMode::kAlways;
  EXPECT_TRUE(config_differences(before, base::to_toml(config)).empty());
}

TEST(RunStateTest, KeysThatAnEarlierVersionDidNotHaveStoodAtTheirDefaults) {
  RunConfig config = tiny_config();
  const auto without = [](std::string text, const std::string& line) {
    size_t at = 0;
    while ((at = text.find(line)) != std::string::npos) text.erase(at, line.size());
    return text;
  };
  const std::string before = without(base::to_toml(config), "optimizer = \"default\"\n");
  ASSERT_NE(before, base::to_toml(config));
  EXPECT_TRUE(config_differences(before, base::to_toml(config)).empty());
  config.sparse.tables[1].optimizer = sparse::OptimizerChoice::kSgd;
  const auto differences = config_differences(before, base::to_toml(config));
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].key, "sparse.tables.1.optimizer");
}

}  // namespace
}  // namespace segue::train
