// Logs of other shapes than the usual: how times are written, what is an id and what the number of
// a row, what is predicted where nothing says so, and files that are no log.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "data/propose/propose_test_util.h"

namespace segue::data {
namespace {

using base::contains;

using ProposeShapes = ProposedLog;

/// The first column has another number in every row: it is neither a student nor a problem.
TEST_F(ProposeShapes, RowsOfASchool) {
  const std::vector<std::string> skills = {"area", "area;mean", "mode;slope", "mean;slope", "mode"};
  const auto row = [&](int64_t i, int64_t user, int64_t item, int64_t) {
    return fmt::format("{},{},{},{},{},{}.5,2017-03-{:02} 13:05:06", i, user, item,
                       skills[static_cast<size_t>(item % 5)], i % 2, i % 90, i / 100 + 1);
  };
  put("log.csv", "order_id,student,problem,skill,correct,seconds,start\n" + rows(row));
  const LogSchema s = propose();
  EXPECT_EQ(s.user, "student");
  EXPECT_EQ(s.item, "problem");
  EXPECT_EQ(s.flags, std::vector<std::string>{"correct"});
  ASSERT_EQ(s.attributes.size(), 1U) << text_;
  EXPECT_EQ(s.attributes[0].separator, ";");
  EXPECT_FALSE(contains(text_, "A guess")) << text_;
  EXPECT_TRUE(contains(text_, "seconds: changes from row to row of an item; [[numbers]]")) << text_;
}

TEST_F(ProposeShapes, NumbersOfRowsAreNoIds) {
  put("log.csv", "n,a,b,t,y\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                   return fmt::format("r{},{},k{},{},{}", i,
                                      item % 7 == 0 ? "" : fmt::format("u{}", user), item, time,
                                      i % 2);
                 }));
  const std::string text = propose_schema(folder_, nullptr);
  EXPECT_TRUE(contains(text, "user = \"b\"")) << text;  // a is missing in some rows
  EXPECT_TRUE(contains(text, "A guess")) << text;
}

/// A row for every property of an item is no attribute: its last row would stand for all.
TEST_F(ProposeShapes, PropertiesInRows) {
  put("events.csv", "timestamp,visitorid,event,itemid\n" +
                        rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                          return fmt::format("{},{},{},{}", time * 1000, user,
                                             i % 9 == 0 ? "addtocart" : "view", item);
                        }));
  std::string properties = "timestamp,itemid,property,value\n";
  for (int64_t i = 0; i < 40; ++i) {
    properties +=
        fmt::format("1433041200000,{},categoryid,{}\n1433646000000,{},available,1\n", i, i % 5, i);
  }
  put("properties.csv", properties);
  const LogSchema s = propose();
  EXPECT_TRUE(s.attributes.empty()) << text_;
  EXPECT_TRUE(contains(text_, "properties.csv property: differs between rows of an item")) << text_;
}

TEST_F(ProposeShapes, TimesAsPeopleWriteThem) {
  const auto written = [&](const char* column, auto time) {
    put("log.csv", fmt::format("user,item,{},clicked\n", column) +
                       rows([&](int64_t i, int64_t user, int64_t item, int64_t) {
                         return fmt::format("{},{},{},{}", user, item, time(i), i % 2);
                       }));
    const LogSchema s = propose();
    EXPECT_EQ(s.time, column) << text_;
    EXPECT_EQ(prepare(s), 3000);
    return s.time_format;
  };
  EXPECT_EQ(written("when",
                    [](int64_t i) {
                      return fmt::format("{}/{}/2019 {}:08:05 {}", i % 12 + 1, i % 28 + 1,
                                         i % 12 + 1, i % 2 == 0 ? "AM" : "PM");
                    }),
            "%m/%d/%Y %I:%M:%S %p");
  EXPECT_EQ(written("datum",
                    [](int64_t i) {
                      return fmt::format("{:02}.{:02}.2019 {:02}:00", i % 28 + 1, i % 12 + 1,
                                         i % 24);
                    }),
            "%d.%m.%Y %H:%M");
  EXPECT_EQ(written("hour", [](int64_t i) { return fmt::format("141021{:02}", i % 24); }),
            "%y%m%d%H");
  EXPECT_EQ(written("date", [](int64_t i) { return fmt::format("201410{:02}", i % 28 + 1); }),
            "%Y%m%d");
  // Both are possible where no day is above 12.
  EXPECT_EQ(written("date",
                    [](int64_t i) {
                      return fmt::format("{:02}/{:02}/2019", i % 12 + 1, i / 12 % 12 + 1);
                    }),
            "%m/%d/%Y");
  EXPECT_TRUE(contains(text_, "FILL IN: or is it \"%d/%m/%Y\"")) << text_;
}

