#include "data/log/later_labels.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::data {
namespace {

constexpr size_t kFirstRoom = 1 << 14;
constexpr size_t kLargeTable = 64;  // buckets for an event

}  // namespace

LaterLabels::LaterLabels(const LogSchema& schema, int64_t most_events)
    : most_events_(static_cast<size_t>(most_events)), room_(std::min(most_events_, kFirstRoom)) {
  for (const LaterRule& rule : schema.later) {
    rules_.push_back({.kinds = kind_bits(schema, rule.kinds),
                      .followed_by = kind_bits(schema, rule.followed_by),
                      .within = rule.within_seconds,
                      .same_item = rule.same == LaterRule::Same::kItem});
    longest_ = std::max(longest_, rule.within_seconds);
  }
}

void LaterLabels::add(std::span<const Event> events, std::vector<Event>& decided) {
  forget_numbers();
  for (const Event& e : events) {
    if (!waiting_.empty() && waiting_.back().user != e.user) settle(waiting_.size(), decided);
    if (waiting_.size() >= room_) settle_old(decided);
    waiting_.push_back(e);
    numbers_.take(waiting_.back());
  }
  num_kept_ += events.size();
}

/// Numbers of events that left go when they are more than those that stay, so work follows events.
void LaterLabels::forget_numbers() {
  if (num_kept_ <= 2 * waiting_.size() + kFirstRoom) return;
  spare_.clear();
  for (Event& e : waiting_) spare_.take(e);
  std::swap(numbers_, spare_);
  num_kept_ = waiting_.size();
}

void LaterLabels::finish(std::vector<Event>& decided) { settle(waiting_.size(), decided); }

/// From the newest event back, so that the nearest follower of each is the last one seen.
void LaterLabels::mark(const Rule& rule, uint8_t bit) {
  // A map keeps its table, and to clear that takes as long as it is large.
  if (next_time_.bucket_count() > kLargeTable * (waiting_.size() + 1)) {
    decltype(next_time_)().swap(next_time_);
  } else {
    next_time_.clear();
  }
  for (size_t i = waiting_.size(); i-- > 0;) {
    Event& e = waiting_[i];
    const int64_t key = rule.same_item ? e.item : 0;
    if ((rule.kinds >> e.kind & 1) != 0) {
      const auto next = next_time_.find(key);
      const bool follows = next != next_time_.end() && next->second - e.time <= rule.within;
      if (follows) e.outcomes = static_cast<uint8_t>(e.outcomes | bit);
    }
    if ((rule.followed_by >> e.kind & 1) != 0) next_time_[key] = e.time;
  }
}

void LaterLabels::settle(size_t count, std::vector<Event>& decided) {
  for (size_t r = 0; r < rules_.size(); ++r) mark(rules_[r], static_cast<uint8_t>(1U << r));
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
  decided.insert(decided.end(), waiting_.begin(), end);
  waiting_.erase(waiting_.begin(), end);
}

void LaterLabels::settle_old(std::vector<Event>& decided) {
  const int64_t now = waiting_.back().time;
  const auto old =
      std::ranges::find_if(waiting_, [&](const Event& e) { return now - e.time <= longest_; });
  const auto count = static_cast<size_t>(old - waiting_.begin());
  const int64_t user = waiting_.back().user;
  settle(count, decided);
  if (count >= room_ / 2) return;
  // So that work follows events: what stays is looked at again only after as many more.
  if (room_ == most_events_) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("user {} has more than {} events within the {} s that labels of the schema "
                     "wait for (`later`): more than fit into the memory set aside; allow more, or "
                     "wait for less",
                     user, room_ / 2, longest_));
  }
  room_ = std::min(room_ * 2, most_events_);
}

}  // namespace segue::data
