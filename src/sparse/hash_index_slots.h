#pragma once

#include <cstdint>
#include <vector>

#include "sparse/hash_index_rules.h"
#include "tensor/buffer.h"

namespace segue::sparse::detail {

/// Memory of the slots of all shards that are kept here. Every shard has room for `capacity`
/// buckets, of which it uses the first; that of shard s (counted from the first one here) begins at
/// bucket s * capacity.
class SlotPool {
 public:
  SlotPool() = default;
  SlotPool(Device device, const IndexRules& rules, int64_t shards, uint32_t capacity);

  const Slots& slots() const { return slots_; }
  uint32_t capacity() const { return capacity_; }
  int64_t num_slots() const { return num_slots_; }
  int64_t bytes() const { return memory_.bytes(); }
  Device device() const { return memory_.device(); }
  void* data() const { return memory_.data(); }
  /// Of the bucket's first slot.
  int64_t first_slot(int64_t shard, int64_t bucket) const {
    return (shard * capacity_ + bucket) * kBucketSlots;
  }

 private:
  Buffer memory_;
  Slots slots_;
  uint32_t capacity_ = 0;
  int64_t num_slots_ = 0;
};

/// The capacity that shards of these sizes need.
uint32_t largest_size(const IndexRules& rules, const std::vector<uint32_t>& sizes);

/// A pool in host memory as entries, ascending by key.
HashIndex::Entries collect_entries(const IndexRules& rules, const SlotPool& pool,
                                   const std::vector<uint32_t>& sizes);

/// The way back.
struct PlacedEntries {
  SlotPool pool;  // in host memory
  std::vector<uint32_t> sizes;
  int64_t rows = 0, candidates = 0;
};
PlacedEntries place_entries(const IndexRules& rules, const HashIndex::Entries& entries);

}  // namespace segue::sparse::detail
