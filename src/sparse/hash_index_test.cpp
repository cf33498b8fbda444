#include "sparse/hash_index.h"

#include <array>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "base/test_util.h"
#include "sparse/hash_index_oracle_test_util.h"
#include "sparse/hash_index_rules.h"
#include "sparse/hash_index_test_util.h"

namespace segue::sparse {
namespace {

using test::BatchMaker;
using test::HashBatch;
using test::HashCaller;
using test::HashFound;
using test::Oracle;

/// An index, or several that share its shards.
class SharedIndex {
 public:
  SharedIndex(const HashIndexConfig& config, int64_t parts) : shards_(num_shards(config)) {
    for (int64_t p = 0; p < parts; ++p) {
      HashIndexConfig own = config;
      own.first_shard = shards_ * p / parts;
      own.end_shard = shards_ * (p + 1) / parts;
      parts_.push_back(make_hash_index(own, Device::cpu()));
    }
  }

  HashFound find_or_insert(const HashBatch& b) {
    HashFound all;
    each_part(b.keys, [&](HashIndex& index, size_t begin, size_t end) {
      const HashFound found = caller_.find_or_insert(index, b.part(begin, end));
      all.rows.insert(all.rows.end(), found.rows.begin(), found.rows.end());
      all.is_new.insert(all.is_new.end(), found.is_new.begin(), found.is_new.end());
      EXPECT_TRUE(std::ranges::all_of(
          found.rows, [&](int64_t row) { return row >= -1 && row < index.rows_in_use(); }));
      EXPECT_LE(index.rows_in_use(), index.counts().capacity);
    });
    return all;
  }
  /// A key in any other part has no row there.
  int64_t find(int64_t key) {
    int64_t row = -1;
    for (const auto& part : parts_) row = std::max(row, caller_.find(*part, {key}).front());
    return row;
  }

