// Stores that were appended to: their segments, opened, and all of it as one log.

#include "data/store/event_log.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"

namespace segue::data {

EventStore::EventStore(const EventStore& base, int64_t number)
    : schema_(base.schema_), verify_(base.verify_) {
  const std::string name = segment_name(number);
  const bool apart = base.index_folder_ != base.folder_ + "/segue";
  find_folders(base.folder_ + "/" + name, apart ? base.index_folder_ + "/" + name : "");
  earlier_ = {&base};
  for (const auto& segment : base.segments_) earlier_.push_back(segment.get());
  open();
}

void EventStore::open_segments(int64_t most) {
  if (std::min(most, count_segments(folder_)) == 0) return;
  const std::vector<StoreManifest> manifests = read_manifests(folder_, most);
  for (size_t i = 1; i < manifests.size(); ++i) {
    // Its constructor is private.
    std::unique_ptr<EventStore> segment(new EventStore(*this, static_cast<int64_t>(i)));
    segment->previous_ = manifests[i].segment.previous;
    if (!segment->attribute_maps_.empty()) {
      attribute_maps_ = std::move(segment->attribute_maps_);
      num_items_ = segment->num_items_;
    }
    if (!segment->user_attribute_maps_.empty()) {
      user_attribute_maps_ = std::move(segment->user_attribute_maps_);
    }
    segments_.push_back(std::move(segment));
  }
}

EventLog::EventLog(const EventStore& store) : pieces_{&store}, first_{0, store.num_events()} {
  for (const auto& segment : store.segments()) {
    pieces_.push_back(segment.get());
    first_.push_back(first_.back() + segment->num_events());
  }
}

int64_t EventLog::events_before(int64_t position) const {
  const Place at = place(position);
  const UserEvents own = piece(at.piece).owner_of(at.position);
  int64_t events = at.position - own.begin;
  for (size_t p = 0; p < at.piece; ++p) {
    const UserEvents earlier = pieces_[p]->events_of(own.user);
    events += earlier.end - earlier.begin;
  }
  return events;
}

std::vector<int64_t> EventLog::users() const {
  std::vector<int64_t> all, merged;
  for (const EventStore* piece : pieces_) {
    merged.clear();
    std::ranges::set_union(all, piece->unique_users(), std::back_inserter(merged));
    all.swap(merged);
  }
  return all;
}

std::vector<int64_t> EventLog::events_of(int64_t user) const {
  std::vector<int64_t> positions;
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const UserEvents events = pieces_[p]->events_of(user);
    for (int64_t i = events.begin; i < events.end; ++i) positions.push_back(first_[p] + i);
  }
  return positions;
}

int64_t EventLog::first_event_of(int64_t user) const {
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const UserEvents events = pieces_[p]->events_of(user);
    if (events.end > events.begin) return first_[p] + events.begin;
  }
  return -1;
}

int64_t EventLog::last_event_of(int64_t user) const {
  for (size_t p = pieces_.size(); p-- > 0;) {
    const UserEvents events = pieces_[p]->events_of(user);
    if (events.end > events.begin) return first_[p] + events.end - 1;
  }
  return -1;
}

}  // namespace segue::data
