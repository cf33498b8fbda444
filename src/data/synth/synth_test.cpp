#include "data/synth/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/parallel.h"
#include "base/test_util.h"
#include "data/prep/prep.h"
#include "data/synth/synth_catalogue.h"
#include "data/synth/synth_output.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr SynthConfig kSmall{
    .users = 120, .items = 2000, .days = 20, .events_per_user = 150, .seed = 7};

std::vector<UserLog> all_users(const SynthConfig& config) {
  const SynthLog log(config);
  std::vector<UserLog> users(static_cast<size_t>(config.users));
  for (size_t u = 0; u < users.size(); ++u) log.generate(static_cast<int64_t>(u), users[u]);
  return users;
}

bool same(const UserLog& a, const UserLog& b) {
  const auto bytes = [](const std::vector<float>& v) {
    return std::string(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float));
  };
  return std::ranges::equal(a.events, b.events, {}, &Event::key, &Event::key) &&
         bytes(a.listen_probability) == bytes(b.listen_probability);
}

/// Every file below a folder, by name.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    files[fs::relative(entry.path(), folder).string()] = base::read_file(entry.path().string());
  }
  return files;
}

// ---- the events ----

TEST(SynthTest, ConfigIsChecked) {
  const auto message = [](SynthConfig c) {
    const auto error = base::error_of([&] { c.validate(); });
    return error ? std::string(error->what()) : "";
  };
  EXPECT_EQ(message({.users = 0}), "synth: users must be between 1 and 2147483648, not 0");
  EXPECT_TRUE(base::contains(message({.items = -1}), "items must be"));
  EXPECT_TRUE(base::contains(message({.days = 0}), "days must be"));
  EXPECT_TRUE(base::contains(message({.events_per_user = 0}), "events_per_user must be"));
  SynthConfig{}.validate();
}

TEST(SynthTest, AUserIsAFunctionOfSeedAndNumber) {
  const std::vector<UserLog> users = all_users(kSmall);
  const SynthLog log(kSmall);
  UserLog again;
  log.generate(57, again);
  EXPECT_TRUE(same(again, users[57]));
  log.generate(58, again);  // replaces what was there
  EXPECT_TRUE(same(again, users[58]));

  SynthConfig more_users = kSmall;
  more_users.users = 500;
  SynthLog(more_users).generate(57, again);
  EXPECT_TRUE(same(again, users[57]));
  SynthConfig other_seed = kSmall;
  other_seed.seed = 8;
  SynthLog(other_seed).generate(57, again);
  EXPECT_FALSE(same(again, users[57]));
}

TEST(SynthTest, BlocksGiveEveryUserOnceInOrder) {
  SynthConfig config = kSmall;
  config.events_per_user = 50'000;  // few users per block
  config.users = 45;
  config.days = 1;
  const std::vector<UserLog> users = all_users(config);
  for (const int threads : {1, 3}) {
    base::set_num_threads(threads);
    int64_t next = 0;
    SynthLog(config).for_each_block([&](int64_t first, std::span<const UserLog> block) {
      EXPECT_EQ(first, next);
      for (const UserLog& user : block) EXPECT_TRUE(same(user, users[static_cast<size_t>(next++)]));
    });
    EXPECT_EQ(next, config.users);
  }
  base::set_num_threads(0);
}

TEST(SynthTest, UserIdsRiseWithGaps) {
  const SynthLog log(kSmall);
  std::vector<int64_t> ids;
  for (int64_t u = 0; u < kSmall.users; ++u) ids.push_back(log.user_id(u));
  EXPECT_TRUE(std::ranges::is_sorted(ids));
  EXPECT_EQ(std::ranges::adjacent_find(ids), ids.end());
  EXPECT_GT(ids.back() + 1, kSmall.users);
  EXPECT_LE(ids.back() + 1, kSmall.users + kSmall.users / 16 + 1);
}

TEST(SynthTest, EventsAreInStoreOrderAndComplete) {
  const SynthLog log(kSmall);
  int64_t last_time = 0;
  UserLog user;
  for (int64_t u = 0; u < kSmall.users; ++u) {
    log.generate(u, user);
    ASSERT_EQ(user.events.size(), user.listen_probability.size());
    int64_t last_listen = -1;
    for (size_t i = 0; i < user.events.size(); ++i) {
      const Event& e = user.events[i];
      ASSERT_TRUE(i == 0 || user.events[i - 1] < e);  // in the total order of a store
      EXPECT_EQ(e.user, log.user_id(u));
      EXPECT_EQ(e.time % 5, 0);
      EXPECT_GE(e.time, 0);
      EXPECT_LT(e.time, kSmall.end_time());
      EXPECT_GE(e.item, 0);
      EXPECT_LT(e.item, kSmall.items);
      EXPECT_TRUE(e.organic == 0 || e.organic == 1);
      const float p = user.listen_probability[i];
      if (e.kind == kListen) {
        EXPECT_GT(e.time, last_listen);
        last_listen = e.time;
        EXPECT_TRUE(e.value >= 0 && e.value <= 151 && e.value == std::floor(e.value));
        EXPECT_TRUE(e.length >= 30 && e.length <= 400);
        EXPECT_TRUE(p > 0 && p < 1);
      } else {
        EXPECT_LE(e.kind, kUndislike);
        EXPECT_FALSE(e.has_value());
        EXPECT_EQ(e.length, -1);
        EXPECT_TRUE(std::isnan(p));
      }
      last_time = std::max(last_time, e.time);
    }
  }
  EXPECT_EQ(last_time, kSmall.end_time() - 5);  // what the split relies on
}

