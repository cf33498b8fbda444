#pragma once

#include <cstdint>
#include <vector>

#include "data/store/event_store.h"

namespace segue::data {

/// The events of a store and of its segments as one log, piece after piece. Positions count through
/// all of them, so a segment that is appended changes none. The order of samples is another one: by
/// user, and of a user by time, which is piece after piece. A view: the store must live longer.
class EventLog {
 public:
  explicit EventLog(const EventStore& store);

  size_t num_pieces() const { return pieces_.size(); }
  const EventStore& piece(size_t p) const { return *pieces_[p]; }
  int64_t first(size_t p) const { return first_[p]; }  // position of its first event
  int64_t num_events() const { return first_.back(); }

  /// Where an event lies: its piece, and its position there. One that is nowhere is beyond the last
  /// piece, or before the first.
  struct Place {
    size_t piece = 0;
    int64_t position = 0;
  };
  Place place(int64_t position) const {
    size_t p = 0;
    while (p + 1 < pieces_.size() && position >= first_[p + 1]) ++p;
    return {p, position - first_[p]};
  }
  /// One value of an event that is there: at(position, &EventStore::items).
  template <class Column>
  auto at(int64_t position, Column column) const {
    const Place at = place(position);
    return (piece(at.piece).*column)()[static_cast<size_t>(at.position)];
  }
  bool in_pool(size_t pool, int64_t position) const {
    const Place at = place(position);
    return piece(at.piece).in_pool(pool)[static_cast<size_t>(at.position)] != 0;
  }

  /// Earlier events of the event's user.
  int64_t events_before(int64_t position) const;
  /// All users, ascending.
  std::vector<int64_t> users() const;
  /// Positions of a user's events in order.
  std::vector<int64_t> events_of(int64_t user) const;
  /// Of the user's events, or -1 if there are none.
  int64_t first_event_of(int64_t user) const;
  int64_t last_event_of(int64_t user) const;
  int64_t last_time() const { return pieces_.back()->last_time(); }  // times rise over pieces

 private:
  std::vector<const EventStore*> pieces_;
  std::vector<int64_t> first_;  // [pieces + 1]
};

}  // namespace segue::data
