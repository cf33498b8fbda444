#include "train/step/store_checks.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "data/inspect/id_ranges.h"
#include "data/inspect/inspect.h"
#include "data/synth/synth_output.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

/// One of them has these words.
bool says(const std::vector<std::string>& texts, const std::string& words) {
  return std::ranges::any_of(
      texts, [&](const std::string& text) { return text.find(words) != std::string::npos; });
}

class StoreChecksTest : public testing::Test {
 protected:
  void SetUp() override {
    data::SynthConfig log;
    log.users = 200;
    log.items = 150;
    log.days = 12;
    log.events_per_user = 200;
    data::SynthStoreConfig target;
    target.folder = folder_;
    target.history_length = 16;
    target.min_history = {4};
    data::write_synth_store(data::SynthLog(log), target);
    config_ = store_config(folder_);
    config_.data.stream.min_history = 4;
    for (sparse::TableConfig& table : config_.sparse.tables) table.rows = 1000;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> doubts() const { return doubts_about(config_, RunStore(config_)); }
  std::string refusal() const {
    return base::message_of(ErrorCode::kConfig, [&] { RunStore store(config_); });
  }

  const std::string folder_ = base::temp_path("checked");
  RunConfig config_;
};

TEST_F(StoreChecksTest, NothingIsSaidOfAConfigThatFits) {
  EXPECT_EQ(doubts(), std::vector<std::string>{});
}

TEST_F(StoreChecksTest, TablesThatAreTooSmallAreNamedWithTheRowsTheyNeed) {
  const data::EventStore events(config_.data.store, data::schema_for(config_.data.store).samples());
  int64_t users = 0;
  for (const data::IdRange& range : data::id_ranges(events)) {
    if (range.column == "uid") users = range.largest + 1;
  }
  config_.sparse.tables[2].rows = users - 1;
  const std::string said = refusal();
  EXPECT_TRUE(says({said}, "sparse.tables.2.rows = " + std::to_string(users))) << said;
  EXPECT_FALSE(says({said}, "sparse.tables.0")) << said;
  config_.sparse.tables[2].rows = users;
  EXPECT_EQ(doubts(), std::vector<std::string>{});
  config_.sparse.tables[2].rows = 1;
  config_.sparse.out_of_range = sparse::OutOfRange::kClamp;
  EXPECT_EQ(doubts(), std::vector<std::string>{});
}

TEST_F(StoreChecksTest, LabelsOfOneClassAreDoubted) {
  config_.model.tasks[0].bit = 1 << 20;
  EXPECT_TRUE(says(doubts(), "task `listen`: none of "));
}

TEST_F(StoreChecksTest, BatchesThatNoWindowFillsAreDoubted) {
  config_.data.batch_size = 1'000'000;
  EXPECT_TRUE(says(doubts(), "samples on average, not 1000000"));
}

TEST_F(StoreChecksTest, FewHeldOutSamplesAreDoubted) {
  config_.data.stream.window_seconds = 3600;
  EXPECT_TRUE(says(doubts(), "samples are held out, whose AUC is known to about"));
}

TEST_F(StoreChecksTest, HistoriesThatDoNotFitAreDoubted) {
  config_.data.gather.history_length = history_budget(config_);
  EXPECT_EQ(doubts(), std::vector<std::string>{});
  ++config_.data.gather.history_length;
  EXPECT_TRUE(says(doubts(), "raise model.max_seq_len"));
}

TEST_F(StoreChecksTest, TablesThatAreManyTimesTooLargeAreDoubted) {
  config_.sparse.tables[2].rows = 5'000'000;
  EXPECT_TRUE(says(doubts(), "set sparse.tables.2.rows"));
  config_.sparse.tables[2].kind = sparse::TableKind::kDynamic;
  config_.sparse.tables[2].max_rows = 5'000'000;
  EXPECT_EQ(doubts(), std::vector<std::string>{});
}

TEST_F(StoreChecksTest, TablesThatNobodyReadsAreDoubted) {
  sparse::TableConfig table;
  table.name = "spare";
  table.rows = 5;
  config_.sparse.tables.push_back(table);
  EXPECT_TRUE(says(doubts(), "table `spare`"));
}

}  // namespace
}  // namespace segue::train
