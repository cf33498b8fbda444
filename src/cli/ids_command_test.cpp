// Ids that stay: a log with text ids, prepared again with a day more, scored by a model of before.

#include <algorithm>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/parquet.h"
#include "cli/test_util.h"
#include "data/store/store_manifest.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;
using base::contains;

constexpr const char* kSchema = R"(
events = "log.csv"
user = "who"
item = "what"
time = "ts"
kind = "kind"
kinds = ["view", "click"]
anchor_kinds = ["view", "click"]
pools = [
  { name = "viewed", bit = 1, kinds = ["view"] },
  { name = "clicked", bit = 2, kinds = ["click"] },
]
label_pool = "clicked"
attributes = [{ name = "shop", file = "items.csv", item = "what", value = "shop" }]
crosses = [{ name = "user_x_shop", keys = ["uid", "shop"], salt = 1, rows = 500 }]
test_seconds = 0
gap_seconds = 0
train_days = 0
)";

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

int64_t count_of(const std::string& text, const std::string& word) {
  int64_t count = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++count;
  return count;
}

/// 30 days of some users, and on day 31 also of new ones, whose ids sort before and between.
class IdsCommand : public testing::Test {
 protected:
  static constexpr int64_t kDay = 86400;

  void SetUp() override {
    folder_ = base::temp_path("ids");
    fs::remove_all(folder_);
    write_log("days30", 30);
    write_log("days31", 31);
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  static std::string user(uint64_t u) { return fmt_id(u % 3 == 0 ? "z-" : "m-", u); }
  static std::string new_user(uint64_t u) { return fmt_id(u % 2 == 0 ? "a-" : "p-", u); }
  static std::string item(uint64_t i) { return fmt_id("item, \"", i) + "\""; }
  static std::string new_item(uint64_t i) { return fmt_id(i % 2 == 0 ? "Item " : "item, \"5", i); }
  static std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
  }

  void write_log(const std::string& name, int64_t days) const {
    std::mt19937_64 random(5);
    std::string log = "who,what,ts,kind\n", shops = "what,shop\n";
    const auto put = [&](const std::string& who, const std::string& what, int64_t time) {
      log += who + "," + quoted(what) + "," + std::to_string(time) + "," +
             (random() % 3 == 0 ? "click" : "view") + "\n";
    };
    for (int64_t day = 0; day < days; ++day) {
      for (uint64_t u = 0; u < 24; ++u) {
        for (int i = 0; i < 4; ++i) {
          const int64_t time = day * kDay + static_cast<int64_t>(random() % kDay);
          const bool fresh = day == 30 && random() % 2 == 0;
          put(day == 30 && u % 4 == 0 ? new_user(u) : user(u),
              fresh ? new_item(random() % 9) : item(random() % 60), time);
        }
      }
    }
    for (uint64_t i = 0; i < 60; ++i)
      shops += quoted(item(i)) + ",shop" + std::to_string(i % 7) + "\n";
    if (days > 30) {
      for (uint64_t i = 0; i < 9; ++i) shops += quoted(new_item(i)) + ",another\n";
    }
    fs::create_directories(path(name));
    base::put_file(path(name) + "/log.csv", log);
    base::put_file(path(name) + "/items.csv", shops);
    base::put_file(path(name) + "/schema.toml", kSchema);
  }

