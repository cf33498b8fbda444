#pragma once

// For tests only: small random stores that the test itself writes, and what samples of them must
// be.

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "base/npy.h"
#include "base/test_util.h"
#include "data/sample/gather.h"
#include "data/sample/sample_schema.h"

namespace segue::data {

template <class T>
void put_npy(const std::string& path, const std::string& descr, const std::vector<T>& values) {
  const int64_t shape[] = {static_cast<int64_t>(values.size())};
  std::string text = base::npy_header(descr, shape);
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  base::put_file(path, text);
}

struct StoreShape {
  int64_t users = 12;
  int64_t max_events = 120;  // of a user
  int64_t items = 40;        // some beyond the maps, which end at 3/4 of them
  int64_t days = 20;
  int64_t history_length = 30;
  std::vector<int64_t> min_history = {0};
  bool disjoint_pools = true;  // false: an event may be in several, or in none
};

/// Columns as they are in the files.
struct TestStore {
  std::string folder, cache;
  SampleSchema schema;
  std::vector<int64_t> users, items, timestamps, kinds, unique_users, user_start, user_end;
  std::vector<float> played;
  std::vector<int8_t> organic;
  std::vector<std::vector<uint8_t>> pools;
  std::vector<std::vector<int64_t>> maps;

  std::string column(const std::string& name) const { return cache + "/" + name + ".npy"; }
  std::string index(const std::string& name) const { return folder + "/segue/" + name; }
  int64_t num_events() const { return static_cast<int64_t>(users.size()); }

  std::vector<int64_t> anchors(int64_t min_history) const {
    std::vector<int64_t> found;
    for (int64_t i = 0; i < num_events(); ++i) {
      const auto e = static_cast<size_t>(i);
      const int64_t before = i - user_start[static_cast<size_t>(users[e])];
      if (kinds[e] == 0 && before >= min_history) found.push_back(i);
    }
    return found;
  }

  void write_anchors(int64_t min_history, int64_t history_length) const {
    const std::string ending =
        "_L" + std::to_string(history_length) +
        (min_history == history_length ? "" : "_m" + std::to_string(min_history));
    const std::vector<int64_t> positions = anchors(min_history);
    std::vector<int64_t> times;
    times.reserve(positions.size());
    for (const int64_t p : positions) times.push_back(timestamps[static_cast<size_t>(p)]);
    put_npy(column("positions" + ending), "<i8", positions);
    put_npy(column("anchor_ts" + ending), "<i8", times);
  }

