#include "train/run_state.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

TEST(RunStateTest, ComesBackWithEveryBit) {
  RunState state;
  state.step = 7;
  state.next = {3, int64_t{1} << 53};
  state.eval_pending = true;
  state.last_auc = 0.1 + 0.2;
  state.interval.loss = 1.0 / 3;
  state.interval.lengths = {1, 0, 5};
  state.loss_score.variance = 5e-324;
  state.mllog = R"({"a": "\"quoted\""})";
  state.config = "[model]\nlayers = 3\n";
  const RunState back = run_state_from_json(to_json(state));
  EXPECT_EQ(to_json(back), to_json(state));
  EXPECT_EQ(back.next, state.next);
  EXPECT_EQ(back.last_auc, state.last_auc);
  EXPECT_EQ(back.interval.loss, state.interval.loss);
  EXPECT_EQ(back.loss_score.variance, state.loss_score.variance);
  EXPECT_EQ(back.mllog, state.mllog);
  EXPECT_EQ(back.config, state.config);
}

TEST(RunStateTest, AnotherVersionsStateIsSaid) {
  for (const char* text : {"{}", "[1]", "{\"step\": \"seven\"}", "no json"}) {
    const auto error = base::error_of([&] { run_state_from_json(text); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
  }
}

TEST(RunStateTest, DifferencesNameKeyAndBothValues) {
  RunConfig before = tiny_config(), now = before;
  now.optimizer.lr = 0.5;
  now.sparse.tables[1].rows = 21;
  now.train.threads = 7;  // how, not what
  const auto differences = config_differences(base::to_toml(before), base::to_toml(now));
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].key, "optimizer.lr");
  EXPECT_EQ(differences[0].now, "0.5");
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

}  // namespace
}  // namespace segue::train
