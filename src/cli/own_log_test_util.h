#pragma once

// For tests of what people get wrong: small logs as they have them, with a schema, a config, a
// store and a run.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/test_util.h"

namespace segue::cli {

using Words = std::vector<std::string>;

inline constexpr int64_t kFirstTime = 1'717'200'000, kDay = 86400;
inline constexpr int64_t kUsers = 150, kItems = 300, kEventsPerUser = 40, kDays = 45;

inline constexpr const char* kSchema = R"(
events = "log.csv"
user = "user"
item = "item"
time = "ts"
flags = ["clicked"]
train_days = 0
test_seconds = 0
gap_seconds = 0
kinds = ["view"]
anchor_kinds = ["view"]
label_pool = "clicked"
[[pools]]
name = "clicked"
bit = 1
flag = "clicked"
[[pools]]
name = "seen"
bit = 2
)";

inline constexpr const char* kShopSchema = R"(
events = "log.csv"
user = "user"
item = "item"
time = "ts"
kind = "kind"
train_days = 0
test_seconds = 0
gap_seconds = 0
kinds = ["view", "cart", "purchase"]
anchor_kinds = ["view"]
label_pool = "bought"
[[pools]]
name = "carted"
bit = 1
kinds = ["cart"]
[[pools]]
name = "bought"
bit = 2
kinds = ["purchase"]
)";

inline constexpr const char* kConfig = R"(
[model]
dim = 16
heads = 2
qk_dim = 8
v_dim = 8
layers = 1
hidden = 16
item_hidden = 16
head_hidden = 16
max_seq_len = 32
position_buckets = 32
time_buckets = 32
item = { history = "item_id", candidate = "item_candidate_id", table = "item" }
contextual = [{ name = "uid", table = "user" }]
tasks = [{ name = "clicked", bit = 1 }]
[sparse]
dim = 8
tables = [{ name = "item", rows = 300 }, { name = "user", rows = 150 }]
[data]
store = "@/store"
batch_size = 64
[data.stream]
min_history = 3
eval_windows = 9
[train]
device = "cpu"
threads = 1
arena_gib = 0.25
)";

/// Rows of the click log; every user has as many, at times that differ in `factor` from seconds.
inline std::string click_log(const char* user_prefix, int64_t factor = 1) {
  std::string text = "ts,title,clicked,item,user\n";
  uint64_t seed = 5;
  const auto draw = [&seed](int64_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((seed >> 33) % static_cast<uint64_t>(below));
  };
  for (int64_t event = 0; event < kEventsPerUser; ++event) {
    for (int64_t user = 0; user < kUsers; ++user) {
      const int64_t item = draw(kItems), time = kFirstTime + draw(kDays * kDay);
      const bool clicked = draw(100) < (item % 5 == 0 ? 65 : 15);
      const std::string id = std::to_string(item);
      text += std::to_string(time * factor) + ",\"Title, " + id + "\"," + (clicked ? "1," : "0,") +
              id + "," + user_prefix + std::to_string(user) + "\n";
    }
  }
  return text;
}

inline std::string shop_log() {
  constexpr const char* kKinds[] = {"view", "view", "cart", "purchase", "view"};
  std::string text = "ts,kind,item,user\n";
  for (int64_t i = 0; i < 1200; ++i) {
    text += std::to_string(kFirstTime + i * 3000) + "," + kKinds[i % 5] + "," +
            std::to_string(i % 70) + "," + std::to_string(i % 40) + "\n";
  }
  return text;
}

/// Logs, schemas, a config, a store and a run, made once.
class OwnLog {
 public:
  explicit OwnLog(std::string folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(path("raw"));
    std::filesystem::create_directories(path("texts"));
    std::filesystem::create_directories(path("shop"));
    const std::string log = click_log("");
    const std::string header = log.substr(0, log.find('\n') + 1);
    put("raw/log.csv", log);
    put("raw/empty.csv", "");
    put("raw/header.csv", header);
    put("raw/zeros.csv", header + "5,a,1,1,7\n6,a,1,1,007\n");
    put("raw/rounded.csv", header + "5,a,1,1,1.2345678901234568e+18\n6,a,1,1,7\n");
    put("raw/dates.csv", header + "14.11.2023 22:13,a,1,1,1\n");
    put("raw/log.jsonl", "{\"user\": 1}\n");
    put("raw/negative.csv", header + "-5,a,1,1,1\n");
    put("raw/ms.csv", click_log("", 1000));
    put("raw/future.csv", log + "9999999999,a,1,1,1\n");
    put("texts/log.csv", click_log("user-"));
    put("shop/log.csv", shop_log());
    put("schema.toml", kSchema);
    put("shop.toml", kShopSchema);
    std::string config = kConfig;
    config.replace(config.find('@'), 1, folder_);
    put("config.toml", config);
    put("broken.toml", "[model\nlayers = 1\n");
    put("pairs_ms.csv", "user,item,time\n0,1," + std::to_string((kFirstTime + kDay) * 1000) + "\n");
    put("pairs_early.csv", "user,item,time\n0,1,5\n");
    put("pairs_unknown.csv", "user,item\n0,1\n0,99999\n");
    put("pairs_negative.csv", "user,item\n0,-1\n");
    put("pairs_zeros.csv", "user,item\n0,1\n0,007\n");
    put("pairs_none.csv", "user,item,time\n");
    put("users_none.csv", "user\n");
    prepare("raw/log.csv", "store", {});
    prepare("raw/ms.csv", "ms", {});
    prepare("raw/log.csv", "thousandth", {"--set", "time_unit_seconds=0.001"});
    const Outcome trained = run({"train", path("config.toml"), "--run", path("run")});
    EXPECT_EQ(trained.code, kExitOk) << trained.err;
    EXPECT_FALSE(base::contains(trained.err, " W ")) << trained.err;  // warnings are for mistakes
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  /// Arguments with "@/" for the folder, and "@new" for a name that nothing has yet.
  Words filled(Words arguments) {
    for (std::string& a : arguments) {
      if (const size_t at = a.find("@new"); at != std::string::npos) {
        a.replace(at, 4, path("new-" + std::to_string(++used_)));
      }
      if (const size_t at = a.find("@/"); at != std::string::npos) a.replace(at, 1, folder_);
    }
    return arguments;
  }

 private:
  void put(const std::string& name, const std::string& text) const {
    base::put_file(path(name), text);
  }
  void prepare(const std::string& raw, const std::string& store, Words more) {
    Words all = {"prep",  "--raw",     path(raw),   "--schema", path("schema.toml"),
                 "--out", path(store), "--history", "64",       "--min-history",
                 "3"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome o = run(all);
    EXPECT_EQ(o.code, kExitOk) << o.err;
  }

  std::string folder_;
  int used_ = 0;
};

inline OwnLog& own_log() {
  static OwnLog log(base::temp_path("own"));
  return log;
}

}  // namespace segue::cli
