#include "data/prep/duplicates.h"

#include <algorithm>
#include <bit>
#include <span>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"

namespace segue::data {

DuplicateFilter::DuplicateFilter(Duplicates what, TieOrder ties, int64_t most_ties)
    : drop_(what == Duplicates::kDrop),
      sorted_(ties == TieOrder::kFields),
      most_ties_(static_cast<size_t>(std::min(most_ties, kMostTies))) {}

size_t DuplicateFilter::Hash::operator()(const Event& e) const {
  const int64_t words[] = {e.item, int64_t{std::bit_cast<int32_t>(e.value)} << 32 | e.length,
                           int64_t{e.kind} << 8 | e.organic};
  const uint64_t hash = base::xxh64_words(words, static_cast<int>(std::size(words)), 0);
  const std::span<const float> numbers = e.numbers();
  return numbers.empty() ? hash : base::xxh64(numbers.data(), numbers.size_bytes(), hash);
}

bool DuplicateFilter::is_duplicate(const Event& e) {
  const bool same_time = any_ && e.user == last_.user && e.time == last_.time;
  const bool same = same_time && e.is_same(last_);
  any_ = true;
  last_ = e;
  last_numbers_.assign(e.numbers().begin(), e.numbers().end());
  last_.set_numbers(last_numbers_);
  if (sorted_) return same;
  if (!same_time) forget_ties();
  if (at_one_time_.contains(e)) return true;
  if (at_one_time_.size() < most_ties_) {
    Event kept = e;
    numbers_.take(kept);
    at_one_time_.insert(kept);
    return false;
  }
  if (drop_) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("user {} has more than {} different events at time {}: too many to find "
                     "duplicates among them in the order of the log; use --ties fields, or allow "
                     "more memory",
                     e.user, most_ties_, e.time));
  }
  return false;
}

/// A set keeps its table, and to clear that takes as long as it is large.
void DuplicateFilter::forget_ties() {
  constexpr size_t kSmallTable = 1 << 10;
  if (at_one_time_.bucket_count() > kSmallTable) {
    decltype(at_one_time_)().swap(at_one_time_);
  } else {
    at_one_time_.clear();
  }
  numbers_.clear();
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
