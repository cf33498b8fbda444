#include "sparse/hash_index.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/rng.h"
#include "sparse/hash_index_rules.h"

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

void find_or_insert(std::span<const IndexRequest> requests, const Stream& stream) {
  if constexpr (SEGUE_HAS_CUDA != 0) {
    if (stream.device().is_cuda()) return detail::cuda_find_or_insert(requests, stream);
  }
  for (const auto& [index, batch, found] : requests) index->find_or_insert(batch, found, stream);
}

std::unique_ptr<HashIndex> make_hash_index(const HashIndexConfig& config, Device device) {
  if (device.is_cpu()) return detail::make_cpu_hash_index(config);
  if constexpr (SEGUE_HAS_CUDA != 0) return detail::make_cuda_hash_index(config, device);
  require_available(device);
  return nullptr;
}

}  // namespace segue::sparse
