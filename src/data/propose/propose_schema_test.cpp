// Schemas that are proposed from files: what is found in them, and that `prep` takes them.

#include "data/propose/propose_schema.h"

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include "base/file.h"
#include "base/test_util.h"
#include "base/time.h"
#include "data/propose/column_words.h"
#include "data/propose/propose_test_util.h"

namespace segue::data {
namespace {

using base::contains;
using base::error_of;

class ProposeSchema : public ProposedLog {
 protected:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  std::mt19937_64 random_{7};
};

TEST_F(ProposeSchema, MovieLens) {
  std::string ratings = "userId,movieId,rating,timestamp\n", movies = "movieId,title,genres\n";
  for (int64_t m = 0; m < 60; ++m) {
    movies += fmt::format("{},\"Film {}, The\",{}\n", m, m, m % 3 == 0 ? "Comedy|Drama" : "Action");
  }
  for (int64_t i = 0; i < 2000; ++i) {
    ratings += fmt::format("{},{},{}.{},{}\n", below(50) + 1, below(60), below(4) + 1, below(2) * 5,
                           1'100'000'000 + below(90'000'000));
  }
  put("ratings.csv", ratings);
  put("movies.csv", movies);
  put("README.md", "no table");
  const LogSchema s = propose();
  EXPECT_EQ(s.events, "ratings.csv");
  EXPECT_EQ(s.user, "userId");
  EXPECT_EQ(s.item, "movieId");
  EXPECT_EQ(s.time, "timestamp");
  EXPECT_EQ(s.time_unit_seconds, 1);
  EXPECT_EQ(s.value, "rating");
  EXPECT_EQ(s.label_pool, "liked");
  ASSERT_EQ(s.pools.size(), 2U);
  EXPECT_EQ(s.pools[0].min_value, s.pools[1].below_value);
  EXPECT_EQ(s.pools[0].min_value, 3.0);
  ASSERT_EQ(s.attributes.size(), 1U);
  EXPECT_EQ(s.attributes[0].file, "movies.csv");
  EXPECT_EQ(s.attributes[0].value, "genres");
  EXPECT_TRUE(contains(text_, "title: has about as many values as items"));
  EXPECT_TRUE(contains(text_, "README.md: not looked at"));
  EXPECT_TRUE(contains(text_, fmt::format("segue prep --raw {} --schema", folder_)));
  EXPECT_EQ(prepare(s), 2000);
}

/// Genres in one field are several values; a field that merely has a comma in it is one.
TEST_F(ProposeSchema, SeveralValuesOfAnItem) {
  constexpr const char* kGenres[] = {"Action", "Comedy", "Crime", "Drama", "War"};
  std::string films = "film,genres,place,tags\n", log = "user,film,when,rating\n";
  for (int64_t f = 0; f < 120; ++f) {
    std::string genres = kGenres[f % 5], tags = fmt::format("t{}", f % 9);
    if (f % 4 != 0) genres += std::string("|") + kGenres[(f + 1 + f % 3) % 5];
    if (f % 40 == 1) {
      genres = "Action|Comedy|Crime|Drama|War";
    }
    for (int64_t t = 0; t <= f % 12; ++t) tags += fmt::format(";t{}", (f * 7 + t * 5) % 31);
    films += fmt::format("{},{},\"Town {}, Land {}\",{}\n", f, genres, f % 30, f % 30 % 7, tags);
  }
  for (int64_t i = 0; i < 3000; ++i) {
    log += fmt::format("{},{},{},{}\n", below(50), below(120), 1'100'000'000 + below(90'000'000),
                       below(5) + 1);
  }
  put("films.csv", films);
  put("log.csv", log);
  const LogSchema s = propose();
  ASSERT_EQ(s.attributes.size(), 3U) << text_;
  EXPECT_EQ(s.attributes[0].name, "genres");
  EXPECT_EQ(s.attributes[0].separator, "|");
  EXPECT_EQ(s.attributes[0].max_values, 2) << text_;
  EXPECT_TRUE(contains(text_, "the different fields, which are made of 5 values"));
  EXPECT_TRUE(contains(text_, "% of the rows have no more, the longest has 5"));
  EXPECT_EQ(s.attributes[1].name, "place");
  EXPECT_EQ(s.attributes[1].separator, "") << text_;
  EXPECT_EQ(s.attributes[2].separator, ";") << "too many different lists, but few tags";
  EXPECT_GT(s.attributes[2].max_values, 4);
  ASSERT_EQ(s.crosses.size(), 1U);
  EXPECT_EQ(s.crosses[0].keys[1], "genres_1");
  EXPECT_EQ(prepare(s), 3000);
}

TEST_F(ProposeSchema, MovieLensWithoutHeaderLine) {
  std::string ratings;
  for (int64_t i = 0; i < 3000; ++i) {
    ratings += fmt::format("{}::{}::{}::{}\n", below(100) + 1, below(300) + 1, below(5) + 1,
                           978'300'000 + below(1'000'000));
  }
  put("ratings.dat", ratings);
  const LogSchema s = propose();
  EXPECT_EQ(s.csv_separator, "::");
  EXPECT_EQ(s.csv_columns.size(), 4U);
  EXPECT_EQ(s.user, "column1");
  EXPECT_EQ(s.item, "column2");
  EXPECT_EQ(s.time, "column4");
  EXPECT_EQ(s.value, "column3");
  EXPECT_TRUE(contains(text_, "A guess by the number of different values"));
  prepare(s);
}

TEST_F(ProposeSchema, ClickStreamWithTextIds) {
  const char* const kinds[] = {"view", "view", "view", "view", "cart", "purchase"};
  for (int day = 1; day <= 3; ++day) {
    std::string rows = "event_time,event_type,product_id,category_id,price,user_id,user_session\n";
    for (int64_t i = 0; i < 1500; ++i) {
      const int64_t item = below(40);
      const int64_t at = 1'580'000'000 + day * 86400 + i * 20;
      const std::string user = fmt::format("u-{:04x}", below(60) * 7919);
      const std::string rest = fmt::format("sku{},{},{}.5,{},s{}", item, item % 5, item, user, i);
      rows += fmt::format("{},{},{}\n", base::iso_time(at), kinds[below(6)], rest);
      if (i % 9 == 0)
        rows += fmt::format("{},view,{}\n{},cart,{}\n", base::iso_time(at), rest,
                            base::iso_time(at + 60), rest);
    }
    put(fmt::format("2020-01-0{}.csv", day), rows);
  }
  const LogSchema s = propose();
  EXPECT_EQ(s.events, "*.csv");
  EXPECT_EQ(s.user, "user_id");
  EXPECT_EQ(s.item, "product_id");
  EXPECT_EQ(s.time, "event_time");
  EXPECT_EQ(s.kind, "event_type");
  EXPECT_EQ(s.kinds, (std::vector<std::string>{"view", "cart", "purchase"}));
  EXPECT_EQ(s.anchor_kinds, std::vector<std::string>{"view"});
  ASSERT_EQ(s.later.size(), 1U);
  EXPECT_EQ(s.later[0].kinds, std::vector<std::string>{"view"});
  EXPECT_EQ(s.label_pool, s.later[0].name);
  ASSERT_EQ(s.attributes.size(), 1U);
  EXPECT_EQ(s.attributes[0].value, "category_id");
  EXPECT_EQ(s.attributes[0].zero, ZeroMeaning::kValue);
  EXPECT_TRUE(contains(text_, "price: is a number, not a category"));
  EXPECT_TRUE(contains(text_, "user_session: changes from row to row of an item"));
  const PrepResult result = prepared(s);
  EXPECT_GT(result.counts.train_events, 4000);
}

TEST_F(ProposeSchema, AColumnOfClicks) {
  std::string rows = "ts,visitor,article,section,clicked,is_organic\n";
  for (int64_t i = 0; i < 2000; ++i) {
    const int64_t item = below(80);
    rows += fmt::format("{},{},{},{},{},{}\n", 1'700'000'000'000 + i * 40'000,
                        i % 50 == 3 ? "" : std::to_string(below(40)), item + 100,
                        item % 7 == 0 ? "news" : "sport", below(4) == 0 ? 1 : 0, below(2));
  }
  put("log.csv", rows);
  const LogSchema s = propose(folder_ + "/log.csv");
  EXPECT_EQ(s.events, "log.csv");
  EXPECT_EQ(s.user, "visitor");
  EXPECT_EQ(s.item, "article");
  EXPECT_EQ(s.time, "ts");
  EXPECT_EQ(s.time_unit_seconds, 1e-3);
  EXPECT_EQ(s.flags, std::vector<std::string>{"clicked"});
  EXPECT_EQ(s.organic, "is_organic");
  EXPECT_EQ(s.label_pool, "clicked");
  ASSERT_EQ(s.pools.size(), 2U);
  EXPECT_TRUE(s.pools[1].flag.empty());  // all events enter histories
  ASSERT_EQ(s.attributes.size(), 1U);
  EXPECT_EQ(s.attributes[0].value, "section");
  EXPECT_TRUE(contains(text_, "2 % of the sampled rows have none"));
  EXPECT_TRUE(contains(text_, "--skip-bad"));
  EXPECT_EQ(prepared(s, "5%").rows.skipped, 40);
}

TEST_F(ProposeSchema, FlagsMayBeTrueAndFalse) {
  for (const auto& [no, yes] : {std::pair("0", "1"), std::pair("false", "true"),
                                std::pair("False", "True"), std::pair("FALSE", "TRUE")}) {
    std::string rows = "user,item,time,clicked\n";
    for (int64_t i = 0; i < 500; ++i) {
      rows += fmt::format("{},{},{},{}\n", below(20), below(30), 1'600'000'000 + i,
                          i % 4 == 0 ? yes : no);
    }
    put("log.csv", rows);
    const LogSchema s = propose();
    EXPECT_EQ(s.flags, std::vector<std::string>{"clicked"}) << yes;
    EXPECT_TRUE(contains(text_, "which 25 % of the sampled rows have")) << yes;
    EXPECT_EQ(prepare(s), 500);
  }
}

TEST_F(ProposeSchema, TheLabelIsAmongTheFlagsHoweverManyThereAre) {
  std::string rows = "user,item,time";
  for (int f = 0; f < 20; ++f) rows += fmt::format(",f{}", f);
  rows += ",clicked\n";
  for (int64_t i = 0; i < 200; ++i) {
    rows += fmt::format("{},{},{}", below(20), below(30), 1'600'000'000 + i);
    for (int f = 0; f < 21; ++f) rows += fmt::format(",{}", below(2));
    rows += "\n";
  }
  put("log.csv", rows);
  const LogSchema s = propose();
  EXPECT_EQ(s.label_pool, "clicked");
  EXPECT_EQ(s.pools.size(), kMaxPools);
  EXPECT_EQ(prepare(s), 200);
}

/// prep needs every flag, and whether the user chose the item, not only what is predicted.
TEST_F(ProposeSchema, RowsWithoutAFlagAreLeftOut) {
  for (const int column : {0, 1, 2}) {
    std::string rows = "user,item,time,clicked,shared,is_organic\n";
    for (int64_t i = 0; i < 500; ++i) {
      std::string flags[] = {std::to_string(below(2)), std::to_string(below(2)),
                             std::to_string(below(2))};
      if (i % 50 == 9) flags[column] = "";
      rows += fmt::format("{},{},{},{}\n", below(20), below(30), 1'600'000'000 + i,
                          fmt::join(flags, ","));
    }
    put("log.csv", rows);
    const LogSchema s = propose();
    EXPECT_EQ(s.flags, (std::vector<std::string>{"clicked", "shared"}));
    EXPECT_TRUE(contains(text_, "--skip-bad 5%")) << column;
    EXPECT_EQ(prepared(s, "5%").rows.skipped, 10);
  }
}

TEST_F(ProposeSchema, LargeIdsGetNumbersOfTheirOwn) {
  std::string rows = "user_id\titem_id\ttime\tlabel\n";
  for (int64_t i = 0; i < 500; ++i) {
    rows += fmt::format("{}\t{}\t{}\t{}\n", (int64_t{1} << 40) + below(20),
                        i % 2 == 0 ? fmt::format("x{}", below(30)) : std::to_string(below(30)),
                        1'600'000'000 + i * 60, below(2));
  }
  put("log.tsv", rows);
  const LogSchema s = propose();
  EXPECT_EQ(s.csv_separator, "\t");
  EXPECT_EQ(s.user_ids, IdMapping::kDense);
  EXPECT_EQ(s.item_ids, IdMapping::kDense);
  prepare(s);
}

TEST_F(ProposeSchema, SaysWhatItCannotTell) {
  std::string rows = "user,item,time\n";
  for (int64_t i = 0; i < 100; ++i) rows += fmt::format("{},{},{}\n", below(9), below(9), i);
  put("log.csv", rows);
  LogSchema s = propose();
  EXPECT_TRUE(contains(text_, "FILL IN: nothing says what a success is"));
  EXPECT_TRUE(contains(text_, "FILL IN: the values are no times of our days"));
  put("log.csv", "user,item,colour\n1,2,red\n2,3,blue\n");
  text_ = propose_schema(folder_, nullptr);
  EXPECT_TRUE(contains(text_, "time = \"\"  # FILL IN: which of these? user, item, colour"));
}

/// Rows that cannot be used are among those of any log.
TEST_F(ProposeSchema, AFewTimesMayBeWrong) {
  std::string rows = "time,kind,user,item\n";
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t at = 1'600'000'000 + i * 1000;
    const std::string who = fmt::format("{},{}", i % 50, i % 40);
    rows += fmt::format("{},view,{}\n{},cart,{}\n", at, who, at + 60, who);
    if (i % 150 == 0) rows += fmt::format("never,view,{}\n", who);
  }
  put("log.csv", rows);
  EXPECT_EQ(propose().later.size(), 1U);
  EXPECT_TRUE(contains(text_, "within 1800 s, 100 % of"));
}

/// Comments show what files have; a schema is TOML, which has rules for its text.
TEST_F(ProposeSchema, CommentsAreLinesOfUtf8WhateverIsInTheFiles) {
  std::string rows = "user,item,time,clicked,shelf\n";
  for (int64_t i = 0; i < 900; ++i) {
    const int64_t item = i % 90;
    // A line end, letters of 2 bytes that a cut would go through, and Latin-1.
    const char* const shelf = item % 9 == 0   ? "two\nlines"
                              : item % 2 == 0 ? "aэлектроникасалон"
                                              : "caf\xe9";
    rows += fmt::format("{},{},{},{},\"{}\"\n", i % 50, item, 1'600'000'000 + i, below(2), shelf);
  }
  put("log.csv", rows);
  put("odd\nname.xyz", "");
  const LogSchema s = propose();
  ASSERT_EQ(s.attributes.size(), 1U);
  EXPECT_TRUE(contains(text_, "3 values: two lines, caf?, aэлектроника\n"));
  EXPECT_TRUE(contains(text_, "odd name.xyz"));
}

/// A schema is UTF-8: what is not called so cannot be in it.
TEST_F(ProposeSchema, NamesThatNoSchemaCanHaveAreLeftOut) {
  std::string rows = "user,item,time,clicked,event,caf\xe9\n";
  for (int64_t i = 0; i < 900; ++i) {
    rows += fmt::format("{},{},{},{},{},{}\n", i % 50, i % 90, 1'600'000'000 + i, below(2),
                        below(3) == 0 ? "achet\xe9" : "view", i % 90 % 4);
  }
  put("log.csv", rows);
  put("caf\xe9.csv", rows);
  const LogSchema s = propose();
  EXPECT_EQ(s.kind, "");
  EXPECT_EQ(s.flags, std::vector<std::string>{"clicked"});
  EXPECT_TRUE(s.attributes.empty());
  EXPECT_TRUE(contains(text_, "# Left out: caf?: has a name that is not UTF-8"));
  EXPECT_TRUE(contains(text_, "# Left out: caf?.csv: its name is not UTF-8"));
  EXPECT_TRUE(contains(error_of([&] { propose_schema(folder_ + "/caf\xe9.csv", nullptr); })->what(),
                       "rename it"));
}

TEST_F(ProposeSchema, AColumnCalledAValueMayHaveNoNumber) {
  std::string rows = "user,item,time,rating\n";
  for (int64_t i = 0; i < 1000; ++i) {
    rows += fmt::format("{},{},{},{}\n", below(50), below(40), 1'600'000'000 + i,
                        i == 7 ? "maybe" : (i % 3 == 0 ? "true" : "false"));
  }
  put("log.csv", rows);
  EXPECT_EQ(propose().value, "");
  EXPECT_TRUE(contains(text_, "FILL IN: nothing says what a success is"));
}

TEST_F(ProposeSchema, FilesThatArePassedByAreNamed) {
  std::string rows = "user,item,time,label\n";
  for (int64_t i = 0; i < 300; ++i) {
    rows += fmt::format("{},{},{},{}\n", below(20), below(30), 1'600'000'000 + i, below(2));
  }
  put("part1.csv", rows);
  put("part2.csv", rows);
  propose();
  EXPECT_FALSE(contains(text_, "FILL IN: there are files"));
  put("part3.csv", "colour,shape\nred,round\nblue,flat\n");
  for (int i = 0; i < 150; ++i) put(fmt::format("{}.jpg", i), "");
  propose();
  EXPECT_TRUE(contains(text_, "FILL IN: there are files of this name that have other columns"));
  EXPECT_TRUE(contains(text_, "# Left out: 50 more files of other kinds: not looked at"));
}

TEST_F(ProposeSchema, LinksWithoutAnEndAndStoresArePassedBy) {
  std::string rows = "user,item,time,label\n";
  for (int64_t i = 0; i < 300; ++i) {
    rows += fmt::format("{},{},{},{}\n", below(20), below(30), 1'600'000'000 + i, below(2));
  }
  put("log.csv", rows);
  for (int i = 0; i < 20; ++i) {  // before and behind the file, in whatever order they are listed
    std::filesystem::create_symlink("nowhere", fmt::format("{}/.#{}", folder_, i));
  }
  prepare(propose());
  put("log.csv", rows + "x,1,1600000000,1\n");
  prepare(propose(), "1");
  EXPECT_EQ(propose().events, "log.csv");  // besides it only a store, which lists a bad row
  EXPECT_FALSE(contains(text_, "skipped.csv"));
}

TEST_F(ProposeSchema, Mistakes) {
  const auto message = [&](const std::string& raw) {
    const auto error = error_of([&] { propose_schema(raw, nullptr); });
    EXPECT_TRUE(error);
    return error ? std::string(error->what()) : "";
  };
  EXPECT_TRUE(contains(message(folder_ + "/x"), "no such file or folder"));
  EXPECT_TRUE(contains(message(folder_), "there are no files"));
  put("a.json", "{}");
  put("b.csv", "");
  put("c.csv", "one\ntwo\n");
  put("d.csv.gz", "BZh9....");
  const std::string text = message(folder_);
  EXPECT_TRUE(contains(text, "no rows in Parquet or CSV files"));
  EXPECT_TRUE(contains(text, "a.json: is JSON; bring Parquet or CSV"));
  EXPECT_TRUE(contains(text, "b.csv: is empty"));
  EXPECT_TRUE(contains(text, "c.csv: has no columns that can be told apart"));
  EXPECT_TRUE(contains(text, "compressed (bzip2)"));
}

TEST_F(ProposeSchema, AFileThatIsDamagedFurtherOnIsLeftOut) {
  std::string rows = "user,item,time,label\n";
  for (int64_t i = 0; i < 300; ++i) {
    rows += fmt::format("{},{},{},{}\n", below(20), below(30), 1'600'000'000 + i, below(2));
  }
  put("log.csv", rows);
  std::string items = "item,name\n";
  for (int64_t i = 0; i < 40'000; ++i) items += fmt::format("{},{}\n", i, random_());
  std::string packed(ZSTD_compressBound(items.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), items.data(), items.size(), 1) / 2);
  put("items.csv.zst", packed);
  EXPECT_EQ(propose().events, "log.csv");
  EXPECT_TRUE(contains(text_, "items.csv.zst"));
}

TEST(ColumnRoles, Words) {
  EXPECT_EQ(words_of("userId"), (std::vector<std::string>{"user", "id"}));
  EXPECT_EQ(words_of("user_id"), (std::vector<std::string>{"user", "id"}));
  EXPECT_EQ(words_of("movieid"), (std::vector<std::string>{"movie", "id"}));
  EXPECT_EQ(words_of("paid"), (std::vector<std::string>{"paid"}));
  EXPECT_EQ(step_of("view"), 0);
  EXPECT_EQ(step_of("Add to Cart"), 3);
  EXPECT_EQ(step_of("purchase"), 4);
  EXPECT_EQ(step_of("red"), -1);
}

}  // namespace
}  // namespace segue::data
