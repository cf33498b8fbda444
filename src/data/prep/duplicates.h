#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "data/log/event.h"
#include "data/log/log_schema.h"
#include "data/log/number_arena.h"
#include "data/prep/event_runs.h"

namespace segue::data {

/// Counts events that are equal to one before them in everything, and drops them where the schema
/// says so. Events come in the order of a store.
class DuplicateFilter {
 public:
  /// Different events of one user at one time that are told apart when ties keep the order of the
  /// log: at most `most_ties`, and kMostTies. Beyond that: Error(kOutOfMemory) where duplicates are
  /// dropped, else not counted.
  DuplicateFilter(Duplicates what, TieOrder ties, int64_t most_ties);

  /// Removes the duplicates among `events`, if they are dropped; the first of equal ones stays.
  void filter(std::vector<Event>& events);
  int64_t found() const { return found_; }

  static constexpr int64_t kMostTies = int64_t{1} << 20;

 private:
  struct Hash {
    size_t operator()(const Event& e) const;
  };
  struct Equal {
    bool operator()(const Event& a, const Event& b) const { return a.is_same(b); }
  };
  bool is_duplicate(const Event& e);
  void forget_ties();

  bool drop_;
  bool sorted_;  // equal events are neighbours
  size_t most_ties_;
  bool any_ = false;
  Event last_;
  std::vector<float> last_numbers_;
  std::unordered_set<Event, Hash, Equal> at_one_time_;  // where they are not
  NumberArena numbers_;                                 // of at_one_time_
  int64_t found_ = 0;
};

}  // namespace segue::data
