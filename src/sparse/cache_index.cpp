#include "sparse/cache_index.h"

#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"

namespace segue::sparse {
namespace {

constexpr int64_t kGrain = 1 << 12;
constexpr uint32_t kAgeBatches = 256;

}  // namespace

CacheIndex::CacheIndex(int64_t rows, CachePolicy policy)
    : policy_(policy), num_sets_(std::max<int64_t>(1, (rows + kWays - 1) / kWays)) {
  SEGUE_ASSERT(num_sets_ < int64_t{1} << 32, "sets are numbered by 32 bits of a hash");
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

int64_t CacheIndex::find_in_set(int64_t row) const {
  const int64_t first = set_of(row) * kWays;
  const int64_t* const ways = rows_.data() + first;
  // All ways, without a branch each: the compiler compares several at a time.
  int64_t found = kNone;
  for (int64_t way = 0; way < kWays; ++way) found = ways[way] == row ? way : found;
  return found == kNone ? kNone : first + found;
}

int64_t CacheIndex::victim_in_set(int64_t row) const {
  const int64_t first = set_of(row) * kWays;
  int64_t best = kNone;
  uint64_t best_score = 0;
  for (int64_t slot = first; slot < first + kWays; ++slot) {
    const auto s = static_cast<size_t>(slot);
    if (pins_[s] > 0) continue;
    const uint64_t often = policy_ == CachePolicy::kLfu ? counts_[s] : 0;
    const uint64_t score = often << 32 | stamps_[s];  // free ways have 0
    if (best != kNone && score >= best_score) continue;
    best = slot;
    best_score = score;
  }
  return best;
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

void CacheIndex::acquire(std::span<int64_t> rows,
                         const std::function<void(int64_t slots)>& make_room,
                         std::vector<Change>& changes) {
  ++clock_;
  age();
  // Rows that are there are pinned before any other takes a slot: a batch evicts none of its own.
  // They are different rows, so threads that find them write to different slots.
  const int64_t n = std::ssize(rows);
  std::vector<int64_t> found(rows.size());
  base::parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      found[i] = find_in_set(rows[i]);
      if (found[i] != kNone) pin(found[i]);
    }
  });
  std::vector<size_t> missing;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (found[i] != kNone) continue;
    const auto there = beyond_.empty() ? beyond_.end() : beyond_.find(rows[i]);
    if (there == beyond_.end()) {
      missing.push_back(i);
      continue;
    }
    found[i] = there->second;
    pin(found[i]);
  }
  try {
    for (const size_t i : missing) {
      int64_t slot = victim_in_set(rows[i]);
      if (slot == kNone) slot = slot_beyond(make_room);
      const auto s = static_cast<size_t>(slot);
      changes.push_back({rows[i], slot, rows_[s], dirty_[s] != 0, last_use_[s]});
      evicted_ += rows_[s] != kNone;
      held_ += rows_[s] == kNone;
      rows_[s] = rows[i];
      dirty_[s] = 0;
      counts_[s] = 0;
      if (beyond(slot)) beyond_[rows[i]] = slot;
      pin(slot);
      found[i] = slot;
    }
  } catch (...) {
    for (const int64_t slot : found) {
      if (slot != kNone) unpin(slot);
    }
    throw;
  }
  misses_ += std::ssize(missing);
  hits_ += n - std::ssize(missing);
  std::ranges::copy(found, rows.begin());
}

void CacheIndex::release(std::span<const int64_t> slots, bool wrote, int64_t number) {
  for (const int64_t slot : slots) {
    const auto s = static_cast<size_t>(slot);
    if (number > 0) last_use_[s] = std::max(last_use_[s], number);
    if (wrote && number > 0) dirty_[s] = 1;
    unpin(slot);
  }
}

}  // namespace segue::sparse
