#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "sparse/hash_index_bucket.h"
#include "sparse/hash_index_rules.h"
#include "sparse/hash_index_slots.h"

namespace segue::sparse::detail {
namespace {

constexpr int64_t kKeyGrain = 2048;  // keys

class CpuHashIndex final : public HashIndex {
 public:
  explicit CpuHashIndex(const HashIndexConfig& config)
      : config_(config),
        rules_(rules_of(config)),
        sizes_(static_cast<size_t>(rules_.shards_here()), rules_.start_buckets),
        pool_(Device::cpu(), rules_, rules_.shards_here(), rules_.start_buckets) {}

  const HashIndexConfig& config() const override { return config_; }

  void find_or_insert(const Batch& batch, const Found& found, const Stream& /*stream*/) override {
    SEGUE_ASSERT(batch.step >= last_step_ && batch.step <= kMostSteps,
                 "steps do not go back, and fit 32 bits");
    last_step_ = batch.step;
    const int64_t n = batch.keys.elements();
    if (n == 0) return;
    HostBatch b = host_batch(batch, found);
    needs_.resize(static_cast<size_t>(n));
    b.needs = needs_.data();
    parts_.assign(static_cast<size_t>(base::num_chunks(n, kKeyGrain)), Part{});

    each_run(b, [&](int64_t begin, int64_t end, Part& part) { stamp(b, begin, end, part); });
    grow(b);
    each_run(b, [&](int64_t begin, int64_t end, Part& part) {
      BucketInsert bucket(rules_, b, pool_.slots(), first_slot(b.keys[begin]), part);
      for (int64_t i = begin; i < end; ++i) bucket.add(i);
    });
    number(b);
  }

  void find(const Tensor& keys, const Tensor& rows, const Stream& /*stream*/) const override {
    const std::span<const int64_t> from = keys.span<int64_t>();
    const std::span<int64_t> to = rows.span<int64_t>();
    SEGUE_ASSERT(from.size() == to.size(), "a row for every key");
    base::parallel_for(
        static_cast<int64_t>(from.size()), kKeyGrain, [&](int64_t begin, int64_t end) {
          for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
            to[i] = row_of(from[i]);
          }
        });
  }

  int64_t rows_in_use() const override { return next_row_; }

  Counts counts() const override {
    Counts c;
    int64_t buckets = 0;
    for (const uint32_t size : sizes_) buckets += size;
    c.capacity = buckets * rules_.rows_per_bucket;
    c.slots = buckets * kBucketSlots;
    c.rows = next_row_ - static_cast<int64_t>(free_rows_.size());
    c.candidates = total_.candidates;
    c.inserted = total_.inserted;
    c.evicted = total_.evicted;
    c.expired = total_.expired;
    c.refused = total_.refused;
    c.growths = growths_;
    return c;
  }

  Entries entries() const override { return collect_entries(rules_, pool_, sizes_); }

  void load(const Entries& entries) override {
    PlacedEntries placed = place_entries(rules_, entries);
    pool_ = std::move(placed.pool);
    sizes_ = std::move(placed.sizes);
    next_row_ = placed.rows;
    free_rows_.clear();
    total_ = {};
    total_.candidates = placed.candidates;
    growths_ = 0;
    last_step_ = 0;
  }

  int64_t bytes() const override {
    return pool_.bytes() +
           static_cast<int64_t>(free_rows_.capacity() * sizeof(int32_t) + needs_.capacity());
  }

 private:
  HostBatch host_batch(const Batch& batch, const Found& found) const {
    const auto n = static_cast<size_t>(batch.keys.elements());
    SEGUE_ASSERT(found.rows.span<int64_t>().size() == n && found.is_new.span<uint8_t>().size() == n,
                 "a row and a mark for every key");
    SEGUE_ASSERT(!batch.uses || batch.uses.span<int32_t>().size() == n, "uses of every key");
    SEGUE_ASSERT(rules_.evict != Evict::kScore || batch.scores, "kScore needs scores");
    SEGUE_ASSERT(!batch.scores || batch.scores.span<int64_t>().size() == n, "a score of every key");
    HostBatch b{};
    const std::span<const int64_t> keys = batch.keys.span<int64_t>();
    SEGUE_ASSERT(std::ranges::adjacent_find(keys, std::ranges::greater_equal()) == keys.end(),
                 "keys ascend, each once");
    SEGUE_ASSERT(is_here(keys.front()) && is_here(keys.back()), "keys of shards that are here");
    b.keys = keys.data();
    b.uses = batch.uses ? batch.uses.ptr<int32_t>() : nullptr;
    b.scores = batch.scores ? batch.scores.ptr<int64_t>() : nullptr;
    b.n = static_cast<int64_t>(n);
    b.step = batch.step;
    b.time = batch.time;
    b.oldest_kept = rules_.oldest_kept(batch.time);
    b.rows = found.rows.ptr<int64_t>();
    b.is_new = found.is_new.ptr<uint8_t>();
    return b;
  }

