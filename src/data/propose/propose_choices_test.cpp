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

TEST_F(ProposeChoices, AFinerTimeBeatsWholeDays) {
  put("log.csv", "user,item,event_date,event_timestamp,clicked\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{},{},202311{:02},{}000000,{}", user, item, i % 28 + 1,
                                          time, i % 2);
                     }));
  const LogSchema s = propose();
  EXPECT_EQ(s.time, "event_timestamp") << text_;
  EXPECT_EQ(s.time_unit_seconds, 1e-6);
  EXPECT_TRUE(says("Times, too: event_date.")) << text_;
  EXPECT_EQ(prepare(s), 3000);
}

TEST_F(ProposeChoices, DatesOfTheItemOrTheUserAreNoTimes) {
  for (const bool of_item : {true, false}) {
    put("log.csv", "user,item,created_at,timestamp,clicked\n" +
                       rows([&](int64_t i, int64_t user, int64_t item, int64_t time) {
                         const int64_t owner = of_item ? item : user;
                         return fmt::format("{},{},20{:02}-03-{:02}T10:11:12,{},{}", user, item,
                                            owner % 20 + 1, owner % 9 + 1, time, i % 2);
                       }));
    EXPECT_EQ(propose().time, "timestamp") << text_;
    EXPECT_FALSE(says("Times, too")) << text_;
  }
}

TEST_F(ProposeChoices, WholeDaysAndTheTimeOfDayBesideThem) {
  put("log.csv",
      "user,item,date,time,clicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t) {
        return fmt::format("{},{},2023-11-{:02},{:02}:{:02}:00,{}", user, item, i % 28 + 1, i % 24,
                           i % 60, i % 2);
      }));
  const LogSchema s = propose();
  EXPECT_EQ(s.time, "date");
  EXPECT_TRUE(says("FILL IN: these are whole days, and time has the time of day")) << text_;
  put("log.csv",
      "user,item,date,clicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t) {
        return fmt::format("{},{},2023-11-{:02},{}", user, item, i % 28 + 1, i % 2);
      }));
  propose();
  EXPECT_TRUE(says("Whole days: events of one day")) << text_;
}

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

TEST_F(ProposeChoices, ATableOfTextsWithoutAHeaderLine) {
  put("log.csv",
      "user,item,time,clicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("U{},N{},{},{}", user, item, time, i % 2);
      }));
  std::string news;
  for (int n = 0; n < 40; ++n) {
    news += fmt::format("N{}\t{}\tWhat happened at {}\n", n, n % 3 == 0 ? "sports" : "travel", n);
  }
  put("news.tsv", news);
  EXPECT_TRUE(propose().attributes.empty());
  EXPECT_TRUE(says("news.tsv: has \"\\t\" between fields, where the log has \",\"")) << text_;
  std::ranges::replace(news, '\t', ',');
  put("news.tsv", news);
  const LogSchema s = propose();
  ASSERT_EQ(s.attributes.size(), 1U) << text_;
  EXPECT_EQ(s.attributes[0].value, "column2");
  EXPECT_EQ(prepare(s), 3000);
}

// ---- what is predicted ----

TEST_F(ProposeChoices, ALabelByNameBeatsFlagsThatAreNone) {
  put("log.csv", "user,item,time,is_mobile,clicked\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{},{},{},{},{}", user, item, time, i % 7 / 4,
                                          i % 3 == 0 ? "yes" : "no");
                     }));
  LogSchema s = propose();
  EXPECT_EQ(s.kind, "clicked") << text_;
  EXPECT_TRUE(s.flags.empty()) << text_;
  EXPECT_TRUE(says("May be what you mean, too: is_mobile.")) << text_;
  EXPECT_EQ(prepare(s), 3000);
  put("log.csv", "user,item,time,verified,rating\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{},{},{},{},{}", user, item, time, i % 7 / 4, i % 4 + 1);
                     }));
  s = propose();
  EXPECT_EQ(s.value, "rating") << text_;
  EXPECT_TRUE(says("May be what you mean, too: verified.")) << text_;
  EXPECT_EQ(prepare(s), 3000);
  put("log.csv", "user,item,time,verified,overall\n" + rows([](int64_t i, int64_t user,
                                                               int64_t item, int64_t time) {
                   return fmt::format("{},{},{},{},{}.0", user, item, time, i % 7 / 4, i % 4 + 1);
                 }));
  EXPECT_EQ(propose().value, "overall") << text_;
  // A flag that is called a label leads.
  put("log.csv", "user,item,time,liked,rating\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{},{},{},{},{}", user, item, time, i % 7 / 4, i % 4 + 1);
                     }));
  s = propose();
  EXPECT_EQ(s.label_pool, "liked") << text_;
  EXPECT_FALSE(says("FILL IN: is that the one?")) << text_;
}

