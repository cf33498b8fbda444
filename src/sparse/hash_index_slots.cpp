#include "sparse/hash_index_slots.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::sparse::detail {
namespace {

using Entries = HashIndex::Entries;

constexpr int64_t kBucketGrain = 64;

int64_t bytes_of_slot(const IndexRules& rules) {
  const int64_t optional = (rules.keeps_scores ? 8 : 0) + (rules.keeps_times ? 8 : 0);
  return 8 + 4 + 4 + 1 + optional;
}

/// Slots of one bucket that are in use, by key.
int slots_by_key(const Slots& bucket, std::array<int, kBucketSlots>& order) {
  int count = 0;
  for (int i = 0; i < kBucketSlots; ++i) {
    if (bucket.digests[i] != 0) order[static_cast<size_t>(count++)] = i;
  }
  std::sort(order.begin(), order.begin() + count,
            [&](int a, int b) { return bucket.keys[a] < bucket.keys[b]; });
  return count;
}

void require_sound(const IndexRules& rules, const Entries& entries) {
  const size_t n = entries.keys.size();
  if (entries.rows.size() != n || entries.steps.size() != n) {
    fail(ErrorCode::kCorrupt, fmt::format("hash index: {} keys with {} rows and {} steps", n,
                                          entries.rows.size(), entries.steps.size()));
  }
  if (rules.keeps_scores && entries.scores.size() != n) {
    fail(ErrorCode::kConfig,
         fmt::format("hash index: {} keys with {} scores; they were saved under another policy of "
                     "eviction or admission",
                     n, entries.scores.size()));
  }
  if (rules.keeps_times && entries.times.size() != n) {
    fail(ErrorCode::kConfig,
         fmt::format("hash index: {} keys with {} times of their last use; they were saved without "
                     "a time to live",
                     n, entries.times.size()));
  }
  for (size_t i = 0; i < n; ++i) {
    const int64_t shard = rules.shard_of(entries.keys[i]);
    if (shard < rules.first_shard || shard >= rules.end_shard) {
      fail(ErrorCode::kCorrupt,
           fmt::format("hash index: key {} belongs to shard {}, not to shards {} to {}",
                       entries.keys[i], shard, rules.first_shard, rules.end_shard));
    }
    if (i > 0 && entries.keys[i - 1] >= entries.keys[i]) {
      fail(ErrorCode::kCorrupt, fmt::format("hash index: key {} is not after key {}",
                                            entries.keys[i], entries.keys[i - 1]));
    }
    if (entries.steps[i] < 0 || entries.steps[i] > kMostSteps) {
      fail(ErrorCode::kCorrupt, fmt::format("hash index: step {}", entries.steps[i]));
    }
  }
}

/// The entries of one shard, as they are placed.
class ShardEntries {
 public:
  ShardEntries(const IndexRules& rules, const Entries& entries, size_t begin, size_t end)
      : rules_(rules), entries_(entries), begin_(begin), end_(end) {}

  bool is_candidate(size_t i) const { return entries_.rows[i] < 0; }
  /// Candidates are nothing where every key is admitted at once.
  bool is_kept(size_t i) const { return !is_candidate(i) || rules_.has_candidates; }

  bool fits(uint32_t buckets) const {
    uint32_t bucket = 0;
    int rows = 0, used = 0;
    for (size_t i = begin_; i < end_; ++i) {
      if (!is_kept(i)) continue;
      const uint32_t own = rules_.bucket_of(entries_.keys[i], buckets);
      if (own != bucket) rows = used = 0;
      bucket = own;
      ++used;
      rows += is_candidate(i) ? 0 : 1;
      if (rows > rules_.rows_per_bucket || used > kBucketSlots) return false;
    }
    return true;
  }

  /// `wanted` 0: none. 0 if there is no such size.
  uint32_t choose_size(int64_t wanted) const {
    if (wanted >= rules_.start_buckets && wanted <= rules_.max_buckets &&
        fits(static_cast<uint32_t>(wanted))) {
      return static_cast<uint32_t>(wanted);
    }
    uint32_t size = rules_.start_buckets;
    while (!fits(size)) {
      if (size == rules_.max_buckets) return 0;
      size = rules_.next_size(size);
    }
    return size;
  }

  int64_t count(bool candidates) const {
    int64_t n = 0;
    for (size_t i = begin_; i < end_; ++i) n += is_kept(i) && is_candidate(i) == candidates ? 1 : 0;
    return n;
  }

  void place(const SlotPool& pool, int64_t shard, uint32_t buckets, int64_t next_row) const {
    uint32_t bucket = 0;
    int used = 0;
    for (size_t i = begin_; i < end_; ++i) {
      if (!is_kept(i)) continue;
      const uint32_t own = rules_.bucket_of(entries_.keys[i], buckets);
      if (own != bucket) used = 0;
      bucket = own;
      const Slots slot = pool.slots().at(pool.first_slot(shard, bucket) + used++);
      *slot.digests = digest_of(entries_.keys[i]);
      *slot.keys = entries_.keys[i];
      *slot.rows = is_candidate(i) ? -1 : static_cast<int32_t>(next_row++);
      *slot.steps = static_cast<uint32_t>(entries_.steps[i]);
      if (rules_.keeps_scores) *slot.scores = entries_.scores[i];
      if (rules_.keeps_times) *slot.times = entries_.times[i];
    }
  }

