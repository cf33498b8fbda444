#include "data/prep/duplicates.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"

namespace segue::data {

DuplicateFilter::DuplicateFilter(Duplicates what, TieOrder ties)
    : drop_(what == Duplicates::kDrop), sorted_(ties == TieOrder::kFields) {}

size_t DuplicateFilter::Hash::operator()(const Event& e) const {
  const int64_t words[] = {e.item, int64_t{std::bit_cast<int32_t>(e.value)} << 32 | e.length,
                           int64_t{e.kind} << 8 | e.organic};
  return base::xxh64_words(words, static_cast<int>(std::size(words)), 0);
}

bool DuplicateFilter::is_duplicate(const Event& e) {
  const bool same_time = any_ && e.user == last_.user && e.time == last_.time;
  const bool same = same_time && e.is_same(last_);
  any_ = true;
  last_ = e;
  last_numbers_.assign(e.numbers().begin(), e.numbers().end());
  last_.set_numbers(last_numbers_);
  if (sorted_) return same;
  if (!same_time) {
    at_one_time_.clear();
    numbers_.clear();
  }
  if (at_one_time_.contains(e)) return true;
  if (at_one_time_.size() < kMostTies) {
    Event kept = e;
    numbers_.take(kept);
    at_one_time_.insert(kept);
    return false;
  }
  if (drop_) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("user {} has more than {} different events at time {}: too many to find "
                     "duplicates among them in the order of the log; use --ties fields",
                     e.user, kMostTies, e.time));
  }
  return false;
}

void DuplicateFilter::filter(std::vector<Event>& events) {
  const auto end = std::remove_if(events.begin(), events.end(), [this](const Event& e) {
    const bool duplicate = is_duplicate(e);
    found_ += duplicate ? 1 : 0;
    return duplicate && drop_;
  });
  events.erase(end, events.end());
}

}  // namespace segue::data