TEST_F(ProposeChoices, AFlagThatIsNotCalledALabelIsAQuestion) {
  put("log.csv",
      "user,item,time,is_mobile\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{},{},{},{}", user, item, time, i % 7 / 4);
      }));
  EXPECT_EQ(propose().label_pool, "is_mobile");
  EXPECT_TRUE(says("FILL IN: is that the one?")) << text_;
}

TEST_F(ProposeChoices, AnswersArePredictedWhereNothingElseIsSaidToBeASuccess) {
  put("log.csv",
      "user,item,time,compra\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{},{},{},{}", user, item, time, i % 7 < 4 ? "no" : "Si");
      }));
  EXPECT_EQ(propose().label_pool, "Si") << text_;
  EXPECT_TRUE(says("FILL IN: is that the question?")) << text_;
}

TEST_F(ProposeChoices, PairsOfWordsAreNamedWhereNothingElseIs) {
  put("log.csv",
      "user,item,time,compra\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{},{},{},{}", user, item, time, i % 7 < 4 ? "tarjeta" : "efectivo");
      }));
  propose();
  EXPECT_TRUE(says("FILL IN: nothing says what a success is")) << text_;
  EXPECT_TRUE(says("May be what you mean, too: compra.")) << text_;
}

/// What every row of an item (or a user) has alike did not happen there.
TEST_F(ProposeChoices, PropertiesAreNoSuccess) {
  put("log.csv", "user,item,time,premium,explicit,imdb_score,content_type,played\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{},{},{},{},{},{}.5,{},{}", user, item, time, user % 2,
                                          item % 3 / 2, item % 9, item % 4 == 0 ? "book" : "show",
                                          i % 100);
                     }));
  const LogSchema s = propose();
  EXPECT_EQ(s.value, "played") << text_;
  EXPECT_TRUE(s.flags.empty()) << text_;
  ASSERT_EQ(s.attributes.size(), 2U) << text_;
  EXPECT_EQ(s.attributes[0].name, "explicit");
  EXPECT_EQ(s.attributes[1].name, "content_type");
  EXPECT_TRUE(says("premium: is of the user; [[user_attributes]] takes it")) << text_;
  EXPECT_EQ(prepare(s), 3000);
}

// ---- ids ----

TEST_F(ProposeChoices, MostRowsHaveNoUser) {
  put("log.csv", "sessionId,userId,itemId,watch_time,eventstamp,clicked\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{},{},{},{},{},{}", i / 9,
                                          i % 5 == 0 ? fmt::to_string(user) : "", item, i % 99,
                                          time, i % 2);
                     }));
  const LogSchema s = propose();
  EXPECT_EQ(s.user, "userId");
  EXPECT_EQ(s.time, "eventstamp") << text_;
  EXPECT_TRUE(says("FILL IN: prep would leave most rows out")) << text_;
}

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

TEST_F(ProposeChoices, UsersThatAnotherFileHas) {
  std::string orders = "order_id,user_id,order_number\n",
              products = "order_id,product_id,reordered\n";
  for (int o = 0; o < 400; ++o) {
    orders += fmt::format("{},{},{}\n", o, o / 9, o % 9);
    for (int p = 0; p < 5; ++p) products += fmt::format("{},{},{}\n", o, o * 7 % 50 + p, p % 2);
  }
  put("orders.csv", orders);
  put("products.csv", products);
  const std::string text = propose_schema(folder_, nullptr);
  EXPECT_TRUE(base::contains(
      text, "FILL IN: orders.csv has user_id for every order_id: join the two files first"))
      << text;
}

// ---- files beside the log ----

/// Columns of a log that differ in names only, or are called like what every sample has.
TEST_F(ProposeChoices, NamesThatMeetInTheStore) {
  std::string log =
      "user,item,time,clicked,user_id_,id\n" +
      rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{},{},{},{},{},{}", user, item, time, i % 2, item % 3, item % 6);
      });
  put("log.csv", log);
  const std::vector<std::vector<std::string>> names = {
      {"category", "category_id", "category-id", "category_id_"},
      {"genre_1", "genre", "genre_2", "genre_id"},
      {"id", "user", "item_id", "candidate_id", "uid", "user_x_genre"},
      {"genre", "user_x_genre", "user_x_genre_1", "item_candidate_genre_1"},
      {"hour_of_day", "item_candidate_id", "is_organic", "action_weight"}};
  for (const std::vector<std::string>& columns : names) {
    std::string items = fmt::format("item,{}\n", fmt::join(columns, ","));
    for (int64_t item = 0; item < 40; ++item) {
      items += fmt::to_string(item);
      for (size_t c = 0; c < columns.size(); ++c) {
        const bool several = columns[c] == "genre";
        items += several ? fmt::format(",a{}|b{}", item % 2, item % 3)
                         : fmt::format(",{}", item % static_cast<int64_t>(c + 3));
      }
      items += "\n";
    }
    put("items.csv", items);
    const LogSchema s = propose();  // reads it as prep does
    EXPECT_EQ(prepare(s), 3000) << text_;
    EXPECT_GE(s.attributes.size(), 5U) << text_;
  }
}

