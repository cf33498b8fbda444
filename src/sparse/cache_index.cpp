#include "sparse/cache_index.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"

namespace segue::sparse {
namespace {

constexpr int64_t kGrain = 1 << 12;
constexpr uint32_t kAgeBatches = 256;

/// Sets are anywhere in memory: those of the rows that come next are asked for early.
constexpr size_t kAhead = 8;
template <class T>
void prefetch(const T* ways) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t way = 0; way < CacheIndex::kWays; way += kLine) __builtin_prefetch(ways + way);
}

}  // namespace

CacheIndex::CacheIndex(int64_t rows, CachePolicy policy)
    : policy_(policy), num_sets_(std::max<int64_t>(1, (rows + kWays - 1) / kWays)) {
  SEGUE_ASSERT(num_sets_ < int64_t{1} << 32, "sets are numbered by 32 bits of a hash");
  while ((num_sets_ - 1) >> part_shift_ >= kParts) ++part_shift_;
  const auto slots = static_cast<size_t>(set_slots());
  rows_.assign(slots, kNone);
  stamps_.assign(slots, 0);
  counts_.assign(slots, 0);
  pins_.assign(slots, 0);
  last_use_.assign(slots, 0);
  dirty_.assign(slots, 0);
}

int64_t CacheIndex::set_of(int64_t row) const {
  const uint64_t hash = base::splitmix64(static_cast<uint64_t>(row)) >> 32;
  return static_cast<int64_t>(hash * static_cast<uint64_t>(num_sets_) >> 32);
}

int64_t CacheIndex::find_in_set(int64_t set, int64_t row) const {
  const int64_t first = set * kWays;
  const int64_t* const ways = rows_.data() + first;
  // All ways, without a branch each: the compiler compares several at a time.
  int64_t found = kNone;
  for (int64_t way = 0; way < kWays; ++way) found = ways[way] == row ? way : found;
  return found == kNone ? kNone : first + found;
}

int64_t CacheIndex::victim_in_set(int64_t set) const {
  // Again without branches. Neither batches nor counts ever get to kMost.
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  const int64_t first = set * kWays;
  const int32_t* const pins = pins_.data() + first;
  const uint32_t* const stamps = stamps_.data() + first;
  const uint32_t* const counts = counts_.data() + first;
  uint32_t ages[kWays];  // those that can go; kMost: others
  for (int64_t way = 0; way < kWays; ++way) ages[way] = pins[way] > 0 ? kMost : stamps[way];
  if (policy_ == CachePolicy::kLfu) {
    uint32_t rarest = kMost;
    for (int64_t way = 0; way < kWays; ++way) {
      rarest = std::min(rarest, pins[way] > 0 ? kMost : counts[way]);
    }
    for (int64_t way = 0; way < kWays; ++way) {
      ages[way] = counts[way] == rarest ? ages[way] : kMost;
    }
  }
  uint32_t oldest = kMost;
  for (int64_t way = 0; way < kWays; ++way) oldest = std::min(oldest, ages[way]);
  if (oldest == kMost) return kNone;
  int64_t found = 0;
  for (int64_t way = kWays - 1; way >= 0; --way) found = ages[way] == oldest ? way : found;
  return first + found;
}

int64_t CacheIndex::slot_beyond(const std::function<void(int64_t slots)>& make_room) {
  if (!unpinned_.empty()) {
    const int64_t slot = unpinned_.begin()->second;
    unpinned_.erase(unpinned_.begin());
    beyond_.erase(row_at(slot));
    return slot;
  }
  make_room(slots() + 1);
  rows_.push_back(kNone);
  stamps_.push_back(0);
  counts_.push_back(0);
  pins_.push_back(0);
  last_use_.push_back(0);
  dirty_.push_back(0);
  return slots() - 1;
}

void CacheIndex::pin(int64_t slot) {
  const auto s = static_cast<size_t>(slot);
  if (beyond(slot) && pins_[s] == 0) unpinned_.erase({stamps_[s], slot});
  ++pins_[s];
  stamps_[s] = clock_;
  ++counts_[s];
}

void CacheIndex::unpin(int64_t slot) {
  const auto s = static_cast<size_t>(slot);
  SEGUE_ASSERT(pins_[s] > 0, "a slot of a cache is given back twice");
  --pins_[s];
  if (beyond(slot) && pins_[s] == 0) unpinned_.insert({stamps_[s], slot});
}

/// So that what was popular once does not stay for ever.
void CacheIndex::age() {
  if (policy_ != CachePolicy::kLfu || clock_ % kAgeBatches != 0) return;
  base::parallel_for(slots(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) counts_[static_cast<size_t>(s)] /= 2;
  });
}

void CacheIndex::share_out(std::span<const int64_t> rows) {
  const int64_t n = std::ssize(rows);
  found_.resize(n);
  order_.resize(n);
  sets_.resize(n);
  starts_.resize(base::num_chunks(n, kGrain) * kParts);
  const auto starts_of = [&](int64_t begin) { return starts_.data() + begin / kGrain * kParts; };
  base::parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    int32_t* const count = starts_of(begin);
    std::fill_n(count, kParts, 0);
    for (int64_t i = begin; i < end; ++i) {
      sets_[i] = static_cast<uint32_t>(set_of(rows[static_cast<size_t>(i)]));
      ++count[sets_[i] >> part_shift_];
    }
  });
  int32_t start = 0;
  for (int64_t p = 0; p < kParts; ++p) {
    Part& part = parts_[static_cast<size_t>(p)];
    part.first = start;
    for (int64_t begin = 0; begin < n; begin += kGrain) {
      start += std::exchange(starts_of(begin)[p], start);
    }
    part.count = start - part.first;
  }
  base::parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    int32_t* const next = starts_of(begin);
    for (int64_t i = begin; i < end; ++i) {
      order_[next[sets_[i] >> part_shift_]++] = static_cast<int32_t>(i);
    }
  });
}

