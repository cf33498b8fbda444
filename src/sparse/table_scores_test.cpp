// Tables that forget by the scores that batches give to ids.

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sparse/tables_test_util.h"

namespace segue::sparse {
namespace {

using test::Bench;
using test::Ids;

constexpr TableId kTable{0};

TablesConfig by_score(int64_t rows) {
  TableConfig table{.name = "item"};
  table.kind = TableKind::kDynamic;
  table.max_rows = table.start_rows = rows;
  table.evict = Evict::kScore;
  table.score = {"column"};
  TablesConfig config;
  config.tables = {table};
  config.dim = 6;
  return config;
}

/// One batch of these uses and scores.
void use(Tables& tables, const Ids& ids, const Ids& scores, std::span<const int32_t> uses = {},
         Mode mode = Mode::kTraining) {
  Bench bench;
  const Lookup lookup{
      .table = kTable, .feature = "item", .ids = ids, .uses = uses, .scores = scores};
  Ticket ticket = tables.begin(std::span(&lookup, 1), mode);
  (void)tables.rows(bench.exec, ticket, kTable);
}

/// The score of every row, by id.
std::map<int64_t, int64_t> scores_in(Tables& tables) {
  std::map<int64_t, int64_t> scores;
  const test::SavedInMemory saved(tables.table(kTable).snapshot(Extent::kAll));
  const std::vector<int64_t> keys = saved_integers(saved, "key", 1);
  const std::vector<int64_t> stamps = saved_integers(saved, "stamp", 3);
  for (size_t r = 0; r < keys.size(); ++r) scores[id_of_key(keys[r])] = stamps[3 * r + 1];
  return scores;
}

TEST(TableScoresTest, ARowHasTheLargestScoreOfItsLastBatch) {
  Tables tables(by_score(128), Device::cpu(), DType::kF32, 5);
  use(tables, {7, 8, 7, 9}, {3, -5, 10, 0});
  EXPECT_EQ(scores_in(tables), (std::map<int64_t, int64_t>{{7, 10}, {8, -5}, {9, 0}}));
  const std::vector<int32_t> uses = {1, 0, 1, 1};  // places in ids
  use(tables, {8, 7}, {-9, 4, -7, -8}, uses);
  EXPECT_EQ(scores_in(tables), (std::map<int64_t, int64_t>{{7, -7}, {8, 4}, {9, 0}}));
  const auto before = scores_in(tables);
  use(tables, {7, 8, 11}, {}, {}, Mode::kEvaluation);  // has none
  EXPECT_EQ(scores_in(tables), before);
}

/// One bucket: whoever comes takes the place of the lowest score, which may be any in age and uses.
TEST(TableScoresTest, TheLowestScoresGo) {
  Tables tables(by_score(128), Device::cpu(), DType::kF32, 5);
  std::map<int64_t, int64_t> expected;
  for (int64_t step = 1; step <= 40; ++step) {
    Ids ids, scores;
    for (int64_t i = 0; i < 32; ++i) {
      ids.push_back(1000 * step + i);
      scores.push_back((37 * (32 * step + i)) % 1009);
    }
    if (step > 4) {  // rows of this step and the one before stay
      std::vector<std::pair<int64_t, int64_t>> rest;
      for (const auto& [id, score] : expected) {
        if (id < 1000 * (step - 1)) rest.emplace_back(score, id);
      }
      std::ranges::sort(rest);
      for (size_t i = 0; i < ids.size(); ++i) expected.erase(rest[i].second);
    }
    for (size_t i = 0; i < ids.size(); ++i) expected[ids[i]] = scores[i];
    use(tables, ids, scores);
    ASSERT_EQ(scores_in(tables), expected) << step;
  }
}

TEST(TableScoresTest, ScoresThatAreMissingAreNamed) {
  Tables tables(by_score(128), Device::cpu(), DType::kF32, 5);
  const auto message = [&](const Ids& ids, const Ids& scores) {
    return test::message_of(ErrorCode::kInvalidArgument, [&] { use(tables, ids, scores); });
  };
  for (const std::string& text : {message({1, 2, 3}, {}), message({1, 2, 3}, {1, 2})}) {
    EXPECT_TRUE(test::contains(text, "feature `item` has 3 ids")) << text;
    EXPECT_TRUE(test::contains(text, "table `item` forgets by score")) << text;
  }
  EXPECT_EQ(tables.table(kTable).stats()->rows, 0);
}

}  // namespace
}  // namespace segue::sparse
