// Logs in which more than one column could be meant: which one is taken, and that the proposal says
// what else there is.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "data/propose/column_shapes.h"
#include "data/propose/propose_test_util.h"
#include "data/propose/table_sample.h"

namespace segue::data {
namespace {

using ProposeChoices = ProposedLog;

// ---- times ----

/// Both are possible where no day is above 12; where one is, there is no question.
TEST_F(ProposeChoices, DaysAndMonthsInEitherOrder) {
  const auto written = [&](int64_t days, const char* form) {
    put("log.csv",
        "user,item,when,clicked\n" + rows([&](int64_t i, int64_t user, int64_t item, int64_t) {
          const int64_t day = i % days + 1, month = i / days % 12 + 1;
          return fmt::format("{},{},{},{}", user, item, fmt::format(fmt::runtime(form), day, month),
                             i % 2);
        }));
    const LogSchema s = propose();
    EXPECT_EQ(prepare(s), 3000) << form;
    return s.time_format;
  };
  EXPECT_EQ(written(12, "{:02}-{:02}-2019"), "%d-%m-%Y");
  EXPECT_TRUE(says("FILL IN: or is it \"%m-%d-%Y\"")) << text_;
  EXPECT_EQ(written(12, "{:02}/{:02}/19 08:05"), "%m/%d/%y %H:%M");
  EXPECT_TRUE(says("FILL IN: or is it \"%d/%m/%y %H:%M\"")) << text_;
  EXPECT_EQ(written(28, "{:02}/{:02}/17"), "%d/%m/%y");
  EXPECT_FALSE(says("FILL IN: or is it")) << text_;
  EXPECT_EQ(written(28, "{:02}.{:02}.17 08:05:00"), "%d.%m.%y %H:%M:%S");
}

// ---- header lines ----

TEST_F(ProposeChoices, TheIndexOfPandasIsNoDataAndNoColumn) {
  put("log.csv",
      ",user,item,time,clicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{},{},{},{},{}", i, user, item, time, i % 2);
      }));
  const LogSchema s = propose();
  EXPECT_TRUE(s.csv_columns.empty()) << text_;
  EXPECT_EQ(s.user, "user");
  EXPECT_TRUE(says("# Left out: column 1: has no name")) << text_;
  EXPECT_EQ(prepare(s), 3000);
}

TEST_F(ProposeChoices, AWrittenTimeIsNoNameOfAColumn) {
  put("log.csv", rows([](int64_t i, int64_t user, int64_t item, int64_t) {
        return fmt::format("u{},i{},{:02} Nov 2023 {:02}:13:00 PM,{}", user, item, i % 28 + 1,
                           i % 12 + 1, i % 3 == 0 ? "yes" : "no");
      }));
  const LogSchema s = propose();
  EXPECT_EQ(s.csv_columns.size(), 4U) << text_;
  EXPECT_EQ(s.time_format, "%d %b %Y %I:%M:%S %p");
  EXPECT_GT(prepare(s), 1000);
  put("log.csv", rows([](int64_t i, int64_t user, int64_t item, int64_t) {
        return fmt::format("u{},i{},{:02}.11.2023 {:02}:13,{}", user, item, i % 28 + 1, i % 24,
                           i % 3 == 0 ? "yes" : "no");
      }));
  EXPECT_EQ(propose().csv_columns.size(), 4U) << text_;
}

// ---- ids ----

TEST_F(ProposeChoices, IdsAndTimesInTwoPiecesAreNoLists) {
  put("log.csv", "user,item,time,seen,clicked\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{},AB{} {}XL,{},{:02}.11.2023 {:02}:13,{}", user,
                                          item % 5, item, time, i % 28 + 1, i % 24, i % 2);
                     }));
  const LogSchema s = propose();
  EXPECT_EQ(s.item, "item") << text_;
  EXPECT_FALSE(says("several items")) << text_;
  EXPECT_EQ(prepare(s), 3000);
}

// ---- rows that cannot be used ----

/// Texts of items are long, and a sample of them is not for that.
TEST_F(ProposeChoices, ASampleHasAnEnd) {
  const std::string words(20'000, 'x');
  std::string items = "item,kind,description\n";
  for (int item = 0; item < 4500; ++item) {
    items += fmt::format("{},k{},{} {}|{}\n", item, item % 3, item, words, item);
  }
  put("items.csv", items);
  const FolderSample sample = sample_files(folder_, nullptr);
  ASSERT_EQ(sample.tables.size(), 1U);
  EXPECT_LT(sample.tables[0].rows, 4200);  // 64 MiB of 86
  EXPECT_GT(sample.tables[0].rows, 2000);
  EXPECT_NEAR(sample.tables[0].all_rows, 4500, 100);
  EXPECT_TRUE(several_values(*sample.tables[0].find("description"), 24).separator.empty());
}

}  // namespace
}  // namespace segue::data
