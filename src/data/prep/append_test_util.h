#pragma once

// For tests only: logs that grow part by part.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "data/prep/prep_test_util.h"

namespace segue::data {

/// A log whose users come and go: some appear late, some not again.
inline std::vector<Event> growing_log(size_t rows, uint64_t seed) {
  std::vector<Event> events = random_log(rows, seed);
  std::erase_if(events, [](const Event& e) {
    const bool late = e.time > 2 * 86400;
    return (e.user % 5 == 0 && !late) || (e.user % 5 == 1 && late);
  });
  return events;
}

/// Events by time into `parts` at random cuts, none of them empty.
inline std::vector<std::vector<Event>> cut(const std::vector<Event>& events, size_t parts,
                                           uint64_t seed) {
  std::vector<int64_t> times;
  for (const Event& e : events) times.push_back(e.time);
  std::ranges::sort(times);
  times.erase(std::unique(times.begin(), times.end()), times.end());
  std::vector<int64_t> cuts(times.begin() + 1, times.end());
  std::mt19937_64 random(seed);
  std::ranges::shuffle(cuts, random);
  cuts.resize(parts - 1);
  std::ranges::sort(cuts);
  std::vector<std::vector<Event>> result(parts);
  for (const Event& e : events) {
    result[static_cast<size_t>(std::ranges::upper_bound(cuts, e.time) - cuts.begin())].push_back(e);
  }
  return result;
}

/// Raw folders of the parts of a log, and stores made from them.
class GrowingLog {
 public:
  explicit GrowingLog(const std::vector<std::vector<Event>>& parts) {
    std::vector<Event> all;
    for (size_t i = 0; i < parts.size(); ++i) {
      logs.push_back(raw("part" + std::to_string(i)));
      logs.back().put_events("events.csv", parts[i]);
      if (i > 0) {
        std::filesystem::remove(logs.back().folder + "/artists.csv");
        std::filesystem::remove(logs.back().folder + "/users.csv");
      }
      all.insert(all.end(), parts[i].begin(), parts[i].end());
    }
    whole.put_events("events.csv", all);
  }

  static RawLog raw(const std::string& name) {
    std::filesystem::remove_all(base::temp_path(name));
    RawLog log(name);
    log.schema.train_days = log.schema.test_seconds = log.schema.gap_seconds = 0;
    log.schema.numbers = {{.name = "length", .column = "track_length_seconds"},
                          {.name = "played", .column = "played_ratio_pct", .outcome = true}};
    log.schema.user_attributes.resize(1);
    log.schema.user_attributes[0].name = "age";
    log.schema.user_attributes[0].file = "users.csv";
    log.schema.user_attributes[0].value = "age";
    log.put("users.csv", "uid,age\n4,31\n22,18\n100,44\n");
    return log;
  }
  std::string store() const { return logs[0].folder + "/store"; }
  std::string one_piece() const { return whole.folder + "/store"; }
  PrepConfig config(size_t part) const {
    PrepConfig c = logs[part].config("store");
    c.store = store();
    c.append = part > 0;
    return c;
  }
  void prepare() const {
    prep(whole.config("store"));
    for (size_t i = 0; i < logs.size(); ++i) prep(config(i));
  }

  std::vector<RawLog> logs;
  RawLog whole = raw("whole");
};

}  // namespace segue::data