  HashIndex::Entries entries() const {
    HashIndex::Entries all;
    for (const auto& part : parts_) {
      const HashIndex::Entries e = part->entries();
      std::set<int64_t> rows;
      for (const int64_t row : e.rows) EXPECT_TRUE(row == -1 || rows.insert(row).second);
      const auto append = [](std::vector<int64_t>& to, const std::vector<int64_t>& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(all.keys, e.keys), append(all.rows, e.rows), append(all.steps, e.steps);
      append(all.scores, e.scores), append(all.times, e.times), append(all.buckets, e.buckets);
    }
    return all;
  }

  void load(const HashIndex::Entries& e) {
    each_part(e.keys, [&](HashIndex& index, size_t begin, size_t end) {
      const auto cut = [](const std::vector<int64_t>& v, size_t first, size_t last) {
        if (v.empty()) return v;
        return std::vector(v.begin() + static_cast<int64_t>(first),
                           v.begin() + static_cast<int64_t>(last));
      };
      index.load({cut(e.keys, begin, end), cut(e.rows, begin, end), cut(e.steps, begin, end),
                  cut(e.scores, begin, end), cut(e.times, begin, end),
                  cut(e.buckets, static_cast<size_t>(index.config().first_shard),
                      static_cast<size_t>(index.config().end_shard))});
    });
  }

  HashIndex::Counts counts() const {
    HashIndex::Counts all;
    for (const auto& part : parts_) {
      const HashIndex::Counts c = part->counts();
      all.rows += c.rows, all.capacity += c.capacity, all.slots += c.slots;
      all.candidates += c.candidates, all.inserted += c.inserted, all.evicted += c.evicted;
      all.expired += c.expired, all.refused += c.refused, all.growths += c.growths;
    }
    return all;
  }

 private:
  template <class F>
  void each_part(const std::vector<int64_t>& keys, F f) {
    size_t begin = 0;
    for (const auto& part : parts_) {
      size_t end = begin;
      while (end < keys.size() && shard_of_key(keys[end], shards_) < part->config().end_shard)
        ++end;
      f(*part, begin, end);
      begin = end;
    }
    EXPECT_EQ(begin, keys.size());
  }

  int64_t shards_;
  HashCaller caller_;
  std::vector<std::unique_ptr<HashIndex>> parts_;
};

void expect_equal(const HashIndex::Entries& expected, HashIndex::Entries actual) {
  for (int64_t& row : actual.rows) row = std::min<int64_t>(row, 0);
  EXPECT_EQ(actual.keys, expected.keys);
  EXPECT_EQ(actual.rows, expected.rows);
  EXPECT_EQ(actual.steps, expected.steps);
  EXPECT_EQ(actual.scores, expected.scores);
  EXPECT_EQ(actual.times, expected.times);
  EXPECT_EQ(actual.buckets, expected.buckets);
}

void expect_equal(const HashIndex::Counts& expected, const HashIndex::Counts& actual) {
  EXPECT_EQ(actual.rows, expected.rows);
  EXPECT_EQ(actual.capacity, expected.capacity);
  EXPECT_EQ(actual.slots, expected.slots);
  EXPECT_EQ(actual.candidates, expected.candidates);
  EXPECT_EQ(actual.inserted, expected.inserted);
  EXPECT_EQ(actual.evicted, expected.evicted);
  EXPECT_EQ(actual.expired, expected.expired);
  EXPECT_EQ(actual.refused, expected.refused);
  EXPECT_EQ(actual.growths, expected.growths);
}

struct Plan {
  uint64_t seed = 1;
  int64_t operations = 50'000, ids = 20'000, largest = 1500;
  bool reloads = false;  // now and then, into as many parts as it likes
};

/// Random batches through the index and the oracle, which must agree all the way.
HashIndex::Counts compare(const HashIndexConfig& config, const Plan& plan) {
  SCOPED_TRACE(testing::Message() << "policy " << static_cast<int>(config.evict) << ", seed "
                                  << plan.seed);
  BatchMaker maker(plan.seed, plan.ids, plan.largest);
  Oracle oracle(config);
  auto index = std::make_unique<SharedIndex>(config, 1);
  std::unordered_map<int64_t, int64_t> row_of;
  int64_t done = 0;
  for (int batch = 0; done < plan.operations && !testing::Test::HasFailure(); ++batch) {
    const HashBatch b = maker.next();
    done += static_cast<int64_t>(b.keys.size());
    const HashFound expected = oracle.find_or_insert(b), found = index->find_or_insert(b);
    EXPECT_EQ(found.is_new, expected.is_new);
    for (size_t i = 0; i < b.keys.size(); ++i) {
      const bool same =
          (found.rows[i] < 0) == (expected.rows[i] < 0) &&
          (found.rows[i] < 0 || found.is_new[i] != 0 || row_of[b.keys[i]] == found.rows[i]);
      EXPECT_TRUE(same) << "batch " << batch << ", key " << b.keys[i];
      row_of[b.keys[i]] = found.rows[i];
    }
    if (batch % 16 == 0) {
      for (const int64_t key : maker.some_keys(20)) {
        const Oracle::Entry* entry = oracle.find(key);
        const bool has_row = entry != nullptr && entry->has_row;
        EXPECT_EQ(index->find(key), has_row ? row_of[key] : -1);
      }
    }
    if (batch % 64 == 63) expect_equal(oracle.entries(), index->entries());
    if (plan.reloads && batch % 32 == 31) {
      const HashIndex::Entries kept = index->entries();
      constexpr int64_t kParts[] = {2, 1, 4};
      index = std::make_unique<SharedIndex>(config, kParts[batch / 32 % 3]);
      index->load(kept);
      const HashIndex::Entries again = index->entries();
      expect_equal(oracle.entries(), again);
      for (size_t i = 0; i < again.keys.size(); ++i) row_of[again.keys[i]] = again.rows[i];
    }
  }
  expect_equal(oracle.entries(), index->entries());
  if (!plan.reloads) expect_equal(oracle.counts(), index->counts());
  return oracle.counts();
}

TEST(HashIndexTest, KeysAreIdsOneToOne) {
  using Limits = std::numeric_limits<int64_t>;
  std::set<int64_t> keys;
  for (int64_t i = -1000; i <= 1000; ++i) {
    for (const int64_t middle : {int64_t{0}, Limits::min() + 1000, Limits::max() - 1000}) {
      const int64_t id = middle + i, key = key_of_id(id);
      EXPECT_EQ(id_of_key(key), id);
      EXPECT_EQ(key_of_id(id_of_key(id)), id);
      keys.insert(key);
    }
  }
  EXPECT_EQ(keys.size(), 3u * 2001);
}

TEST(HashIndexTest, ShardsAndBucketsFollowTheOrderOfKeys) {
  using Limits = std::numeric_limits<int64_t>;
  EXPECT_EQ(shard_of_key(Limits::min(), 1024), 0);
  EXPECT_EQ(shard_of_key(-1, 1024), 511);
  EXPECT_EQ(shard_of_key(0, 1024), 512);
  EXPECT_EQ(shard_of_key(Limits::max(), 1024), 1023);
  EXPECT_EQ(shard_of_key(Limits::max(), 1), 0);
  detail::IndexRules rules;
  rules.shard_bits = 3;
  std::vector<int64_t> keys = {Limits::min(), -1, 0, Limits::max()};
  for (int64_t i = 0; i < 5000; ++i) keys.push_back(key_of_id(i));
  std::ranges::sort(keys);
  std::pair<int64_t, uint32_t> before{0, 0};
  for (const int64_t key : keys) {
    const std::pair<int64_t, uint32_t> place{shard_of_key(key, 8), rules.bucket_of(key, 7)};
    EXPECT_LE(before, place);
    EXPECT_LT(place.second, 7u);
    EXPECT_NE(detail::digest_of(key), 0);
    before = place;
  }
}

TEST(HashIndexTest, NumberOfShardsFollowsFromRowsAndAdmission) {
  EXPECT_EQ(num_shards({.max_rows = 1}), 1);
  EXPECT_EQ(num_shards({.max_rows = 1023}), 2);
  EXPECT_EQ(num_shards({.max_rows = 896}), 1);
  EXPECT_EQ(num_shards({.max_rows = 1023, .admit_after = 2}), 4);
  EXPECT_EQ(num_shards({.max_rows = int64_t{1} << 40}), 1024);
  EXPECT_EQ(num_shards({.max_rows = 4096, .start_rows = 1, .first_shard = 3, .end_shard = 5}), 8);
}

class HashIndexPolicyTest : public testing::TestWithParam<Evict> {};
std::string policy_name(const testing::TestParamInfo<Evict>& policy) {
  const std::array<const char*, 4> names = {"Lru", "Lfu", "Age", "Score"};
  return names[static_cast<size_t>(policy.param)];
}
INSTANTIATE_TEST_SUITE_P(All, HashIndexPolicyTest,
                         testing::Values(Evict::kLru, Evict::kLfu, Evict::kAge, Evict::kScore),
                         policy_name);

TEST_P(HashIndexPolicyTest, AMillionOperations) {
  const HashIndex::Counts c = compare({.max_rows = 4000, .evict = GetParam()},
                                      {.seed = 3, .operations = 1'000'000, .ids = 8000});
  EXPECT_GT(c.evicted, 100'000);
  EXPECT_GT(c.refused, 0);
}

TEST_P(HashIndexPolicyTest, RowsExpire) {
  const HashIndex::Counts c =
      compare({.max_rows = 9000, .evict = GetParam(), .ttl_seconds = 40}, {.seed = 4});
  EXPECT_GT(c.expired, 5000);
}

TEST_P(HashIndexPolicyTest, AdmissionByCountAndShare) {
  const HashIndex::Counts by_count =
      compare({.max_rows = 3000, .evict = GetParam(), .admit_after = 3, .seed = 8}, {.seed = 5});
  EXPECT_GT(by_count.candidates, 500);
  EXPECT_GT(by_count.evicted, 1000);
  compare({.max_rows = 3000, .evict = GetParam(), .admit_share = 0.25, .seed = 8}, {.seed = 6});
  compare({.max_rows = 700,
           .evict = GetParam(),
           .admit_after = 2,
           .admit_share = 0.5,
           .ttl_seconds = 30},
          {.seed = 7, .ids = 5000});
}

TEST_P(HashIndexPolicyTest, SavedAndLoadedInTheMiddleByAnyNumberOfRanks) {
  compare({.max_rows = 4000, .evict = GetParam(), .ttl_seconds = 60},
          {.seed = 12, .reloads = true});
  compare({.max_rows = 8000, .start_rows = 100, .evict = GetParam(), .admit_after = 2},
          {.seed = 13, .reloads = true});
}

/// The limit would be before all time.
TEST(HashIndexTest, NothingExpiresBeforeTimeBegan) {
  compare({.max_rows = 500, .ttl_seconds = INT64_MAX}, {.operations = 10'000});
}

/// So many new keys at once that candidates push out rows.
TEST(HashIndexTest, CandidatesThatDoNotFit) {
  const HashIndex::Counts c = compare({.max_rows = 256, .evict = Evict::kLfu, .admit_after = 2},
                                      {.seed = 9, .ids = 100'000, .largest = 2000});
  EXPECT_GT(c.refused, 1000);
  EXPECT_GT(c.evicted, 500);
}

TEST(HashIndexTest, GrowsFromATinyStart) {
  for (const int64_t start : {1, 20'000}) {
    for (const int64_t admit_after : {1, 2}) {
      const HashIndex::Counts c = compare({.max_rows = 40'000,
                                           .start_rows = start,
                                           .admit_after = admit_after,
                                           .ttl_seconds = 3000},
                                          {.seed = 10, .operations = 80'000, .ids = 60'000});
      EXPECT_GT(c.growths, 20);
      EXPECT_LE(c.capacity, 41'000);
    }
  }
  const HashIndex::Counts once = compare({.max_rows = 128 * 7, .start_rows = 128 * 6},
                                         {.seed = 11, .ids = 3000, .largest = 300});
  EXPECT_EQ(once.growths, 1);
}

/// Two full buckets left and right of 0. Of the sizes 3, 4, 6 and 7 the even ones keep them apart;
/// a key more fits none.
TEST(HashIndexTest, SkipsSizesThatDoNotHoldWhatThereIs) {
  const auto index = make_hash_index({.max_rows = 128 * 7, .start_rows = 256}, Device::cpu());
  const HashCaller caller;
  HashBatch b{.step = 1};
  for (int64_t key = -128; key < 128; ++key) b.keys.push_back(key);
  caller.find_or_insert(*index, b);
  EXPECT_EQ(index->entries().buckets, std::vector<int64_t>{2});
  const HashFound found = caller.find_or_insert(*index, {.keys = {1000}, .step = 9});
  EXPECT_EQ(found.is_new, std::vector<uint8_t>{1});
  EXPECT_EQ(index->entries().buckets, std::vector<int64_t>{6});
  EXPECT_EQ(index->counts().growths, 1);
  EXPECT_EQ(index->counts().evicted, 1);
  EXPECT_EQ(caller.find(*index, {0}), std::vector<int64_t>{-1});
  // Nothing larger is possible: it stays.
  caller.find_or_insert(*index, {.keys = {1001}, .step = 9});
  EXPECT_EQ(index->entries().buckets, std::vector<int64_t>{6});
}

TEST(HashIndexTest, ThreadsDoNotMatter) {
  const auto run = [](int threads) {
    base::set_num_threads(threads);
    const auto index = make_hash_index({.max_rows = 60'000,
                                        .start_rows = 1000,
                                        .evict = Evict::kLfu,
                                        .admit_share = 0.5,
                                        .ttl_seconds = 100},
                                       Device::cpu());
    BatchMaker maker(14, 400'000, 20'000);
    const HashCaller caller;
    for (int i = 0; i < 30; ++i) caller.find_or_insert(*index, maker.next());
    return index->entries();
  };
  const HashIndex::Entries one = run(1), four = run(4);
  base::set_num_threads(0);
  EXPECT_GT(one.keys.size(), 30'000u);
  EXPECT_EQ(one.rows, four.rows);
  EXPECT_EQ(one.keys, four.keys);
  EXPECT_EQ(one.scores, four.scores);
  EXPECT_EQ(one.buckets, four.buckets);
}

TEST(HashIndexTest, UsesThatAKeyNeedsAreGeometric) {
  for (const double share : {1.0, 0.5, 0.1, 0.01}) {
    const detail::IndexRules rules =
        detail::rules_of({.max_rows = 1, .admit_share = share, .seed = 5});
    constexpr int kKeys = 20'000;
    double sum = 0;
    int at_once = 0;
    for (int64_t i = 0; i < kKeys; ++i) {
      const int64_t uses = rules.needed_uses(key_of_id(i));
      sum += static_cast<double>(uses);
      at_once += uses == 1 ? 1 : 0;
      // As the logarithm says, up to rounding.
      const uint64_t bits =
          base::splitmix64(base::splitmix64(5) + static_cast<uint64_t>(key_of_id(i)));
      const double u = static_cast<double>((bits >> 11) + 1) * 0x1p-53;
      const double exact = share == 1 ? 1 : std::log(u) / std::log1p(-share);
      EXPECT_NEAR(static_cast<double>(uses), std::max(1.0, std::ceil(exact)), 1 + 1e-9 * exact);
    }
    const double mean = 1 / share, deviation = std::sqrt(1 - share) / share;
    EXPECT_NEAR(sum / kKeys, mean, 4 * deviation / std::sqrt(kKeys));
    EXPECT_NEAR(at_once / double{kKeys}, share, 4 * std::sqrt(share * (1 - share) / kKeys));
  }
  // A share that is lost beside 1 still ends.
  const detail::IndexRules never = detail::rules_of({.max_rows = 1, .admit_share = 1e-30});
  EXPECT_GT(never.needed_uses(3), int64_t{1} << 39);
  EXPECT_EQ(detail::rules_of({.max_rows = 1, .admit_after = 9, .admit_share = 0.9}).needed_uses(3),
            9);
}

/// Rows used in this step or the one before stay, however full it is.
TEST(HashIndexTest, RowsInUseAreNeverEvicted) {
  const auto index = make_hash_index({.max_rows = 128}, Device::cpu());
  const HashCaller caller;
  const auto insert = [&](int64_t step, int64_t first, int64_t n) {
    HashBatch b;
    for (int64_t i = 0; i < n; ++i) b.keys.push_back(first + i);
    b.step = step;
    return caller.find_or_insert(*index, b);
  };
  const auto refused = [](const HashFound& f) { return std::ranges::count(f.rows, -1); };
  EXPECT_EQ(refused(insert(5, 0, 130)), 2);
  EXPECT_EQ(refused(insert(6, 1000, 3)), 3);
  EXPECT_EQ(refused(insert(7, 1000, 3)), 0);
  EXPECT_EQ(caller.find(*index, {0, 1, 2, 3, 127, 128, 1000}),
            (std::vector<int64_t>{-1, -1, -1, 3, 127, -1, 0}));
  EXPECT_EQ(index->counts().evicted, 3);
  EXPECT_EQ(index->counts().refused, 5);
  EXPECT_GE(index->bytes(), 128 * 17);
}

TEST(HashIndexTest, LoadSaysWhatDoesNotFit) {
  const auto small = make_hash_index({.max_rows = 128}, Device::cpu());
  HashIndex::Entries e;
  for (int64_t i = 0; i < 129; ++i) {
    e.keys.push_back(i);
    e.rows.push_back(i);
    e.steps.push_back(1);
  }
  const auto full = base::error_of([&] { small->load(e); });
  ASSERT_TRUE(full);
  EXPECT_EQ(full->code(), ErrorCode::kConfig);
  EXPECT_TRUE(base::contains(full->what(), "129 rows"));
  // Without admission candidates are left out.
  e.rows[7] = -1;
  small->load(e);
  EXPECT_EQ(small->counts().rows, 128);
  EXPECT_EQ(small->rows_in_use(), 128);
  EXPECT_EQ(small->entries().rows[7], 7);
  EXPECT_EQ(small->entries().keys[7], 8);

  std::swap(e.keys[3], e.keys[4]);
  const auto unsorted = base::error_of([&] { small->load(e); });
  ASSERT_TRUE(unsorted);
  EXPECT_EQ(unsorted->code(), ErrorCode::kCorrupt);
  std::swap(e.keys[3], e.keys[4]);
  const auto timed = make_hash_index({.max_rows = 999, .ttl_seconds = 5}, Device::cpu());
  const auto untimed = base::error_of([&] { timed->load(e); });
  ASSERT_TRUE(untimed);
  EXPECT_EQ(untimed->code(), ErrorCode::kConfig);
  const auto upper = make_hash_index({.max_rows = 1024, .first_shard = 1}, Device::cpu());
  upper->load(e);
  e.keys[0] = -1;
  const auto foreign = base::error_of([&] { upper->load(e); });
  ASSERT_TRUE(foreign);
  EXPECT_TRUE(base::contains(foreign->what(), "key -1 belongs to shard 0"));
}

TEST(HashIndexTest, AnIndexWithoutShards) {
  const auto none =
      make_hash_index({.max_rows = 100, .first_shard = 1, .end_shard = 1}, Device::cpu());
  const HashCaller caller;
  EXPECT_TRUE(caller.find_or_insert(*none, {}).rows.empty());
  EXPECT_EQ(caller.find(*none, {5}), std::vector<int64_t>{-1});
  EXPECT_EQ(none->counts().slots, 0);
  none->load(none->entries());
  EXPECT_TRUE(none->entries().keys.empty());
}

TEST(HashIndexDeathTest, ConfigsThatCannotBeMeant) {
  const auto make = [](const HashIndexConfig& config) { make_hash_index(config, Device::cpu()); };
  EXPECT_DEATH(make({.max_rows = 0}), "has rows");
  EXPECT_DEATH(make({.max_rows = int64_t{1} << 32}), "32 bits");
  EXPECT_DEATH(make({.max_rows = 10, .start_rows = 11}), "at most max_rows");
  EXPECT_DEATH(make({.max_rows = 10, .admit_share = 0}), "share");
  EXPECT_DEATH(make({.max_rows = 10, .admit_share = 1.5}), "share");
  EXPECT_DEATH(make({.max_rows = 10, .end_shard = 2}), "shards");
  const auto index = make_hash_index({.max_rows = 10}, Device::cpu());
  const HashCaller caller;
  EXPECT_DEATH(caller.find_or_insert(*index, {.keys = {3, 3}, .step = 1}), "each once");
  EXPECT_DEATH(caller.find_or_insert(*index, {.keys = {3}, .step = int64_t{1} << 32}), "32 bits");
}

}  // namespace
}  // namespace segue::sparse