  Outcome prep(const std::string& raw, const std::string& store,
               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {
        "prep", "--raw", path(raw), "--out", path(store), "--history", "40", "--min-history", "5"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  std::vector<std::string> train_arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"train", "--run", path("run"), "--device", "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  /// 30 days prepared, and a model of them, of a config that nobody wrote.
  void train_on_30_days() const {
    ASSERT_EQ(prep("days30", "store").code, kExitOk);
    const Outcome init = run({"init", path("store")});
    ASSERT_EQ(init.code, kExitOk) << init.err;
    base::put_file(path("config.toml"), init.out);
    const Outcome o = run({"train", path("config.toml"), "--run", path("run"), "--steps", "12",
                           "--device", "cpu", "--set", "checkpoint.every_steps=6"});
    ASSERT_EQ(o.code, kExitOk) << o.err;
  }
  Outcome score_pairs(const std::string& store, const std::string& out = "scores.csv") const {
    return run({"score", path("run"), "--set", "data.store=" + path(store), "--pairs",
                path("pairs.csv"), "--out", path(out)});
  }

  std::string folder_;

 private:
  static std::string fmt_id(const std::string& prefix, uint64_t n) {
    return prefix + std::to_string(n * 7919 % 1000);
  }
};

TEST_F(IdsCommand, Day31GivesOldUsersTheScoresOfBefore) {
  train_on_30_days();
  std::string pairs = "user,item,time\n";
  for (uint64_t u = 0; u < 24; ++u) {
    for (uint64_t i = 0; i < 60; i += 7) {
      pairs += user(u) + "," + quoted(item(i)) + "," + std::to_string(30 * kDay - 1) + "\n";
    }
  }
  base::put_file(path("pairs.csv"), pairs);
  Outcome o = score_pairs("store");
  ASSERT_EQ(o.code, kExitOk) << o.err;
  const std::string before = base::read_file(path("scores.csv"));
  EXPECT_EQ(lines_of(before).size(), lines_of(pairs).size());
  EXPECT_TRUE(contains(before, user(3) + "," + quoted(item(7)) + ",")) << before.substr(0, 200);

  o = prep("days31", "store31", {"--ids-from", path("store"), "--verify"});
  ASSERT_EQ(o.code, kExitOk) << o.err;
  o = score_pairs("store31", "scores31.csv");
  ASSERT_EQ(o.code, kExitOk) << o.err;
  EXPECT_EQ(base::read_file(path("scores31.csv")), before);  // to the last bit
  EXPECT_TRUE(contains(o.err, "have no rows in its tables")) << o.err;

  // New users and items have ids too, and no rows: they can be asked for all the same.
  o = run({"score", path("run"), "--set", "data.store=" + path("store31"), "--user", new_user(0),
           "--top", "3"});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_EQ(lines_of(o.out).size(), 4u) << o.out;
  EXPECT_EQ(run({"eval", path("run"), "--set", "data.store=" + path("store31")}).code, kExitOk);

  // Training goes on with the new day; ids that came have rows in tables that take any.
  std::vector<std::string> on = {"--set", "data.store=" + path("store31"), "--steps", "14"};
  for (const char* key : {"data.store", "train.steps", "sparse"}) {
    on.insert(on.end(), {"--allow-config-change", key});
  }
  EXPECT_TRUE(contains(run(train_arguments(on)).err, "ids beyond the rows of some tables"));
  fs::copy(path("run"), path("before"), fs::copy_options::recursive);
  for (const std::string table : {"0", "1", "2"}) {
    on.insert(on.end(), {"--set", "sparse.tables." + table + ".kind=dynamic", "--set",
                         "sparse.tables." + table + ".max_rows=1000"});
  }
  o = run(train_arguments(on));
  EXPECT_EQ(o.code, kExitOk) << o.err;
  o = score_pairs("store");  // which lacks ids that the run has by now
  EXPECT_EQ(o.code, kExitUsage) << o.err;
  EXPECT_TRUE(contains(o.err, "ids of `user` were 30, there they are 24")) << o.err;
  fs::remove_all(path("run"));
  fs::rename(path("before"), path("run"));

  // The numbers of a prep of its own stand for others.
  ASSERT_EQ(prep("days31", "ranked").code, kExitOk);
  for (const Outcome& refused :
       {score_pairs("ranked"), run({"eval", path("run"), "--set", "data.store=" + path("ranked")}),
        run(train_arguments(
            {"--set", "data.store=" + path("ranked"), "--allow-config-change", "data.store"})),
        run({"train", path("config.toml"), "--run", path("other"), "--device", "cpu", "--set",
             "data.store=" + path("ranked"), "--set", "sparse.out_of_range=zero", "--set",
             "train.init_from=" + path("run")})}) {
    EXPECT_EQ(refused.code, kExitUsage) << refused.err;
    EXPECT_TRUE(contains(refused.err, "--ids-from " + path("store"))) << refused.err;
  }
}

TEST_F(IdsCommand, ScoresOfAWindowHaveTheIdsOfTheLog) {
  train_on_30_days();
  for (const std::string name : {"w.csv", "w.jsonl", "w.parquet"}) {
    if (name.ends_with("parquet") && parquet() == nullptr) continue;
    const Outcome o = run({"score", path("run"), "--out", path(name)});
    ASSERT_EQ(o.code, kExitOk) << o.err;
  }
  const std::vector<std::string> csv = lines_of(base::read_file(path("w.csv")));
  ASSERT_GT(csv.size(), 10u);
  EXPECT_EQ(csv[0], "user,item,time,label,clicked");
  for (size_t i = 1; i < csv.size(); ++i) {
    EXPECT_TRUE(csv[i].starts_with("m-") || csv[i].starts_with("z-")) << csv[i];
    EXPECT_TRUE(contains(csv[i], ",\"item, \"\"")) << csv[i];
  }
  EXPECT_TRUE(contains(base::read_file(path("w.jsonl")), "\"item\": \"item, \\\""));
  if (parquet() == nullptr) return;
  // What comes out goes in: the same pairs at the same times have the same scores.
  const Outcome o =
      run({"score", path("run"), "--pairs", path("w.parquet"), "--out", path("p.csv")});
  ASSERT_EQ(o.code, kExitOk) << o.err;
  const std::vector<std::string> again = lines_of(base::read_file(path("p.csv")));
  ASSERT_EQ(again.size(), csv.size());
  for (size_t i = 1; i < csv.size(); ++i) {
    EXPECT_EQ(again[i].substr(0, again[i].rfind(',')),
              csv[i].substr(0, csv[i].rfind(',', csv[i].rfind(',') - 1)));
  }
}

TEST_F(IdsCommand, TimesOfPairsMayBeDates) {
  train_on_30_days();
  const auto scores = [&](const char* time) {
    base::put_file(path("dated.csv"),
                   "user,item,time\n" + user(3) + "," + quoted(item(2)) + "," + time + "\n");
    const Outcome o =
        run({"score", path("run"), "--pairs", path("dated.csv"), "--out", path("dated-out.csv")});
    EXPECT_EQ(o.code, kExitOk) << o.err;
    return base::read_file(path("dated-out.csv"));
  };
  const std::string by_seconds = scores("2591999");
  EXPECT_EQ(scores("1970-01-30T23:59:59Z"), by_seconds);
  EXPECT_EQ(scores("1970-01-31T00:59:59+01:00"), by_seconds);
  EXPECT_NE(scores("1970-01-29"), by_seconds);
}

TEST_F(IdsCommand, RanksTheCatalogueOfAUser) {
  train_on_30_days();
  const Outcome all = run({"score", path("run"), "--user", user(4), "--top", "1000"});
  ASSERT_EQ(all.code, kExitOk) << all.err;
  const std::vector<std::string> rows = lines_of(all.out);
  EXPECT_EQ(rows.size(), 61u);  // every item of the log, and a header
  EXPECT_EQ(rows[0], "user,item,time,clicked");
  const auto score_of = [](const std::string& row) {
    return std::stod(row.substr(row.rfind(',') + 1));
  };
  for (size_t i = 2; i < rows.size(); ++i) EXPECT_GE(score_of(rows[i - 1]), score_of(rows[i]));
  EXPECT_NE(score_of(rows[1]), score_of(rows.back()));

  // The same as pairs, one by one; and the same again.
  std::string pairs = "user,item\n";
  for (uint64_t i = 0; i < 60; ++i) pairs += user(4) + "," + quoted(item(i)) + "\n";
  base::put_file(path("pairs.csv"), pairs);
  ASSERT_EQ(score_pairs("store").code, kExitOk);
  std::vector<std::string> as_pairs = lines_of(base::read_file(path("scores.csv")));
  std::stable_sort(as_pairs.begin() + 1, as_pairs.end(),
                   [&](const auto& a, const auto& b) { return score_of(a) > score_of(b); });
  for (size_t i = 1; i < rows.size(); ++i)
    EXPECT_NEAR(score_of(rows[i]), score_of(as_pairs[i]), 1e-6);

  const Outcome top = run({"score", path("run"), "--user", user(4), "--top", "3"});
  EXPECT_EQ(lines_of(top.out), (std::vector<std::string>(rows.begin(), rows.begin() + 4)));

  // Several users, from a file, at a time of their own.
  base::put_file(path("users.csv"), "user\n" + user(1) + "\n" + user(2) + "\n");
  const Outcome o = run({"score", path("run"), "--users", path("users.csv"), "--user", user(4),
                         "--top", "2", "--time", "1970-01-20", "--out", path("lists.jsonl")});
  ASSERT_EQ(o.code, kExitOk) << o.err;
  const std::vector<std::string> lists = lines_of(base::read_file(path("lists.jsonl")));
  ASSERT_EQ(lists.size(), 6u);
  EXPECT_TRUE(contains(lists[0], "\"user\": \"" + user(4) + "\""));
  EXPECT_TRUE(contains(lists[5], "\"user\": \"" + user(2) + "\""));
  EXPECT_TRUE(contains(lists[5], "\"time\": 1641600"));
}

TEST_F(IdsCommand, UnknownIdsAreNamedWithTheirRow) {
  train_on_30_days();
  base::put_file(path("pairs.csv"),
                 "user,item\n" + user(1) + "," + quoted(item(1)) + "\n" + user(2) + ",nothing\n");
  Outcome o = score_pairs("store");
  EXPECT_EQ(o.code, kExitOutOfRange);
  EXPECT_TRUE(contains(o.err, "pairs.csv: row 2: item \"nothing\" is none of the 60")) << o.err;
  o = run({"score", path("run"), "--user", "nobody"});
  EXPECT_EQ(o.code, kExitOutOfRange);
  EXPECT_TRUE(contains(o.err, "--user: user \"nobody\" is none of the 24")) << o.err;
  EXPECT_EQ(run({"score", path("run"), "--top", "3"}).code, kExitUsage);
  EXPECT_EQ(run({"score", path("run")}).code, kExitUsage);
  o = run({"score", path("run"), "--user", user(1), "--time", "soon"});
  EXPECT_EQ(o.code, kExitUsage);
  EXPECT_TRUE(contains(o.err, "--time soon")) << o.err;
  if (parquet() == nullptr) return;
  // A column of another type is not a column that is missing: histories would end elsewhere.
  parquet()->write_table(path("pairs.parquet"),
                         std::vector<data::TableColumn>{{.name = "user", .texts = {user(1)}},
                                                        {.name = "item", .texts = {item(1)}},
                                                        {.name = "time", .texts = {"noon"}}});
  o = run({"score", path("run"), "--pairs", path("pairs.parquet"), "--out", path("scores.csv")});
  EXPECT_EQ(o.code, kExitCorrupt) << o.err;
  EXPECT_TRUE(contains(o.err, "column \"time\" has \"noon\" where a time such as")) << o.err;
}

TEST_F(IdsCommand, AStoreReplacedUnderARunIsNoticedAndACopyPasses) {
  train_on_30_days();
  const std::vector<std::string> on = {"--steps", "14", "--allow-config-change", "train.steps"};
  fs::copy(path("store"), path("moved"), fs::copy_options::recursive);
  ASSERT_EQ(prep("days30", "store", {"--overwrite", "--min-history", "3"}).code, kExitOk);
  Outcome o = run(train_arguments(on));
  EXPECT_EQ(o.code, kExitUsage) << o.err;
  EXPECT_TRUE(contains(o.err, path("store") + ": is another store than the one")) << o.err;
  EXPECT_TRUE(contains(o.err, "--allow-config-change data.store")) << o.err;

  // Elsewhere, and with more rows, it is the store of the run.
  std::vector<std::string> arguments = train_arguments(on);
  arguments.insert(arguments.end(), {"--set", "data.store=" + path("moved")});
  o = run(arguments);
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_EQ(count_of(o.err, " W "), 0) << o.err;
  fs::create_directories(path("later"));
  base::put_file(path("later") + "/log.csv",
                 "who,what,ts,kind\n" + user(1) + "," + quoted(item(1)) + ",9999999,view\n");
  ASSERT_EQ(run({"prep", "--raw", path("later"), "--out", path("moved"), "--append"}).code,
            kExitOk);
  arguments[6] = "16";
  ASSERT_EQ(arguments[5], "--steps");
  o = run(arguments);
  EXPECT_EQ(o.code, kExitOk) << o.err;

  // Somebody may insist.
  o = run(train_arguments({"--steps", "18", "--allow-config-change", "train.steps", "--set",
                           "data.store=" + path("store"), "--allow-config-change", "data.store"}));
  EXPECT_EQ(o.code, kExitOk) << o.err;
}

/// What others made has no manifest, so nobody can tell whether a copy is the same.
TEST_F(IdsCommand, ACacheWithoutManifestIsKnownByItsPath) {
  ASSERT_EQ(prep("days30", "store").code, kExitOk);
  fs::remove(path("store") + "/segue/manifest.json");
  base::put_file(path("config.toml"), run({"init", path("store")}).out);
  ASSERT_EQ(
      run({"train", path("config.toml"), "--run", path("run"), "--steps", "3", "--device", "cpu"})
          .code,
      kExitOk);
  fs::copy(path("store"), path("moved"), fs::copy_options::recursive);
  std::vector<std::string> on = {"--steps", "4", "--allow-config-change", "train.steps"};
  EXPECT_EQ(run(train_arguments(on)).code, kExitOk);
  on[1] = "5";
  on.insert(on.end(), {"--set", "data.store=" + path("moved")});
  Outcome o = run(train_arguments(on));
  EXPECT_EQ(o.code, kExitUsage) << o.err;
  EXPECT_TRUE(contains(o.err, "data.store: was")) << o.err;
  on.insert(on.end(), {"--allow-config-change", "data.store"});
  o = run(train_arguments(on));
  EXPECT_EQ(o.code, kExitOk) << o.err;
}

TEST_F(IdsCommand, AnIncrementIsPublishedOnlyForTheSameIds) {
  train_on_30_days();
  const auto publish = [&](const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"publish", path(name), "--to", path("serving")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  ASSERT_EQ(publish("run").code, kExitOk);
  const auto train_on = [&](const std::string& store, const std::string& name) {
    const Outcome o =
        run({"train", path("config.toml"), "--run", path(name), "--steps", "3", "--device", "cpu",
             "--set", "data.store=" + path(store), "--set", "sparse.out_of_range=zero"});
    EXPECT_EQ(o.code, kExitOk) << o.err;
  };
  ASSERT_EQ(prep("days31", "ranked").code, kExitOk);
  train_on("ranked", "run_ranked");
  Outcome o = publish("run_ranked");
  EXPECT_EQ(o.code, kExitUsage) << o.out;
  EXPECT_TRUE(contains(o.err, "stand for other ids")) << o.err;
  EXPECT_TRUE(contains(o.err, "--base")) << o.err;
  ASSERT_EQ(prep("days31", "store31", {"--ids-from", path("store")}).code, kExitOk);
  train_on("store31", "run31");
  EXPECT_EQ(publish("run31").code, kExitOk);
  EXPECT_EQ(publish("run_ranked", {"--base"}).code, kExitOk);
  o = run({"publish", "verify", path("serving")});
  EXPECT_EQ(o.code, kExitOk) << o.err;
}

/// The command of the docs has no lengths: models were trained on those of the old store.
TEST_F(IdsCommand, LengthsAreThoseOfTheOldStore) {
  ASSERT_EQ(prep("days30", "store").code, kExitOk);
  const auto again = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"prep",        "--raw",         path("days31"),
                                          "--out",       path("store31"), "--ids-from",
                                          path("store"), "--overwrite"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, kExitOk) << o.err;
    return data::StoreManifest::read(path("store31"));
  };
  data::StoreManifest m = again({});
  EXPECT_EQ(m.history_length, 40);
  EXPECT_EQ(m.min_history, std::vector<int64_t>{5});
  m = again({"--min-history", "7"});
  EXPECT_EQ(m.history_length, 40);
  EXPECT_EQ(m.min_history, std::vector<int64_t>{7});
  EXPECT_EQ(again({"--history", "30"}).history_length, 30);
  // As wherever a store is named, its cache folder will do.
  const Outcome o = run({"prep", "--raw", path("days31"), "--out", path("store31"), "--ids-from",
                         path("store") + "/hstu_cache_L40", "--overwrite"});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  m = data::StoreManifest::read(path("store31"));
  EXPECT_EQ(m.history_length, 40);
  EXPECT_EQ(m.min_history, std::vector<int64_t>{5});
}

/// JSON could not tell two of them.
TEST_F(IdsCommand, IdsThatAreNoUtf8AreNotWrittenAsJson) {
  std::string log = base::read_file(path("days30") + "/log.csv");
  for (size_t at = 0; (at = log.find("z-", at)) != log.npos;) log.replace(at, 2, "caf\xe9");
  base::put_file(path("days30") + "/log.csv", log);
  train_on_30_days();
  Outcome o = run({"score", path("run"), "--out", path("scores.jsonl")});
  EXPECT_EQ(o.code, kExitUnsupported);
  EXPECT_TRUE(contains(o.err, "scores.jsonl: JSON is UTF-8, and user \"caf")) << o.err;
  EXPECT_TRUE(contains(o.err, "write .csv")) << o.err;
  EXPECT_FALSE(base::exists(path("scores.jsonl")));
  o = run({"score", path("run"), "--out", path("scores.csv")});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_TRUE(contains(base::read_file(path("scores.csv")), "\ncaf\xe9"));
}

TEST_F(IdsCommand, DenseIntegersComeBackAsTheyWere) {
  std::string log = "who,what,ts,kind\n";
  std::mt19937_64 random(3);
  const std::vector<int64_t> users = {0, 7, 500}, items = {-3, 12, 90000000000};
  for (int64_t t = 0; t < 900; ++t) {
    log += std::to_string(users[random() % 3]) + "," + std::to_string(items[random() % 3]) + "," +
           std::to_string(t * 1000) + (random() % 2 == 0 ? ",view\n" : ",click\n");
  }
  base::put_file(path("days30") + "/log.csv", log);
  std::vector<std::string> dense;
  for (const char* key : {"attributes=[]", "crosses=[]", "user_ids=dense", "item_ids=dense"}) {
    dense.insert(dense.end(), {"--set", key});
  }
  ASSERT_EQ(prep("days30", "store", dense).code, kExitOk);
  base::put_file(path("config.toml"), run({"init", path("store")}).out);
  ASSERT_EQ(
      run({"train", path("config.toml"), "--run", path("run"), "--steps", "3", "--device", "cpu"})
          .code,
      kExitOk);
  Outcome o = run({"score", path("run"), "--user", "500"});
  ASSERT_EQ(o.code, kExitOk) << o.err;
  EXPECT_TRUE(contains(o.out, "\n500,-3,")) << o.out;
  EXPECT_TRUE(contains(o.out, "\n500,90000000000,")) << o.out;
  base::put_file(path("pairs.csv"), "user,item\n7,12\n1,12\n");
  o = score_pairs("store");
  EXPECT_EQ(o.code, kExitOutOfRange);
  EXPECT_TRUE(contains(o.err, "row 2: user \"1\" is none of the 3")) << o.err;
}

/// Integers that stay as they are have no numbers to compare; those that came since are beyond the
/// rows of static tables all the same.
TEST_F(IdsCommand, NewIntegersReadAsZerosToo) {
  std::mt19937_64 random(4);
  const auto log_of = [&](int64_t users, int64_t items, int64_t first_time) {
    std::string log = "who,what,ts,kind\n";
    for (int64_t i = 0; i < 900; ++i) {
      log += std::to_string(static_cast<int64_t>(random() % 1000) % users) + "," +
             std::to_string(static_cast<int64_t>(random() % 1000) % items) + "," +
             std::to_string(first_time + i * 1000) + (random() % 2 == 0 ? ",view\n" : ",click\n");
    }
    return log;
  };
  base::put_file(path("days30") + "/log.csv", log_of(5, 9, 0));
  ASSERT_EQ(prep("days30", "store", {"--set", "attributes=[]", "--set", "crosses=[]"}).code,
            kExitOk);
  base::put_file(path("config.toml"), run({"init", path("store")}).out);
  ASSERT_EQ(
      run({"train", path("config.toml"), "--run", path("run"), "--steps", "3", "--device", "cpu"})
          .code,
      kExitOk);
  EXPECT_FALSE(contains(run({"eval", path("run")}).err, "have no rows in its tables"));
  fs::create_directories(path("later"));
  base::put_file(path("later") + "/log.csv", log_of(8, 12, 1'000'000));
  ASSERT_EQ(run({"prep", "--raw", path("later"), "--out", path("store"), "--append"}).code,
            kExitOk);
  Outcome o = run({"eval", path("run")});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_TRUE(contains(o.err, "have no rows in its tables")) << o.err;
  o = run({"score", path("run"), "--user", "7", "--top", "2"});
  EXPECT_EQ(o.code, kExitOk) << o.err;
}

}  // namespace
}  // namespace segue::cli
