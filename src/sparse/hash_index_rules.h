#pragma once

#include <cstdint>

#include "base/bf16.h"
#include "base/rng.h"
#include "sparse/hash_index.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

/// What the CPU form and the CUDA form of HashIndex agree on, bit for bit.
///
/// A shard is an array of buckets of 128 slots; keys lie in them in ascending order of buckets, and
/// in any order within one. A slot holds a row's key or a candidate, a key that waits for
/// admission. A bucket has at most `rows_per_bucket` rows: all slots, or half of them where there
/// are candidates. A batch is done in this order:
///
///   0. With a time to live, in each bucket that a key of the batch belongs to: rows and candidates
///      whose last use is too long ago are forgotten, the batch's own keys included, unless they
///      are pinned (used in this step or the one before).
///   1. Keys that are present are stamped: step, time, uses or score. Now each key of the batch is
///      known to need nothing, a slot, a row (a candidate that is admitted now), or both.
///   -. A shard grows, unless it has its largest size, if in one of its buckets rows and keys that
///      need one are more than rows_per_bucket: to the first larger size at which this is so
///      nowhere and what it holds fits; if there is none, to the largest at which what it holds
///      fits, if any.
///   2. In ascending order of keys. One that needs a row in a bucket that has all its rows takes
///   the
///      row (and, unless it is a candidate, the slot) of the lowest rank that is not pinned. Else
///      one that needs a slot takes a free one, or that of the candidate of lowest rank that this
///      step has not used, or that of a row as above. Where there is none it is refused: a new key
///      is not stored, a candidate stays one.
///
/// A row's number is the evicted one's, or that of a row that was forgotten, or the next.
namespace segue::sparse::detail {

inline constexpr int kBucketSlots = 128;
inline constexpr int64_t kMostShards = 1024;
inline constexpr int kMostShareLevels = 40;              // 2^40 uses in vain are enough
inline constexpr int64_t kMostUses = INT64_MAX / 2;      // counts stop there
inline constexpr int64_t kMostRows = INT32_MAX;          // kept by one index
inline constexpr int64_t kMostSteps = UINT32_MAX - 1LL;  // step + 1 still fits

/// What a batch's key needs after phase 1; two bits.
enum Need : uint8_t { kNothing = 0, kSlot = 1, kRow = 2, kSlotAndRow = kSlot | kRow };

/// Arrays of a slot's fields. A slot is in use where its digest is not 0; row -1: a candidate.
struct Slots {
  uint8_t* digests = nullptr;
  int64_t* keys = nullptr;
  int32_t* rows = nullptr;
  uint32_t* steps = nullptr;  // of the last use
  int64_t* scores = nullptr;  // null where IndexRules::keeps_scores is false
  int64_t* times = nullptr;   // of the last use; null where keeps_times is false

  SEGUE_HOST_DEVICE Slots at(int64_t slot) const {
    return {digests + slot,
            keys + slot,
            rows + slot,
            steps + slot,
            scores == nullptr ? nullptr : scores + slot,
            times == nullptr ? nullptr : times + slot};
  }
};

/// What is forgotten first: the lowest.
struct Rank {
  int64_t score;
  uint32_t step;
  int64_t key;

  SEGUE_HOST_DEVICE bool operator<(const Rank& other) const {
    if (score != other.score) return score < other.score;
    if (step != other.step) return step < other.step;
    return key < other.key;
  }
};

SEGUE_HOST_DEVICE constexpr uint64_t high_product(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
#endif
}

/// Signed order as unsigned order.
SEGUE_HOST_DEVICE constexpr uint64_t unsigned_order(int64_t key) {
  return static_cast<uint64_t>(key) ^ (uint64_t{1} << 63);
}
/// Of the bits that choose neither shard nor bucket; never 0.
SEGUE_HOST_DEVICE constexpr uint8_t digest_of(int64_t key) {
  const auto low = static_cast<uint8_t>(key);
  return low == 0 ? uint8_t{1} : low;
}
/// Used in this step or the one before, which may still be at work: neither evicted nor expired.
SEGUE_HOST_DEVICE constexpr bool is_pinned(uint32_t step, int64_t now) {
  return int64_t{step} + 1 >= now;
}
SEGUE_HOST_DEVICE constexpr int64_t add_uses(int64_t so_far, int64_t uses) {
  return so_far > kMostUses - uses ? kMostUses : so_far + uses;
}

/// What a config comes to.
struct IndexRules {
  Evict evict = Evict::kLru;
  bool has_candidates = false;  // keys wait for admission
  bool keeps_scores = false, keeps_times = false;
  int rows_per_bucket = kBucketSlots;
  int shard_bits = 0;
  int64_t first_shard = 0, end_shard = 1;       // kept here
  uint32_t start_buckets = 1, max_buckets = 1;  // of a shard
  int64_t ttl_seconds = 0;
  int64_t admit_after = 1;
  uint64_t mixed_seed = 0;
  int share_levels = 0;
  double share_powers[kMostShareLevels] = {};  // (1 - admit_share)^(2^j)

