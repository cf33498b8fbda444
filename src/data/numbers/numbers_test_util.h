#pragma once

// For tests only: stores with numbers.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/numbers/event_numbers.h"
#include "data/store/store_test_util.h"

namespace segue::data {

inline constexpr int64_t kDay = 86400;

/// With users and items enough for groups.
inline const StoreShape kWithGroups = {.users = 24, .max_events = 150, .items = 6, .days = 4};

struct Opened {
  explicit Opened(const TestStore& s) : store(s.folder, s.schema), log(store), numbers(log) {}
  EventStore store;
  EventLog log;
  EventNumbers numbers;
};

inline TestStore fresh_store(uint64_t seed, const StoreShape& shape = {}) {
  const std::string folder = base::temp_path("store" + std::to_string(seed));
  std::filesystem::remove_all(folder);
  return make_store(folder, seed, shape);
}

/// Values of the store's only piece in groups, as its numbers are made with.
inline ValueGroups groups_of(const TestStore& s, const ValueGroupLimits& limits = {}) {
  const EventStore store(s.folder, s.schema);
  const EventLog log(store);
  const DayCounts days = DayCounts::open_or_build(store, store);
  return ValueGroups::open_or_build(log, {&days, 1}, nullptr, 1, limits);
}

/// Half of the users like items of even numbers, the others those of odd ones, mostly.
inline void give_tastes(TestStore& s) {
  for (size_t i = 0; i < s.users.size(); ++i) {
    if (i % 8 != 0) s.pools[0][i] = (s.users[i] + s.items[i]) % 2 == 0 ? 1 : 0;
  }
  s.write({});
}

/// Rows of all events, in the order of the log.
inline std::vector<float> all_rows(const EventLog& log, const EventNumbers& numbers) {
  std::vector<float> all;
  for (const int64_t user : log.users()) {
    for (const int64_t position : log.events_of(user)) {
      const EventLog::Place at = log.place(position);
      const std::span<const float> row = numbers.of_event(at.piece, at.position);
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  return all;
}

inline size_t place_of(const SampleSchema& schema, const std::string& name) {
  const std::vector<std::string> names = count_names(schema);
  return static_cast<size_t>(std::ranges::find(names, name) - names.begin());
}

/// Whether any event has tries of others of its group.
inline bool any_groups(const EventLog& log, const EventNumbers& numbers) {
  const std::vector<float> all = all_rows(log, numbers);
  const size_t place = place_of(log.piece(0).schema(), "user_item_taste_count");
  for (size_t i = place; i < all.size(); i += numbers.width()) {
    if (all[i] > 0) return true;
  }
  return false;
}

}  // namespace segue::data