CacheIndex::Change CacheIndex::give(int64_t slot, int64_t row) {
  const auto s = static_cast<size_t>(slot);
  const Change change{row, slot, rows_[s], dirty_[s] != 0, last_use_[s]};
  rows_[s] = row;
  dirty_[s] = 0;
  counts_[s] = 0;
  return change;
}

void CacheIndex::seat(std::span<const int64_t> rows, Part& part, Change* changes) {
  part.missing.clear();
  part.outside.clear();
  part.changes = part.filled = 0;
  // Rows that are there are pinned before any other takes a slot: a batch evicts none of its own.
  const std::span<const int32_t> mine =
      order_.span().subspan(static_cast<size_t>(part.first), static_cast<size_t>(part.count));
  for (size_t k = 0; k < mine.size(); ++k) {
    const int32_t i = mine[k];
    if (k + kAhead < mine.size()) prefetch(rows_.data() + sets_[mine[k + kAhead]] * kWays);
    found_[i] = find_in_set(sets_[i], rows[static_cast<size_t>(i)]);
    if (found_[i] != kNone) {
      pin(found_[i]);
    } else if (!beyond_.empty() && beyond_.contains(rows[static_cast<size_t>(i)])) {
      part.outside.push_back(i);
    } else {
      part.missing.push_back(i);
    }
  }
  for (size_t k = 0; k < part.missing.size(); ++k) {
    const int32_t i = part.missing[k];
    if (k + kAhead < part.missing.size()) {
      const int64_t first = sets_[part.missing[k + kAhead]] * kWays;
      prefetch(pins_.data() + first);
      prefetch(stamps_.data() + first);
    }
    const int64_t slot = victim_in_set(sets_[i]);
    if (slot == kNone) {
      part.outside.push_back(i);
      continue;
    }
    const Change& change = changes[part.changes++] = give(slot, rows[static_cast<size_t>(i)]);
    part.filled += change.victim == kNone;
    pin(slot);
    found_[i] = slot;
  }
}

void CacheIndex::seat_outside(std::span<const int64_t> rows,
                              const std::function<void(int64_t slots)>& make_room,
                              HostArray<Change>& changes) {
  std::vector<int32_t> missing;
  for (const Part& part : parts_) {
    for (const int32_t i : part.outside) {
      const auto there = beyond_.find(rows[static_cast<size_t>(i)]);
      if (there == beyond_.end()) {
        missing.push_back(i);
        continue;
      }
      found_[i] = there->second;
      pin(found_[i]);
    }
  }
  std::ranges::sort(missing);
  for (const int32_t i : missing) {
    const int64_t row = rows[static_cast<size_t>(i)], slot = slot_beyond(make_room);
    changes.push_back(give(slot, row));
    ++(changes[changes.size() - 1].victim == kNone ? held_ : evicted_);
    beyond_[row] = slot;
    pin(slot);
    found_[i] = slot;
  }
}

void CacheIndex::acquire(std::span<int64_t> rows,
                         const std::function<void(int64_t slots)>& make_room,
                         HostArray<Change>& changes) {
  ++clock_;
  age();
  share_out(rows);
  const int64_t n = std::ssize(rows);
  changes.resize(n);
  base::parallel_for(kParts, n < kGrain ? kParts : 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      Part& part = parts_[static_cast<size_t>(p)];
      seat(rows, part, changes.data() + part.first);
    }
  });
  // The changes of all parts move together.
  int64_t count = 0;
  for (const Part& part : parts_) {
    if (count < part.first) {
      std::copy_n(changes.data() + part.first, part.changes, changes.data() + count);
    }
    count += part.changes;
    held_ += part.filled;
    evicted_ += part.changes - part.filled;
  }
  changes.resize(count);
  try {
    seat_outside(rows, make_room, changes);
  } catch (...) {
    for (const int64_t slot : found_.span()) {
      if (slot != kNone) unpin(slot);
    }
    throw;
  }
  misses_ += changes.size();
  hits_ += n - changes.size();
  std::ranges::copy(found_.span(), rows.begin());
}

void CacheIndex::release(std::span<const int64_t> slots, bool wrote, int64_t number) {
  const auto give_back = [&](int64_t slot) {
    const auto s = static_cast<size_t>(slot);
    if (number > 0) last_use_[s] = std::max(last_use_[s], number);
    if (wrote && number > 0) dirty_[s] = 1;
    unpin(slot);
  };
  base::parallel_for(std::ssize(slots), kGrain, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (!beyond(slots[i])) give_back(slots[i]);
    }
  });
  if (this->slots() == set_slots()) return;
  for (const int64_t slot : slots) {
    if (beyond(slot)) give_back(slot);
  }
}

}  // namespace segue::sparse