  void write(const StoreShape& shape) {
    cache = folder + "/hstu_cache_L" + std::to_string(shape.history_length);
    base::make_folders(cache);
    put_npy(column("flat_uid"), "<i8", users);
    put_npy(column("flat_item_ids"), "<i8", items);
    put_npy(column("flat_timestamps"), "<i8", timestamps);
    put_npy(column("flat_event_types"), "<i8", kinds);
    put_npy(column("flat_played_ratio"), "<f4", played);
    put_npy(column("flat_is_organic"), "|i1", organic);
    for (size_t p = 0; p < pools.size(); ++p) {
      put_npy(column("flat_is_" + schema.pools[p].name), "|b1", pools[p]);
    }
    put_npy(column("user_start"), "<i8", user_start);
    put_npy(column("user_end"), "<i8", user_end);
    put_npy(column("unique_uids"), "<i8", unique_users);
    for (size_t a = 0; a < maps.size(); ++a) {
      put_npy(folder + "/" + schema.attributes[a].file, "<i8", maps[a]);
    }
    for (const int64_t m : shape.min_history) write_anchors(m, shape.history_length);
    base::put_file(cache + "/store_meta.json",
                   "{\"num_users\": " + std::to_string(unique_users.size()) +
                       ", \"total_events\": " + std::to_string(users.size()) + "}");
    base::put_file(cache + "/_READY", "");
  }
};

inline TestStore make_store(const std::string& folder, uint64_t seed, const StoreShape& shape = {},
                            const SampleSchema& schema = SampleSchema::yambda()) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  TestStore s;
  s.folder = folder;
  s.schema = schema;
  s.pools.resize(schema.pools.size());
  int64_t uid = below(3);
  for (int64_t u = 0; u < shape.users; ++u) {
    s.user_start.resize(static_cast<size_t>(uid) + 1, -1);
    s.user_end.resize(static_cast<size_t>(uid) + 1, -1);
    s.unique_users.push_back(uid);
    s.user_start.back() = s.num_events();
    const int64_t events = 1 + below(shape.max_events);
    std::vector<int64_t> times;
    for (int64_t i = 0; i < events; ++i) times.push_back(below(shape.days * 86400) / 600 * 600);
    std::ranges::sort(times);  // many equal ones
    for (const int64_t time : times) {
      s.users.push_back(uid);
      s.timestamps.push_back(time);
      s.items.push_back(below(shape.items));
      s.kinds.push_back(below(4) == 0 ? 1 + below(4) : 0);
      s.played.push_back(static_cast<float>(below(120)));
      s.organic.push_back(static_cast<int8_t>(below(2)));
      const int64_t chosen = below(static_cast<int64_t>(s.pools.size()) + 1);
      for (size_t p = 0; p < s.pools.size(); ++p) {
        const bool in = shape.disjoint_pools ? chosen == static_cast<int64_t>(p) : below(3) == 0;
        s.pools[p].push_back(in ? 1 : 0);
      }
    }
    s.user_end.back() = s.num_events();
    uid += 1 + below(3);
  }
  for (size_t a = 0; a < schema.attributes.size(); ++a) {
    std::vector<int64_t>& map = s.maps.emplace_back();
    for (int64_t i = 0; i < shape.items * 3 / 4; ++i) map.push_back(below(1000));
  }
  s.write(shape);
  return s;
}

/// A history by the rules, one event after the other.
struct ExpectedHistory {
  std::vector<int64_t> positions, actions;
};

inline ExpectedHistory expected_history(const TestStore& s, const GatherConfig& config,
                                        int64_t anchor, int64_t of_user_of = -1) {
  const auto owner = static_cast<size_t>(of_user_of < 0 ? anchor : of_user_of);
  const int64_t start = s.user_start[static_cast<size_t>(s.users[owner])];
  const int64_t scan = std::max(start, anchor - config.scan_window);
  const auto num_pools = static_cast<int64_t>(s.pools.size());
  const bool interleaved = config.strategy == HistoryStrategy::kInterleaved;
  std::vector<int64_t> left(s.pools.size(),
                            interleaved ? std::max<int64_t>(1, config.history_length / num_pools)
                                        : config.history_length);
  ExpectedHistory newest_first;
  for (int64_t e = anchor - 1; e >= scan; --e) {
    int64_t action = 0;
    bool taken = false;
    for (size_t p = 0; p < s.pools.size(); ++p) {
      if (s.pools[p][static_cast<size_t>(e)] == 0) continue;
      action |= s.schema.pools[p].bit;
      taken = taken || left[p] > 0;
      --left[p];
    }
    if (!taken) continue;
    newest_first.positions.push_back(e);
    newest_first.actions.push_back(action);
    if (!interleaved &&
        static_cast<int64_t>(newest_first.positions.size()) == config.history_length) {
      break;
    }
  }
  if (config.max_history > 0 &&
      static_cast<int64_t>(newest_first.positions.size()) > config.max_history) {
    newest_first.positions.resize(static_cast<size_t>(config.max_history));
    newest_first.actions.resize(static_cast<size_t>(config.max_history));
  }
  std::ranges::reverse(newest_first.positions);
  std::ranges::reverse(newest_first.actions);
  return newest_first;
}

/// The part of a column that belongs to a sample.
inline std::vector<int64_t> sample_values(const Batch& batch, const std::string& column,
                                          int64_t sample) {
  const Batch::Column& c = batch.column(column);
  const std::span<const int64_t> offsets = batch.offsets(c);
  const auto i = static_cast<size_t>(sample);
  const auto values = c.values.span().subspan(static_cast<size_t>(offsets[i]),
                                              static_cast<size_t>(offsets[i + 1] - offsets[i]));
  return {values.begin(), values.end()};
}

}  // namespace segue::data