  bool is_here(int64_t key) const {
    const int64_t shard = rules_.shard_of(key);
    return shard >= rules_.first_shard && shard < rules_.end_shard;
  }
  size_t local_shard(int64_t key) const {
    return static_cast<size_t>(rules_.shard_of(key) - rules_.first_shard);
  }
  uint32_t size_of_shard(int64_t shard) const { return sizes_[static_cast<size_t>(shard)]; }
  int64_t first_slot(int64_t key) const {
    const size_t shard = local_shard(key);
    return pool_.first_slot(static_cast<int64_t>(shard), rules_.bucket_of(key, sizes_[shard]));
  }
  int64_t row_of(int64_t key) const {
    if (!is_here(key)) return -1;
    const Slots bucket = pool_.slots().at(first_slot(key));
    const int slot = find_slot(bucket, key);
    return slot < 0 ? -1 : bucket.rows[slot];
  }

  /// f(begin, end, part) for the keys of every bucket; a chunk has the buckets that begin in it.
  template <class F>
  void each_run(const HostBatch& b, F f) {
    base::parallel_for(b.n, kKeyGrain, [&](int64_t begin, int64_t chunk_end) {
      Part& part = parts_[static_cast<size_t>(begin / kKeyGrain)];
      int64_t i = begin;
      if (i > 0) {
        const int64_t before = first_slot(b.keys[i - 1]);
        while (i < chunk_end && first_slot(b.keys[i]) == before) ++i;
      }
      while (i < chunk_end) {
        const int64_t own = first_slot(b.keys[i]);
        int64_t end = i + 1;
        while (end < b.n && first_slot(b.keys[end]) == own) ++end;
        f(i, end, part);
        i = end;
      }
    });
  }

  /// Phases 0 and 1 in one bucket, and whether its shard must grow.
  void stamp(const HostBatch& b, int64_t begin, int64_t end, Part& part) {
    const Slots bucket = pool_.slots().at(first_slot(b.keys[begin]));
    if (rules_.keeps_times) expire(b, bucket, part);
    int needed = 0;
    for (int64_t i = begin; i < end; ++i) {
      b.needs[i] = use(b, i, bucket);
      needed += (b.needs[i] & kRow) != 0 ? 1 : 0;
    }
    const size_t shard = local_shard(b.keys[begin]);
    if (sizes_[shard] < rules_.max_buckets && needed > 0 &&
        count_rows(rules_, bucket) + needed > rules_.rows_per_bucket) {
      part.growing.push_back(static_cast<int64_t>(shard));
    }
  }

  void expire(const HostBatch& b, const Slots& bucket, Part& part) const {
    for (int i = 0; i < kBucketSlots; ++i) {
      if (bucket.digests[i] == 0 || bucket.times[i] >= b.oldest_kept ||
          is_pinned(bucket.steps[i], b.step)) {
        continue;
      }
      bucket.digests[i] = 0;
      if (bucket.rows[i] < 0) {
        --part.tally.candidates;
      } else {
        ++part.tally.expired;
        part.forgotten.push_back(bucket.rows[i]);
      }
    }
  }

  Need use(const HostBatch& b, int64_t i, const Slots& bucket) const {
    const int64_t key = b.keys[i], uses = b.uses_of(i);
    SEGUE_ASSERT(uses >= 1, "a key of a batch is used");
    const int slot = find_slot(bucket, key);
    if (slot < 0) return rules_.admits(key, uses) ? kSlotAndRow : kSlot;
    b.rows[i] = bucket.rows[slot];
    b.is_new[i] = 0;
    bucket.steps[slot] = static_cast<uint32_t>(b.step);
    if (rules_.keeps_times) bucket.times[slot] = b.time;
    if (!rules_.keeps_scores) return kNothing;
    int64_t& score = bucket.scores[slot];
    if (bucket.rows[slot] >= 0) {
      score = rules_.score_of_used_row(score, uses, b.score_of(i));
      return kNothing;
    }
    score = add_uses(score, uses);
    return rules_.admits(key, score) ? kRow : kNothing;
  }

  // ---- growth ----

  void grow(const HostBatch& b) {
    std::vector<int64_t> shards;
    for (const Part& part : parts_) {
      shards.insert(shards.end(), part.growing.begin(), part.growing.end());
    }
    shards.erase(std::unique(shards.begin(), shards.end()), shards.end());  // they ascend
    std::vector<uint32_t> sizes = sizes_;
    for (const int64_t shard : shards) {
      const auto s = static_cast<size_t>(shard);
      sizes[s] = grown_size(b, shard);
      growths_ += sizes[s] != sizes_[s] ? 1 : 0;
    }
    if (sizes != sizes_) rebuild(sizes);
  }