TEST_F(ProposeShapes, AFewWrongTimesDoNotChangeTheUnit) {
  put("log.csv",
      "user,item,time,clicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        const int64_t broken = i == 5 ? 0 : i == 6 ? 8'000'000'000'000 : time * 1000;
        return fmt::format("{},{},{},{}", user, item, broken, i % 2);
      }));
  EXPECT_EQ(propose().time_unit_seconds, 0.001) << text_;
}

/// Of a log of successes alone the proposal asks who comes back.
TEST_F(ProposeShapes, NothingSaysWhatASuccessIs) {
  put("log.tsv", rows([](int64_t, int64_t user, int64_t item, int64_t time) {
        return fmt::format("user_{}\t{}\tsong {}", user, time, item);
      }));
  const LogSchema s = propose();
  ASSERT_EQ(s.later.size(), 1U) << text_;
  EXPECT_EQ(s.label_pool, s.later[0].name);
  EXPECT_EQ(s.later[0].followed_by, s.kinds);
  EXPECT_TRUE(contains(text_, "FILL IN: nothing says what a success is")) << text_;
  EXPECT_GT(prepare(s), 1000);
}

TEST_F(ProposeShapes, AnswersAreKinds) {
  for (const bool words : {true, false}) {
    const std::string yes = words ? "yes" : "1", no = words ? "no" : "-1";
    put("log.csv",
        "user,item,time,clicked\n" + rows([&](int64_t i, int64_t user, int64_t item, int64_t time) {
          return fmt::format("{},{},{},{}", user, item, time, i % 3 == 0 ? yes : no);
        }));
    const LogSchema s = propose();
    EXPECT_EQ(s.kind, "clicked");
    EXPECT_EQ(s.anchor_kinds, (std::vector<std::string>{no, yes}));
    const auto label = std::ranges::find(s.pools, s.label_pool, &PoolRule::name);
    ASSERT_NE(label, s.pools.end()) << text_;
    EXPECT_EQ(label->kinds, std::vector<std::string>{yes});
    EXPECT_EQ(prepare(s), 3000);
  }
}

/// "007" and "7" are two users, and neither is lost.
TEST_F(ProposeShapes, ZerosInFrontOfIds) {
  put("log.csv",
      "user,item,time,clicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{}{},{:03},{},{}", i % 2 == 0 ? "00" : "", user, item, time, i % 2);
      }));
  const LogSchema s = propose();
  EXPECT_EQ(s.user_ids, IdMapping::kDense);
  EXPECT_EQ(s.item_ids, IdMapping::kDense);
  prepare(s);
  const std::vector<std::string> users = ids("user"), items = ids("item");
  EXPECT_EQ(std::ranges::count(users, "007") + std::ranges::count(users, "7"), 1);
  EXPECT_EQ(users.size(), 30U);
  EXPECT_EQ(std::ranges::count(items, "007"), 1);
}