  int64_t shards() const { return int64_t{1} << shard_bits; }
  int64_t shards_here() const { return end_shard - first_shard; }
  uint32_t next_size(uint32_t buckets) const {
    const uint32_t half = buckets / 2 > 1 ? buckets / 2 : 1;
    return max_buckets - buckets < half ? max_buckets : buckets + half;
  }

  SEGUE_HOST_DEVICE int64_t shard_of(int64_t key) const {
    return shard_bits == 0 ? 0 : static_cast<int64_t>(unsigned_order(key) >> (64 - shard_bits));
  }
  /// Ascends with the key; `buckets` is the size of its shard.
  SEGUE_HOST_DEVICE uint32_t bucket_of(int64_t key, uint32_t buckets) const {
    return static_cast<uint32_t>(high_product(unsigned_order(key) << shard_bits, buckets));
  }

  /// A key is admitted when it has been used as often. Without a share: admit_after. With one: at
  /// the first success of a sequence of draws whose outcome is a function of (seed, key) alone, the
  /// least k >= 1 with (1 - share)^k <= a uniform number of (0, 1]. Products alone, so that every
  /// device rounds alike.
  SEGUE_HOST_DEVICE int64_t needed_uses(int64_t key) const {
    const uint64_t bits = base::splitmix64(mixed_seed + static_cast<uint64_t>(key));
    const double uniform = static_cast<double>((bits >> 11) + 1) * 0x1p-53;
    double power = 1;
    int64_t uses = 1;
    for (int level = share_levels - 1; level >= 0; --level) {
      const double next = power * share_powers[level];
      if (next > uniform) {
        power = next;
        uses += int64_t{1} << level;
      }
    }
    return uses > admit_after ? uses : admit_after;
  }
  SEGUE_HOST_DEVICE bool admits(int64_t key, int64_t uses) const {
    return !has_candidates || uses >= needed_uses(key);
  }

  /// `given`: the batch's score, of kScore.
  SEGUE_HOST_DEVICE int64_t score_of_new_row(int64_t uses, int64_t time, int64_t given) const {
    switch (evict) {
      case Evict::kLru:
        return 0;
      case Evict::kLfu:
        return uses;
      case Evict::kAge:
        return time;
      case Evict::kScore:
        return given;
    }
    return 0;
  }
  SEGUE_HOST_DEVICE int64_t score_of_used_row(int64_t score, int64_t uses, int64_t given) const {
    if (evict == Evict::kLfu) return add_uses(score, uses);
    return evict == Evict::kScore ? given : score;
  }

  SEGUE_HOST_DEVICE Rank rank_of_row(int64_t score, uint32_t step, int64_t key) const {
    return {evict == Evict::kLru ? 0 : score, evict == Evict::kAge ? 0 : step, key};
  }
  /// Slots whose time is lower are forgotten by a batch of this time.
  int64_t oldest_kept(int64_t time) const {
    return time < INT64_MIN + ttl_seconds ? INT64_MIN : time - ttl_seconds;
  }
};

IndexRules rules_of(const HashIndexConfig& config);

std::unique_ptr<HashIndex> make_cpu_hash_index(const HashIndexConfig& config);
std::unique_ptr<HashIndex> make_cuda_hash_index(const HashIndexConfig& config, Device device);
void cuda_find_or_insert(std::span<const IndexRequest> requests, const Stream& stream);

}  // namespace segue::sparse::detail
