#include "sparse/hash_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "sparse/hash_index_rules.h"
#include "sparse/hash_index_slots.h"

namespace segue::sparse {
namespace detail {
namespace {

int64_t divide_up(int64_t n, int64_t by) { return n / by + (n % by != 0 ? 1 : 0); }

bool has_candidates(const HashIndexConfig& config) {
  return config.admit_after > 1 || config.admit_share < 1;
}
int rows_per_bucket(const HashIndexConfig& config) {
  return has_candidates(config) ? kBucketSlots / 2 : kBucketSlots;
}

/// (1 - share)^(2^j) for as long as a uniform number of (0, 1] can be less.
void set_share(IndexRules& rules, double share) {
  constexpr double kLeastUniform = 0x1p-53;
  double power = 1 - share;
  while (rules.share_levels < kMostShareLevels && power > kLeastUniform) {
    rules.share_powers[rules.share_levels++] = power;
    power = power * power;
  }
}

}  // namespace

IndexRules rules_of(const HashIndexConfig& config) {
  SEGUE_ASSERT(config.start_rows >= 0 && config.start_rows <= config.max_rows,
               "a hash index starts with at most max_rows");
  SEGUE_ASSERT(config.admit_share > 0 && config.admit_share <= 1, "a share is in (0, 1]");
  SEGUE_ASSERT(config.ttl_seconds >= 0, "a time to live is not negative");
  IndexRules rules;
  rules.evict = config.evict;
  rules.has_candidates = has_candidates(config);
  rules.keeps_scores = config.evict != Evict::kLru || rules.has_candidates;
  rules.keeps_times = config.ttl_seconds > 0;
  rules.rows_per_bucket = rows_per_bucket(config);
  const int64_t shards = num_shards(config);
  rules.shard_bits = std::countr_zero(static_cast<uint64_t>(shards));
  rules.first_shard = config.first_shard;
  rules.end_shard = config.end_shard < 0 ? shards : config.end_shard;
  SEGUE_ASSERT(
      rules.first_shard >= 0 && rules.first_shard <= rules.end_shard && rules.end_shard <= shards,
      "a hash index keeps some of its shards");
  const int64_t rows_a_row_of_buckets = shards * rules.rows_per_bucket;
  const int64_t most = divide_up(config.max_rows, rows_a_row_of_buckets);
  const int64_t start_rows = config.start_rows == 0 ? config.max_rows : config.start_rows;
  SEGUE_ASSERT(most <= kMostRows, "rows of a hash index are numbered in 32 bits");
  SEGUE_ASSERT(rules.shards_here() * most <= kMostRows / rules.rows_per_bucket,
               "rows of a hash index are numbered in 32 bits");
  rules.max_buckets = static_cast<uint32_t>(most);
  rules.start_buckets = static_cast<uint32_t>(divide_up(start_rows, rows_a_row_of_buckets));
  rules.ttl_seconds = config.ttl_seconds;
  rules.admit_after = std::max<int64_t>(1, config.admit_after);
  rules.mixed_seed = base::splitmix64(config.seed);
  set_share(rules, config.admit_share);
  return rules;
}

namespace {

constexpr int64_t kGrain = 2048;  // keys

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

int find_slot(const Slots& bucket, int64_t key) {
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

int free_slot(const Slots& bucket) {
  const void* found = std::memchr(bucket.digests, 0, kBucketSlots);
  return found == nullptr ? -1
                          : static_cast<int>(static_cast<const uint8_t*>(found) - bucket.digests);
}

int count_rows(const IndexRules& rules, const Slots& bucket) {
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
    parts_.assign(static_cast<size_t>(base::num_chunks(n, kGrain)), Part{});

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
    base::parallel_for(static_cast<int64_t>(from.size()), kGrain, [&](int64_t begin, int64_t end) {
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
    base::parallel_for(b.n, kGrain, [&](int64_t begin, int64_t chunk_end) {
      Part& part = parts_[static_cast<size_t>(begin / kGrain)];
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
}  // namespace detail

int64_t key_of_id(int64_t id) {
  return static_cast<int64_t>(base::splitmix64(static_cast<uint64_t>(id)));
}
int64_t id_of_key(int64_t key) {
  return static_cast<int64_t>(base::splitmix64_inverse(static_cast<uint64_t>(key)));
}

int64_t num_shards(const HashIndexConfig& config) {
  SEGUE_ASSERT(config.max_rows >= 1, "a hash index has rows");
  const int64_t buckets = detail::divide_up(config.max_rows, detail::rows_per_bucket(config));
  const auto shards = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(buckets) / 4));
  return std::clamp(shards, int64_t{1}, detail::kMostShards);
}

int64_t shard_of_key(int64_t key, int64_t shards) {
  SEGUE_ASSERT(std::has_single_bit(static_cast<uint64_t>(shards)), "shards are a power of two");
  detail::IndexRules rules;
  rules.shard_bits = std::countr_zero(static_cast<uint64_t>(shards));
  return rules.shard_of(key);
}

std::unique_ptr<HashIndex> make_hash_index(const HashIndexConfig& config, Device device) {
  if (device.is_cpu()) return std::make_unique<detail::CpuHashIndex>(config);
  if constexpr (SEGUE_HAS_CUDA != 0) return detail::make_cuda_hash_index(config, device);
  require_available(device);
  return nullptr;
}

}  // namespace segue::sparse