TEST_F(ProposeShapes, IdsThatNoNumberHoldsAndIdsWithAPoint) {
  put("log.csv",
      "user,item,time,clicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{}.0,99999999999999999{:03},{},{}.0", user, item, time, i % 2);
      }));
  const LogSchema s = propose();
  EXPECT_EQ(s.user, "user");
  EXPECT_EQ(s.flags, std::vector<std::string>{"clicked"});
  EXPECT_EQ(prepare(s), 3000);
  EXPECT_EQ(ids("item").front(), "99999999999999999000");
}

TEST_F(ProposeShapes, OneUser) {
  put("log.csv",
      "user_id,item_id,time,clicked\n" + rows([](int64_t i, int64_t, int64_t item, int64_t time) {
        return fmt::format("0,{},{},{}", item, time, i % 2);
      }));
  const LogSchema s = propose();
  EXPECT_EQ(s.user, "user_id");
  EXPECT_EQ(s.flags, std::vector<std::string>{"clicked"});
}

/// Offers of one moment in one field have no schema; the proposal says what to make of them.
TEST_F(ProposeShapes, SeveralItemsInARow) {
  put("behaviors.tsv", rows([](int64_t i, int64_t user, int64_t item, int64_t) {
        return fmt::format("{}\tU{}\t11/{}/2019 8:55:22 AM\tN{} N7\t{} N{}-1 N9-0", i, user,
                           i / 110 + 1, item, i % 2 == 0 ? "N8-0" : "N9-0 N8-0", item);
      }));
  const std::string text = propose_schema(folder_, nullptr);
  EXPECT_TRUE(contains(text, "user = \"column2\"")) << text;
  EXPECT_TRUE(contains(text, "item = \"\"")) << text;
  EXPECT_TRUE(contains(text, "column5 holds several items a row")) << text;
  EXPECT_TRUE(contains(text, "time_format = \"%m/%d/%Y %I:%M:%S %p\"")) << text;
}

TEST_F(ProposeShapes, NumbersWithACommaAreNamed) {
  put("log.csv",
      "user;item;time;rating\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{};{};{};{},5", user, item, time, i % 5);
      }));
  propose();
  EXPECT_TRUE(contains(text_, "rating: has decimal commas; write numbers with a point")) << text_;
}

TEST_F(ProposeShapes, BlanksQuotesAndColumnsTwice) {
  put("log.csv", "\nuser, item, time, clicked, clicked\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{}, a{}, {}, {}, 1", user, item, time, i % 2);
                     }));
  const LogSchema s = propose();
  EXPECT_EQ(s.csv_separator, ", ");
  EXPECT_EQ(s.item, "item");
  EXPECT_TRUE(contains(text_, "clicked: is a second column of this name")) << text_;
  EXPECT_EQ(prepare(s), 3000);
  EXPECT_EQ(ids("item").front(), "a0");

  put("log.csv",
      "user,item,time,clicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{},\"a {}\",{},{}", user, item, time, i % 2);
      }));
  EXPECT_EQ(propose().csv_separator, ",");
  put("log.csv", "user,title,item,time,clicked\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{},\"two\nlines\",{},{},{}", user, item, time, i % 2);
                     }));
  EXPECT_EQ(propose().item, "item") << text_;
}

TEST_F(ProposeShapes, FilesOfOtherKindsSayWhatMakesATableOfThem) {
  put("log.jsonl", "{\"user\": 1, \"item\": 2}\n{\"user\": 1, \"item\": 3}\n");
  EXPECT_TRUE(contains(refusal(), "log.jsonl: is JSON; bring Parquet or CSV")) << refusal();
  std::filesystem::remove(folder_ + "/log.jsonl");
  put("log.csv", std::string("\xff\xfeu\0s\0", 6));
  EXPECT_TRUE(contains(refusal(), "log.csv: is UTF-16; `iconv")) << refusal();
  put("log.csv", "user,item\r1,2\r3,4\r");
  EXPECT_TRUE(contains(refusal(), "its lines end in carriage returns alone; `tr")) << refusal();
}

}  // namespace
}  // namespace segue::data