TEST_F(ProposeChoices, TablesWithoutHeaderLinesMeetByTheirValues) {
  put("ratings.dat", rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{}::{}::{}::{}", user + 1, item + 1, i % 5 + 1, time);
      }));
  std::string movies, users;
  for (int m = 1; m <= 45; ++m) {
    movies += fmt::format("{}::Film {}::{}\n", m, m * 7 % 45, m % 2 == 0 ? "War|Drama" : "Drama");
  }
  for (int u = 1; u <= 35; ++u) users += fmt::format("{}::{}::{}\n", u, u % 2, u % 7);
  put("movies.dat", movies);
  put("users.dat", users);
  const LogSchema s = propose();
  ASSERT_EQ(s.attributes.size(), 1U) << text_;
  EXPECT_EQ(s.attributes[0].file, "movies.dat");
  EXPECT_EQ(s.attributes[0].item, "column1");
  EXPECT_EQ(s.attributes[0].value, "column3");
  EXPECT_TRUE(says("By its values, not by its name, column1 has the items")) << text_;
  EXPECT_TRUE(says("users.dat: no column of items as in the log; [[user_attributes]]")) << text_;
  EXPECT_EQ(prepare(s), 3000);
}

/// KuaiRec writes categories so: "[12" and "7]" are none.
TEST_F(ProposeChoices, ListsInBracketsAreNoValues) {
  put("log.csv",
      "user,item,time,clicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{},{},{},{}", user, item, time, i % 2);
      }));
  std::string items = "item,feat\n";
  for (int item = 0; item < 40; ++item) {
    items += item % 3 == 0 ? fmt::format("{},[{}]\n", item, item % 5)
                           : fmt::format("{},\"[{}, {}]\"\n", item, item % 5, item % 4);
  }
  put("items.csv", items);
  EXPECT_TRUE(propose().attributes.empty()) << text_;
  EXPECT_TRUE(says("items.csv feat: is a list in brackets; write its values alone")) << text_;
}

TEST_F(ProposeChoices, NumbersThatNoAttributeHolds) {
  put("log.csv", "user,item,time,clicked,category\n" +
                     rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
                       return fmt::format("{},{},{},{},{}", user, item, time, i % 2,
                                          2'053'013'555'631'882'655 + item % 5);
                     }));
  const LogSchema s = propose();
  EXPECT_TRUE(s.attributes.empty()) << text_;
  EXPECT_TRUE(says("category: has numbers beyond 2147483647")) << text_;
  EXPECT_EQ(prepare(s), 3000);
}

// ---- rows that cannot be used ----

TEST_F(ProposeChoices, EveryRowThatPrepLeavesOutIsCounted) {
  const auto row = [](int64_t i, int64_t user, int64_t item, int64_t time) {
    return fmt::format("{},{},{},{}", user, item, time, i % 2);
  };
  const std::string log = "user,item,time,clicked\n" + rows(row);
  put("log.csv", log + "1,2,never,1\n");
  EXPECT_EQ(prepare(propose(), "5%"), 3000);
  EXPECT_TRUE(says("--skip-bad 5%")) << text_;
  put("log.csv", log + "1,2,1700000000,1,0,0\n");
  EXPECT_EQ(prepare(propose(), "5%"), 3000);
  EXPECT_TRUE(says("--skip-bad 5%")) << text_;
  put("log.csv", log + "1,none,1700000000,1\n");
  EXPECT_EQ(prepare(propose(), "5%"), 3000);
  EXPECT_TRUE(says("--skip-bad 5%")) << text_;
  put("log.csv", log);
  std::string items = "item,kind\n";
  for (int item = 0; item < 40; ++item) items += fmt::format("{},k{}\n", item, item % 3);
  put("items.csv", items + ",k1\n");
  EXPECT_EQ(prepare(propose(), "5%"), 3000);
  EXPECT_TRUE(says("--skip-bad 5%")) << text_;
  put("items.csv", items);
  propose();
  EXPECT_FALSE(says("--skip-bad")) << text_;
}

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