 private:
  const IndexRules& rules_;
  const Entries& entries_;
  size_t begin_, end_;
};

std::vector<ShardEntries> cut_by_shard(const IndexRules& rules, const Entries& entries) {
  std::vector<ShardEntries> shards;
  auto begin = entries.keys.begin();
  for (int64_t shard = rules.first_shard; shard < rules.end_shard; ++shard) {
    const auto end = std::partition_point(
        begin, entries.keys.end(), [&](int64_t key) { return rules.shard_of(key) <= shard; });
    shards.emplace_back(rules, entries, static_cast<size_t>(begin - entries.keys.begin()),
                        static_cast<size_t>(end - entries.keys.begin()));
    begin = end;
  }
  return shards;
}

}  // namespace

SlotPool::SlotPool(Device device, const IndexRules& rules, int64_t shards, uint32_t capacity)
    : capacity_(capacity), num_slots_(shards * capacity * kBucketSlots) {
  memory_ = Buffer(device, num_slots_ * bytes_of_slot(rules), Purpose::kTable);
  auto* next = static_cast<char*>(memory_.data());
  // Whole buckets of every field, widest first: each bucket of a field begins on a line of memory.
  const auto take = [&]<class T>(T*& field) {
    field = reinterpret_cast<T*>(next);
    next += num_slots_ * static_cast<int64_t>(sizeof(T));
  };
  if (num_slots_ == 0) return;
  take(slots_.keys);
  if (rules.keeps_scores) take(slots_.scores);
  if (rules.keeps_times) take(slots_.times);
  take(slots_.rows);
  take(slots_.steps);
  take(slots_.digests);
}

uint32_t largest_size(const IndexRules& rules, const std::vector<uint32_t>& sizes) {
  return sizes.empty() ? rules.start_buckets : *std::ranges::max_element(sizes);
}

Entries collect_entries(const IndexRules& rules, const SlotPool& pool,
                        const std::vector<uint32_t>& sizes) {
  const int64_t buckets = static_cast<int64_t>(sizes.size()) * pool.capacity();
  // Buckets that a shard does not use yet are empty.
  std::vector<int64_t> first(static_cast<size_t>(base::num_chunks(buckets, kBucketGrain)) + 1);
  base::parallel_for(buckets, kBucketGrain, [&](int64_t begin, int64_t end) {
    const uint8_t* digests = pool.slots().digests;
    first[static_cast<size_t>(begin / kBucketGrain) + 1] =
        (end - begin) * kBucketSlots -
        std::count(digests + begin * kBucketSlots, digests + end * kBucketSlots, uint8_t{0});
  });
  std::partial_sum(first.begin(), first.end(), first.begin());

  const auto n = static_cast<size_t>(first.back());
  Entries out;
  for (std::vector<int64_t>* field : {&out.keys, &out.rows, &out.steps}) field->resize(n);
  if (rules.keeps_scores) out.scores.resize(n);
  if (rules.keeps_times) out.times.resize(n);
  out.buckets.assign(sizes.begin(), sizes.end());
  base::parallel_for(buckets, kBucketGrain, [&](int64_t begin, int64_t end) {
    auto to = static_cast<size_t>(first[static_cast<size_t>(begin / kBucketGrain)]);
    std::array<int, kBucketSlots> order;
    for (int64_t b = begin; b < end; ++b) {
      const Slots bucket = pool.slots().at(b * kBucketSlots);
      const int count = slots_by_key(bucket, order);
      for (int i = 0; i < count; ++i, ++to) {
        const int slot = order[static_cast<size_t>(i)];
        out.keys[to] = bucket.keys[slot];
        out.rows[to] = bucket.rows[slot];
        out.steps[to] = bucket.steps[slot];
        if (rules.keeps_scores) out.scores[to] = bucket.scores[slot];
        if (rules.keeps_times) out.times[to] = bucket.times[slot];
      }
    }
  });
  return out;
}

PlacedEntries place_entries(const IndexRules& rules, const Entries& entries) {
  require_sound(rules, entries);
  const std::vector<ShardEntries> shards = cut_by_shard(rules, entries);
  const auto n = static_cast<int64_t>(shards.size());
  const bool sizes_given = static_cast<int64_t>(entries.buckets.size()) == n;
  PlacedEntries out;
  out.sizes.resize(shards.size());
  std::vector<int64_t> first_row(shards.size() + 1), candidates(shards.size());
  base::parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (auto s = static_cast<size_t>(begin); s < static_cast<size_t>(end); ++s) {
      out.sizes[s] = shards[s].choose_size(sizes_given ? entries.buckets[s] : 0);
      first_row[s + 1] = shards[s].count(false);
      candidates[s] = shards[s].count(true);
    }
  });
  const auto full = std::ranges::find(out.sizes, 0u);
  if (full != out.sizes.end()) {
    const auto s = static_cast<size_t>(full - out.sizes.begin());
    fail(ErrorCode::kConfig,
         fmt::format("hash index: the {} rows and {} candidates of shard {} do not fit into {} "
                     "buckets of {} rows, its largest size: more rows are needed",
                     first_row[s + 1], candidates[s], rules.first_shard + static_cast<int64_t>(s),
                     rules.max_buckets, rules.rows_per_bucket));
  }
  std::partial_sum(first_row.begin(), first_row.end(), first_row.begin());
  out.rows = first_row.back();
  out.candidates = std::accumulate(candidates.begin(), candidates.end(), int64_t{0});
  out.pool = SlotPool(Device::cpu(), rules, n, largest_size(rules, out.sizes));
  base::parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (auto s = static_cast<size_t>(begin); s < static_cast<size_t>(end); ++s) {
      shards[s].place(out.pool, static_cast<int64_t>(s), out.sizes[s], first_row[s]);
    }
  });
  return out;
}

}  // namespace segue::sparse::detail