TEST(SynthTest, ReactionsFitTogether) {
  int64_t seen[5] = {};
  for (const UserLog& user : all_users(kSmall)) {
    std::set<int64_t> liked, disliked, listened;
    for (const Event& e : user.events) {
      ++seen[e.kind];
      if (e.kind == kListen) listened.insert(e.item);
      if (e.kind == kLike) {
        EXPECT_TRUE(liked.insert(e.item).second);
        disliked.erase(e.item);
      } else if (e.kind == kDislike) {
        EXPECT_TRUE(disliked.insert(e.item).second);
        liked.erase(e.item);
      } else if (e.kind == kUnlike) {
        EXPECT_EQ(liked.erase(e.item), 1u);
      } else if (e.kind == kUndislike) {
        EXPECT_EQ(disliked.erase(e.item), 1u);
      }
      EXPECT_TRUE(listened.contains(e.item));
    }
  }
  for (const int64_t count : seen) EXPECT_GT(count, 0);
}

TEST(SynthTest, SessionsFollowTheHours) {
  int64_t sessions = 0, events = 0;
  std::vector<int64_t> by_hour(24);
  for (const UserLog& user : all_users(kSmall)) {
    int64_t before = -10'000;
    for (const Event& e : user.events) {
      if (e.time - before > 1800) {
        ++sessions;
        ++by_hour[static_cast<size_t>(e.time / 3600 % 24)];
      }
      before = e.time;
      ++events;
    }
  }
  const double length = static_cast<double>(events) / static_cast<double>(sessions);
  EXPECT_GT(length, 8);
  EXPECT_LT(length, 12);
  EXPECT_GT(by_hour[9] + by_hour[19], 5 * (by_hour[3] + by_hour[4]) / 2);  // day and night
}

TEST(SynthTest, OutcomesFollowTheWrittenProbabilities) {
  struct Bin {
    double expected = 0, variance = 0, found = 0;
  };
  std::vector<Bin> bins(10);
  for (const UserLog& user : all_users(kSmall)) {
    for (size_t i = 0; i < user.events.size(); ++i) {
      if (user.events[i].kind != kListen) continue;
      const double p = user.listen_probability[i];
      Bin& bin = bins[std::min<size_t>(9, static_cast<size_t>(p * 10))];
      bin.expected += p;
      bin.variance += p * (1 - p);
      bin.found += user.events[i].value >= 50 ? 1 : 0;
    }
  }
  for (const Bin& bin : bins) {
    EXPECT_GT(bin.variance, 10);
    EXPECT_LT(std::abs(bin.found - bin.expected), 4 * std::sqrt(bin.variance));
  }
}

TEST(SynthTest, RepeatsMakeTired) {
  // The same user, item and session: only fatigue differs, and the hour a little.
  int64_t falls = 0, rises = 0;
  for (const UserLog& user : all_users(kSmall)) {
    std::map<std::pair<int64_t, int>, std::pair<int64_t, float>> last;  // (item, organic)
    for (size_t i = 0; i < user.events.size(); ++i) {
      const Event& e = user.events[i];
      if (e.kind != kListen) continue;
      const auto key = std::pair(e.item, int{e.organic});
      const auto found = last.find(key);
      if (found != last.end() && e.time - found->second.first < 1200) {
        ++(user.listen_probability[i] < found->second.second ? falls : rises);
      }
      last[key] = {e.time, user.listen_probability[i]};
    }
  }
  EXPECT_GT(falls, 50);
  EXPECT_GT(falls, 8 * rises);  // they rise when older repeats are forgotten
}

// ---- the catalogue ----

TEST(SynthTest, CatalogueGrows) {
  const SynthCatalogue catalogue(kSmall);
  const auto reachable = [&](int64_t time) {
    std::set<int64_t> slots;
    for (int64_t artist = 0; artist < catalogue.num_artists(); ++artist) {
      for (uint64_t i = 0; i < 300; ++i) slots.insert(catalogue.draw_slot(artist, time, i));
    }
    return slots;
  };
  const std::set<int64_t> first = reachable(0), last = reachable(kSmall.end_time());
  EXPECT_LT(first.size(), last.size() * 9 / 10);
  EXPECT_GT(last.size(), static_cast<size_t>(kSmall.items) * 9 / 10);
}

