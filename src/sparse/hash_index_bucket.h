#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "sparse/hash_index_rules.h"

/// What the CPU form of HashIndex does within one bucket.
namespace segue::sparse::detail {

struct Tally {
  int64_t inserted = 0, evicted = 0, expired = 0, refused = 0, candidates = 0;

  void add(const Tally& other) {
    inserted += other.inserted;
    evicted += other.evicted;
    expired += other.expired;
    refused += other.refused;
    candidates += other.candidates;
  }
};

/// What one chunk of a batch has done and leaves to be done in order.
struct Part {
  struct Fresh {
    int64_t slot, key;  // places in the pool and in the batch
  };
  Tally tally;
  std::vector<int64_t> growing;    // shards
  std::vector<int32_t> forgotten;  // rows
  std::vector<Fresh> fresh;        // they need a row's number
};

/// A batch as host arrays.
struct HostBatch {
  const int64_t* keys;
  const int32_t* uses;    // or null
  const int64_t* scores;  // or null
  int64_t n, step, time, oldest_kept;
  int64_t* rows;
  uint8_t* is_new;
  uint8_t* needs;  // Need of each

  int64_t uses_of(int64_t i) const { return uses == nullptr ? 1 : uses[i]; }
  int64_t score_of(int64_t i) const { return scores == nullptr ? 0 : scores[i]; }
};

/// Marks bytes of `word` that are 0 by their highest bit.
constexpr uint64_t zero_bytes(uint64_t word) {
  constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7full;
  return ~(((word & kLow) + kLow) | word | kLow);
}

inline int find_slot(const Slots& bucket, int64_t key) {
  const uint64_t pattern = digest_of(key) * 0x0101010101010101ull;
  for (int at = 0; at < kBucketSlots; at += 8) {
    uint64_t word;
    std::memcpy(&word, bucket.digests + at, sizeof(word));
    for (uint64_t same = zero_bytes(word ^ pattern); same != 0; same &= same - 1) {
      const int slot = at + std::countr_zero(same) / 8;
      if (bucket.keys[slot] == key) return slot;
    }
  }
  return -1;
}

inline int free_slot(const Slots& bucket) {
  const void* found = std::memchr(bucket.digests, 0, kBucketSlots);
  return found == nullptr ? -1
                          : static_cast<int>(static_cast<const uint8_t*>(found) - bucket.digests);
}

inline int count_rows(const IndexRules& rules, const Slots& bucket) {
  const uint8_t* digests = bucket.digests;
  if (!rules.has_candidates) {
    const auto free = std::count(digests, digests + kBucketSlots, uint8_t{0});
    return kBucketSlots - static_cast<int>(free);
  }
  int rows = 0;
  for (int i = 0; i < kBucketSlots; ++i) rows += digests[i] != 0 && bucket.rows[i] >= 0 ? 1 : 0;
  return rows;
}

/// The slot of lowest rank among those that `may_go`, -1 if there is none.
template <class MayGo, class RankOf>
int lowest(const Slots& bucket, MayGo may_go, RankOf rank_of) {
  int best = -1;
  Rank least{};
  for (int i = 0; i < kBucketSlots; ++i) {
    if (bucket.digests[i] == 0 || !may_go(i)) continue;
    const Rank rank = rank_of(i);
    if (best >= 0 && !(rank < least)) continue;
    best = i;
    least = rank;
  }
  return best;
}

/// Phase 2 in one bucket.
class BucketInsert {
 public:
  BucketInsert(const IndexRules& rules, const HostBatch& batch, const Slots& slots, int64_t first,
               Part& part)
      : rules_(rules),
        batch_(batch),
        first_(first),
        bucket_(slots.at(first)),
        rows_(count_rows(rules, bucket_)),
        part_(part) {}

  void add(int64_t i) {
    const Need need = static_cast<Need>(batch_.needs[i]);
    if (need == kNothing) return;
    const bool needs_row = (need & kRow) != 0;
    int slot = (need & kSlot) != 0 ? -1 : find_slot(bucket_, batch_.keys[i]);
    const bool was_candidate = slot >= 0;
    int32_t row = -1;  // of one that is evicted
    if (needs_row && rows_ == rules_.rows_per_bucket) {
      if (!evict_row(slot, row)) return refuse(i);
    } else if (slot < 0 && (slot = free_slot(bucket_)) < 0) {
      if (!evict_candidate(slot) && !evict_row(slot, row)) return refuse(i);
    }
    fill(i, slot, was_candidate, needs_row);
    if (!needs_row) {
      if (row >= 0) part_.forgotten.push_back(row);
      return;
    }
    ++rows_;
    ++part_.tally.inserted;
    bucket_.rows[slot] = row;
    batch_.rows[i] = row;
    batch_.is_new[i] = 1;
    if (row < 0) part_.fresh.push_back({first_ + slot, i});
  }

 private:
  void refuse(int64_t i) {
    ++part_.tally.refused;
    batch_.rows[i] = -1;
    batch_.is_new[i] = 0;
  }

  /// Its slot is left to the newcomer unless that has one.
  bool evict_row(int& slot, int32_t& row) {
    const int victim = lowest(
        bucket_,
        [&](int i) { return bucket_.rows[i] >= 0 && !is_pinned(bucket_.steps[i], batch_.step); },
        [&](int i) {
          return rules_.rank_of_row(rules_.keeps_scores ? bucket_.scores[i] : 0, bucket_.steps[i],
                                    bucket_.keys[i]);
        });
    if (victim < 0) return false;
    row = bucket_.rows[victim];
    bucket_.digests[victim] = 0;
    if (slot < 0) slot = victim;
    --rows_;
    ++part_.tally.evicted;
    return true;
  }

  bool evict_candidate(int& slot) {
    if (!rules_.has_candidates) return false;
    const int victim = lowest(
        bucket_, [&](int i) { return bucket_.rows[i] < 0 && bucket_.steps[i] < batch_.step; },
        [&](int i) {
          return Rank{bucket_.scores[i], bucket_.steps[i], bucket_.keys[i]};
        });
    if (victim < 0) return false;
    slot = victim;
    --part_.tally.candidates;
    return true;
  }

  void fill(int64_t i, int slot, bool was_candidate, bool has_row) {
    const int64_t uses = was_candidate ? bucket_.scores[slot] : batch_.uses_of(i);
    part_.tally.candidates += (has_row ? 0 : 1) - (was_candidate ? 1 : 0);
    bucket_.digests[slot] = digest_of(batch_.keys[i]);
    bucket_.keys[slot] = batch_.keys[i];
    bucket_.rows[slot] = -1;
    bucket_.steps[slot] = static_cast<uint32_t>(batch_.step);
    if (rules_.keeps_times) bucket_.times[slot] = batch_.time;
    if (rules_.keeps_scores) {
      bucket_.scores[slot] =
          has_row ? rules_.score_of_new_row(uses, batch_.time, batch_.score_of(i)) : uses;
    }
    batch_.rows[i] = -1;
    batch_.is_new[i] = 0;
  }

  const IndexRules& rules_;
  const HostBatch& batch_;
  int64_t first_;
  Slots bucket_;
  int rows_;
  Part& part_;
};

}  // namespace segue::sparse::detail
