// Numbers of a log and attributes of users, from CSV files to scores.

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/test_util.h"

namespace segue::cli {
namespace {

using base::contains;

/// Whoever sees a cheap item takes it; what was paid shows afterwards.
std::string make_log() {
  const std::string folder = base::temp_path(unique("features"));
  base::make_folders(folder);
  std::mt19937_64 random(1);
  std::string events = "user,item,when,price,paid,bought\n", users = "user,country\n";
  for (int64_t user = 0; user < 40; ++user) {
    users += std::to_string(user) + (user % 2 == 0 ? ",fr\n" : ",de\n");
    for (int64_t i = 0; i < 60; ++i) {
      const auto price = static_cast<int64_t>(random() % 100);
      const bool bought = price < 30;
      events += std::to_string(user) + "," + std::to_string(random() % 20) + "," +
                std::to_string(i * 7200 + user) + "," +
                (random() % 10 == 0 ? "" : std::to_string(price)) + "," +
                std::to_string(bought ? price : 0) + (bought ? ",1\n" : ",0\n");
    }
  }
  base::put_file(folder + "/events.csv", events);
  base::put_file(folder + "/users.csv", users);
  base::put_file(folder + "/schema.toml", R"(events = "events.csv"
user = "user"
item = "item"
time = "when"
value = "bought"
anchor_kinds = ["event"]
label_pool = "bought"
test_seconds = 0
gap_seconds = 0
train_days = 0

[[pools]]
name = "bought"
bit = 1
min_value = 1

[[pools]]
name = "seen"
bit = 2
below_value = 1

[[numbers]]
name = "price"

[[numbers]]
name = "paid"
outcome = true

[[user_attributes]]
name = "country"
file = "users.csv"
user = "user"
value = "country"
)");
  return folder;
}

std::vector<std::string> rows_of(const std::string& path) {
  const std::string text = base::read_file(path);
  std::vector<std::string> rows;
  for (size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    rows.push_back(text.substr(at, end - at));
  }
  return rows;
}

double score_of(const std::string& row) { return std::stod(row.substr(row.rfind(',') + 1)); }

TEST(FeaturesCommand, FromALogToScores) {
  const std::string folder = make_log(), store = folder + "/store";
  const Outcome prepared = run({"prep", "--raw", folder, "--out", store, "--schema",
                                folder + "/schema.toml", "--min-history", "4", "--verify"});
  ASSERT_EQ(prepared.code, 0) << prepared.err;

  const Outcome inspected = run({"inspect", store});
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_TRUE(contains(inspected.out, "numbers of the log"));
  EXPECT_TRUE(contains(inspected.out, "after (outcome)"));
  EXPECT_TRUE(contains(inspected.out, "attributes of users"));

  const Outcome proposed = run({"init", store});
  ASSERT_EQ(proposed.code, 0) << proposed.err;
  EXPECT_TRUE(contains(proposed.out, "outcomes = [\"paid\"]"));
  EXPECT_TRUE(contains(proposed.out, "{ name = \"country\", table = \"country\" }"));
  EXPECT_TRUE(contains(proposed.out, "{ name = \"country\", rows = 3 }"));
  EXPECT_TRUE(contains(proposed.out, "{ column = \"price\", shape = \"identity\""));
  const std::string config = folder + "/my.toml";
  base::put_file(config, proposed.out);

  const std::string outcome =
      run({"train", config, "--run", folder + "/leak", "--set",
           "model.numeric.columns=[\"price\", \"paid\"]", "--set", "model.numeric.outcomes=[]"})
          .err;
  EXPECT_TRUE(contains(outcome, "an outcome: it shows only after the event"));
  const std::string unknown = run({"train", config, "--run", folder + "/unknown", "--set",
                                   "model.numeric.columns=[\"price\", \"prise\"]"})
                                  .err;
  EXPECT_TRUE(contains(unknown, "did you mean `price`?"));

  const std::string trained = folder + "/run";
  const Outcome ran = run({"train", config, "--run", trained, "--set", "train.steps=12"});
  ASSERT_EQ(ran.code, 0) << ran.err;

  base::put_file(folder + "/pairs.csv", "user,item,price\n1,3,5\n1,3,95\n1,3,\n");
  const Outcome scored =
      run({"score", trained, "--pairs", folder + "/pairs.csv", "--out", folder + "/scores.csv"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  const std::vector<std::string> rows = rows_of(folder + "/scores.csv");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_GT(std::abs(score_of(rows[1]) - score_of(rows[2])), 1e-5) << "the price counts";
  EXPECT_GT(std::abs(score_of(rows[1]) - score_of(rows[3])), 1e-5);
  base::put_file(folder + "/pairs.csv", "user,item\n1,3\n");
  const Outcome without =
      run({"score", trained, "--pairs", folder + "/pairs.csv", "--out", folder + "/again.csv"});
  ASSERT_EQ(without.code, 0) << without.err;
  EXPECT_TRUE(contains(without.err, "no column `price`"));
  // As one that is missing; a batch of another size may add in another order.
  EXPECT_NEAR(score_of(rows_of(folder + "/again.csv").at(1)), score_of(rows[3]), 1e-6);
  base::put_file(folder + "/pairs.csv", "user,item,price\n1,3,1e300\n");
  const Outcome infinite =
      run({"score", trained, "--pairs", folder + "/pairs.csv", "--out", folder + "/never.csv"});
  EXPECT_NE(infinite.code, 0);
  EXPECT_TRUE(contains(infinite.err, "row 1 has 1e+300 as `price`"));
}

/// Also where numbers are far from 0 and close to each other.
TEST(FeaturesCommand, ProposedFormsHaveAMeanOf0) {
  const std::string folder = make_log(), store = folder + "/store";
  std::string events = "user,item,when,price,paid,bought,year\n";
  for (int64_t i = 0; i < 900; ++i) {
    events += fmt::format("{},{},{},1,1,{},{}\n", i % 30, i % 7, i * 7200, i % 2, 20'240'000 + i);
  }
  base::put_file(folder + "/events.csv", events);
  base::put_file(folder + "/more.toml",
                 base::read_file(folder + "/schema.toml") + "[[numbers]]\nname = \"year\"\n");
  ASSERT_EQ(run({"prep", "--raw", folder, "--out", store, "--schema", folder + "/more.toml",
                 "--min-history", "4"})
                .code,
            0);
  const std::string proposed = run({"init", store}).out;
  const std::string form = "column = \"year\", shape = \"identity\", offset = ";
  const size_t at = proposed.find(form);
  ASSERT_NE(at, std::string::npos) << proposed;
  constexpr double kMean = 20'240'449.5, kDeviation = 259.8;
  EXPECT_NEAR(std::stod(proposed.substr(at + form.size(), 20)), kMean, 0.01 * kDeviation);
}

/// Attributes of items and of users may be called alike, and like users themselves.
TEST(FeaturesCommand, ProposedNamesAreDistinct) {
  const std::string folder = make_log(), store = folder + "/store", config = folder + "/my.toml";
  base::put_file(folder + "/items.csv", "item,seller,made_in\n1,7,3\n2,9,4\n");
  base::put_file(folder + "/more.toml", base::read_file(folder + "/schema.toml") + R"(
[[attributes]]
name = "user_id"
file = "items.csv"
item = "item"
value = "seller"
[[attributes]]
name = "country_id"
file = "items.csv"
item = "item"
value = "made_in"
)");
  ASSERT_EQ(run({"prep", "--raw", folder, "--out", store, "--schema", folder + "/more.toml",
                 "--min-history", "4"})
                .code,
            0);
  const Outcome proposed = run({"init", store});
  ASSERT_EQ(proposed.code, 0) << proposed.err;
  EXPECT_TRUE(contains(proposed.out, "table = \"user_id\""));
  base::put_file(config, proposed.out);
  const Outcome ran = run({"train", config, "--run", folder + "/run", "--set", "train.steps=2"});
  EXPECT_EQ(ran.code, 0) << ran.err;
}

/// What is asked about an event of the log is told what the event was.
TEST(FeaturesCommand, APairIsScoredAsTheEventThatItIs) {
  const std::string folder = make_log(), store = folder + "/store", trained = folder + "/run";
  const std::string config = folder + "/my.toml";
  ASSERT_EQ(run({"prep", "--raw", folder, "--out", store, "--schema", folder + "/schema.toml",
                 "--min-history", "4"})
                .code,
            0);
  base::put_file(config, run({"init", store}).out);
  ASSERT_EQ(run({"train", config, "--run", trained, "--set", "train.steps=4", "--set",
                 "model.numeric.columns=[\"user_rate\", \"organic\"]", "--set",
                 "model.numeric.outcomes=[]", "--set", "model.numeric.forms=[]"})
                .code,
            0);
  ASSERT_EQ(run({"score", trained, "--out", folder + "/events.csv"}).code, 0);
  // It has columns user, item and time.
  ASSERT_EQ(
      run({"score", trained, "--pairs", folder + "/events.csv", "--out", folder + "/pairs.csv"})
          .code,
      0);
  const std::vector<std::string> events = rows_of(folder + "/events.csv");
  const std::vector<std::string> pairs = rows_of(folder + "/pairs.csv");
  ASSERT_GT(events.size(), 100u);
  ASSERT_EQ(pairs.size(), events.size());
  const auto score = [](const std::string& row) { return row.substr(row.rfind(',')); };
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(score(pairs[i]), score(events[i])) << i;
}

}  // namespace
}  // namespace segue::cli