TEST(SynthTest, MappingsCoverAllItemsSomeTwice) {
  const SynthLog log(kSmall);
  for (const AttributeRows& rows : {log.artist_rows(), log.album_rows()}) {
    ASSERT_EQ(rows.items.size(), rows.values.size());
    std::map<int64_t, int> times;
    for (const int64_t item : rows.items) ++times[item];
    EXPECT_EQ(times.size(), static_cast<size_t>(kSmall.items));
    EXPECT_EQ(times.begin()->first, 0);
    EXPECT_EQ(times.rbegin()->first, kSmall.items - 1);
    const auto twice = std::ranges::count_if(times, [](const auto& t) { return t.second == 2; });
    EXPECT_GT(twice, kSmall.items / 40);
    EXPECT_LT(twice, kSmall.items / 8);
    EXPECT_GT(*std::ranges::min_element(rows.values), 0);  // 0 stands for unknown
  }
}

TEST(SynthTest, TinyLogsWork) {
  for (const SynthConfig& config :
       {SynthConfig{.users = 1, .items = 1, .days = 1, .events_per_user = 1},
        SynthConfig{.users = 2, .items = 3, .days = 3, .events_per_user = 100'000}}) {
    int64_t events = 0;
    for (const UserLog& user : all_users(config)) {
      EXPECT_TRUE(std::is_sorted(user.events.begin(), user.events.end()));
      events += static_cast<int64_t>(user.events.size());
    }
    EXPECT_GT(events, 0);
  }
}

// ---- files ----

SynthStoreConfig store_config(const std::string& folder) {
  return {.folder = folder, .history_length = 60, .min_history = {0, 60}};
}

TEST(SynthOutputTest, StoreDoesNotDependOnThreads) {
  const SynthLog log(kSmall);
  std::map<std::string, std::string> one;
  for (const int threads : {1, 2, 5}) {
    base::set_num_threads(threads);
    const std::string folder = base::temp_path("store" + std::to_string(threads));
    write_synth_store(log, store_config(folder));
    if (threads == 1) one = files_of(folder);
    EXPECT_EQ(files_of(folder), one);
  }
  base::set_num_threads(0);
  EXPECT_GT(one.size(), 20u);
  EXPECT_TRUE(one.contains("segue/listen_probability.npy"));
}

TEST(SynthOutputTest, AStoreWithoutTrainPartIsRefused) {
  const auto error = base::error_of([&] {
    write_synth_store(SynthLog({.users = 3, .items = 10, .days = 1}),
                      store_config(base::temp_path("store")));
  });
  ASSERT_TRUE(error);
  EXPECT_TRUE(base::contains(error->what(), "use more days"));
}

TEST(SynthOutputTest, CsvHasTheColumnsOfTheRawLog) {
  const std::string folder = base::temp_path("raw");
  const SynthLog log(kSmall);
  const SynthSummary summary = write_raw_log(log, *make_csv_log_writer(folder, "500m"), folder);
  std::ifstream file(folder + "/flat/500m/multi_event.csv");
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line,
            "uid,timestamp,item_id,is_organic,played_ratio_pct,track_length_seconds,event_type");
  UserLog first;
  log.generate(0, first);
  const Event& e = first.events[0];
  std::getline(file, line);
  EXPECT_EQ(line, std::to_string(e.user) + "," + std::to_string(e.time) + "," +
                      std::to_string(e.item) + "," + std::to_string(e.organic) + "," +
                      std::to_string(static_cast<int>(e.value)) + "," + std::to_string(e.length) +
                      ",listen");
  int64_t rows = 1, without_value = 0;
  for (; std::getline(file, line); ++rows) without_value += line.find(",,") != std::string::npos;
  EXPECT_EQ(rows, summary.events);
  EXPECT_EQ(without_value, summary.events - summary.listens);

  std::ifstream artists(folder + "/artist_item_mapping.csv");
  std::getline(artists, line);
  EXPECT_EQ(line, "artist_id,item_id");
}

/// Everything that a prepared store and a direct one share: all files but manifest, schema (which
/// names the raw files) and truth.
std::map<std::string, std::string> shared_files(const std::string& store) {
  std::map<std::string, std::string> files = files_of(store);
  for (const char* name :
       {"segue/manifest.json", "segue/schema.toml", "segue/listen_probability.npy", kRowsFile}) {
    files.erase(name);
  }
  return files;
}

TEST(SynthOutputTest, CsvThroughPrepGivesTheSameStore) {
  const SynthLog log(kSmall);
  const std::string raw = base::temp_path("raw"), direct = base::temp_path("direct"),
                    prepared = base::temp_path("prepared");
  write_raw_log(log, *make_csv_log_writer(raw, "50m"), raw);
  write_synth_store(log, store_config(direct));
  PrepConfig config{.raw = raw,
                    .store = prepared,
                    .schema = load_log_schema({.file = raw + "/schema.toml"}),
                    .history_length = 60,
                    .min_history = {0, 60}};
  const PrepResult result = prep(config);
  EXPECT_TRUE(result.was_in_order);
  const auto wanted = shared_files(direct), found = shared_files(prepared);
  EXPECT_GT(wanted.size(), 20u);
  for (const auto& [name, bytes] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(found.at(name) == bytes) << name;
  }
  EXPECT_EQ(found.size(), wanted.size());
}

}  // namespace
}  // namespace segue::data
