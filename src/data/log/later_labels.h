#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "data/log/event.h"
#include "data/log/log_schema.h"
#include "data/log/number_arena.h"

namespace segue::data {

/// Sets Event::outcomes, bit i for schema.later[i]. Events come in the order of a store and leave
/// in it, once everything that could follow them has come by. An event is followed by one of the
/// same user that is behind it in that order and at most within_seconds later.
class LaterLabels {
 public:
  /// Holds at most `most_events`: Error(kOutOfMemory) when a user has more within the longest
  /// within_seconds.
  LaterLabels(const LogSchema& schema, int64_t most_events);

  bool empty() const { return rules_.empty(); }
  /// Adds `events`; those that are decided now are appended to `decided`. Their numbers last until
  /// the next call.
  void add(std::span<const Event> events, std::vector<Event>& decided);
  /// No more events: the rest is appended.
  void finish(std::vector<Event>& decided);

 private:
  struct Rule {
    uint64_t kinds = 0, followed_by = 0;
    int64_t within = 0;
    bool same_item = false;
  };
  void mark(const Rule& rule, uint8_t bit);
  /// Marks what is there and appends the first `count` of it.
  void settle(size_t count, std::vector<Event>& decided);
  void settle_old(std::vector<Event>& decided);
  void forget_numbers();

  std::vector<Rule> rules_;
  int64_t longest_ = 0;
  size_t most_events_;
  size_t room_;                                     // events after which the old ones are settled
  std::vector<Event> waiting_;                      // of one user
  NumberArena numbers_, spare_;                     // of them, and of some that left
  size_t num_kept_ = 0;                             // events that have theirs in numbers_
  std::unordered_map<int64_t, int64_t> next_time_;  // of the nearest follower, by item
};

}  // namespace segue::data