  /// The first size at which what the shard holds and what it is to hold fit; if there is none, the
  /// largest at which what it holds fits.
  uint32_t grown_size(const HostBatch& b, int64_t shard) const {
    const auto own = [&](int64_t key) { return rules_.shard_of(key) - rules_.first_shard; };
    const int64_t* begin =
        std::partition_point(b.keys, b.keys + b.n, [&](int64_t key) { return own(key) < shard; });
    const int64_t* end =
        std::partition_point(begin, b.keys + b.n, [&](int64_t key) { return own(key) == shard; });
    uint32_t chosen = size_of_shard(shard), size = chosen;
    std::vector<int> rows, used, needed;
    while (size < rules_.max_buckets) {
      size = rules_.next_size(size);
      rows.assign(size, 0), used.assign(size, 0), needed.assign(size, 0);
      const Slots held = pool_.slots().at(pool_.first_slot(shard, 0));
      for (int64_t i = 0; i < int64_t{size_of_shard(shard)} * kBucketSlots; ++i) {
        if (held.digests[i] == 0) continue;
        const uint32_t bucket = rules_.bucket_of(held.keys[i], size);
        ++used[bucket];
        rows[bucket] += held.rows[i] >= 0 ? 1 : 0;
      }
      for (const int64_t* key = begin; key < end; ++key) {
        needed[rules_.bucket_of(*key, size)] += (b.needs[key - b.keys] & kRow) != 0 ? 1 : 0;
      }
      bool holds = true, suffices = true;
      for (size_t bucket = 0; bucket < size; ++bucket) {
        holds = holds && rows[bucket] <= rules_.rows_per_bucket && used[bucket] <= kBucketSlots;
        suffices = suffices && rows[bucket] + needed[bucket] <= rules_.rows_per_bucket;
      }
      if (holds) chosen = size;
      if (holds && suffices) break;
    }
    return chosen;
  }

  void rebuild(const std::vector<uint32_t>& sizes) {
    const uint32_t capacity = largest_size(rules_, sizes);
    if (capacity > pool_.capacity()) {
      SlotPool grown(Device::cpu(), rules_, rules_.shards_here(), capacity);
      each_shard([&](int64_t shard) {
        move_slots(pool_.slots().at(pool_.first_slot(shard, 0)), shard, sizes, grown);
      });
      pool_ = std::move(grown);
    } else {
      each_shard([&](int64_t shard) {
        if (size_of_shard(shard) == sizes[static_cast<size_t>(shard)]) return;
        const SlotPool old = take_out(shard);
        move_slots(old.slots(), shard, sizes, pool_);
      });
    }
    sizes_ = sizes;
  }

  template <class F>
  void each_shard(F f) {
    base::parallel_for(rules_.shards_here(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t shard = begin; shard < end; ++shard) f(shard);
    });
  }

  /// The slots of a shard, which is empty afterwards.
  SlotPool take_out(int64_t shard) {
    SlotPool out(Device::cpu(), rules_, 1, size_of_shard(shard));
    const Slots from = pool_.slots().at(pool_.first_slot(shard, 0)), to = out.slots();
    for (int64_t i = 0; i < out.num_slots(); ++i) copy_slot(from.at(i), to.at(i));
    std::fill(from.digests, from.digests + out.num_slots(), uint8_t{0});
    return out;
  }

  void move_slots(const Slots& from, int64_t shard, const std::vector<uint32_t>& sizes,
                  const SlotPool& to) {
    const int64_t slots = int64_t{size_of_shard(shard)} * kBucketSlots;
    for (int64_t i = 0; i < slots; ++i) {
      if (from.digests[i] == 0) continue;
      const uint32_t own = rules_.bucket_of(from.keys[i], sizes[static_cast<size_t>(shard)]);
      const Slots bucket = to.slots().at(to.first_slot(shard, own));
      copy_slot(from.at(i), bucket.at(free_slot(bucket)));
    }
  }

  void copy_slot(const Slots& from, const Slots& to) const {
    *to.digests = *from.digests;
    *to.keys = *from.keys;
    *to.rows = *from.rows;
    *to.steps = *from.steps;
    if (rules_.keeps_scores) *to.scores = *from.scores;
    if (rules_.keeps_times) *to.times = *from.times;
  }

  /// Gives rows their numbers, in the order of keys.
  void number(const HostBatch& b) {
    for (const Part& part : parts_) {
      free_rows_.insert(free_rows_.end(), part.forgotten.begin(), part.forgotten.end());
      total_.add(part.tally);
    }
    for (const Part& part : parts_) {
      for (const Part::Fresh& fresh : part.fresh) {
        int64_t row = next_row_;
        if (free_rows_.empty()) {
          ++next_row_;
        } else {
          row = free_rows_.back();
          free_rows_.pop_back();
        }
        pool_.slots().rows[fresh.slot] = static_cast<int32_t>(row);
        b.rows[fresh.key] = row;
      }
    }
  }

  HashIndexConfig config_;
  IndexRules rules_;
  std::vector<uint32_t> sizes_;  // buckets of each shard
  SlotPool pool_;
  std::vector<int32_t> free_rows_;
  int64_t next_row_ = 0, last_step_ = 0, growths_ = 0;
  Tally total_;
  // Of a call; kept for the next one.
  std::vector<uint8_t> needs_;
  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<HashIndex> make_cpu_hash_index(const HashIndexConfig& config) {
  return std::make_unique<CpuHashIndex>(config);
}

}  // namespace segue::sparse::detail
