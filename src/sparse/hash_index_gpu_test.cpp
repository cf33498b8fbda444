#include <algorithm>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

#include "ops/gpu_test_util.h"
#include "sparse/hash_index.h"
#include "sparse/hash_index_test_util.h"

namespace segue::sparse {
namespace {

using test::BatchMaker;
using test::HashBatch;
using test::HashCaller;
using test::HashFound;

class GpuHashIndexTest : public ops::test::GpuTest {};

void expect_equal(const HashIndex& cpu, const HashIndex& gpu) {
  const HashIndex::Entries a = cpu.entries(), b = gpu.entries();
  ASSERT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.scores, b.scores);
  EXPECT_EQ(a.times, b.times);
  EXPECT_EQ(a.buckets, b.buckets);
  std::set<int64_t> rows;
  for (size_t i = 0; i < a.rows.size(); ++i) {
    EXPECT_EQ(a.rows[i] < 0, b.rows[i] < 0);
    EXPECT_LT(b.rows[i], gpu.rows_in_use());
    EXPECT_TRUE(b.rows[i] < 0 || rows.insert(b.rows[i]).second) << "row " << b.rows[i];
  }
  const HashIndex::Counts c = cpu.counts(), g = gpu.counts();
  EXPECT_EQ(g.rows, c.rows);
  EXPECT_EQ(g.capacity, c.capacity);
  EXPECT_EQ(g.slots, c.slots);
  EXPECT_EQ(g.candidates, c.candidates);
  EXPECT_EQ(g.inserted, c.inserted);
  EXPECT_EQ(g.evicted, c.evicted);
  EXPECT_EQ(g.expired, c.expired);
  EXPECT_EQ(g.refused, c.refused);
  EXPECT_EQ(g.growths, c.growths);
  EXPECT_EQ(gpu.rows_in_use(), cpu.rows_in_use());  // counts() has asked
}

/// The same batches to both.
class Pair {
 public:
  explicit Pair(const HashIndexConfig& config)
      : cpu_(make_hash_index(config, Device::cpu())),
        gpu_(make_hash_index(config, Device::cuda())) {}

  void use(const HashBatch& b) {
    const HashFound expected = on_cpu_.find_or_insert(*cpu_, b);
    const HashFound found = on_gpu_.find_or_insert(*gpu_, b);
    ASSERT_EQ(found.is_new, expected.is_new);
    for (size_t i = 0; i < b.keys.size(); ++i) {
      const int64_t row = found.rows[i];
      ASSERT_EQ(row < 0, expected.rows[i] < 0) << "key " << b.keys[i];
      ASSERT_TRUE(row < 0 || found.is_new[i] != 0 || row_of_[b.keys[i]] == row);
      ASSERT_LT(row, gpu_->rows_in_use());
      row_of_[b.keys[i]] = row;
    }
    EXPECT_LE(gpu_->rows_in_use(), cpu_->counts().capacity);
  }

  void find(const std::vector<int64_t>& keys) {
    const std::vector<int64_t> expected = on_cpu_.find(*cpu_, keys);
    const std::vector<int64_t> found = on_gpu_.find(*gpu_, keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(found[i], expected[i] < 0 ? -1 : row_of_[keys[i]]) << "key " << keys[i];
    }
  }

  void check() const { expect_equal(*cpu_, *gpu_); }

  /// Each takes what the other holds.
  void swap_contents() {
    const HashIndex::Entries a = cpu_->entries(), b = gpu_->entries();
    cpu_->load(b);
    gpu_->load(a);
    const HashIndex::Entries now = gpu_->entries();
    for (size_t i = 0; i < now.keys.size(); ++i) row_of_[now.keys[i]] = now.rows[i];
  }

  HashIndex::Counts counts() const { return gpu_->counts(); }

 private:
  HashCaller on_cpu_, on_gpu_{Device::cuda()};
  std::unique_ptr<HashIndex> cpu_, gpu_;
  std::unordered_map<int64_t, int64_t> row_of_;
};

struct Plan {
  uint64_t seed = 1;
  int batches = 60;
  int64_t ids = 20'000, largest = 1500;
  bool reloads = false;
};

HashIndex::Counts compare(const HashIndexConfig& config, const Plan& plan) {
  SCOPED_TRACE(testing::Message() << "policy " << static_cast<int>(config.evict) << ", seed "
                                  << plan.seed);
  BatchMaker maker(plan.seed, plan.ids, plan.largest);
  Pair pair(config);
  for (int batch = 0; batch < plan.batches && !testing::Test::HasFatalFailure(); ++batch) {
    pair.use(maker.next());
    if (batch % 5 == 4) pair.find(maker.some_keys(333));
    if (batch % 8 == 7) pair.check();
    if (plan.reloads && batch % 16 == 15) pair.swap_contents();
  }
  pair.check();
  return pair.counts();
}

constexpr Evict kPolicies[] = {Evict::kLru, Evict::kLfu, Evict::kAge, Evict::kScore};

TEST_F(GpuHashIndexTest, EveryPolicyLikeTheCpu) {
  for (const Evict evict : kPolicies) {
    const HashIndex::Counts c = compare({.max_rows = 4000, .evict = evict}, {.seed = 21});
    EXPECT_GT(c.evicted, 3000);
  }
}

/// About a key in each bucket, as in training: four buckets of a warp at a time.
TEST_F(GpuHashIndexTest, FewKeysInManyBucketsLikeTheCpu) {
  for (const Evict evict : kPolicies) {
    const HashIndex::Counts c =
        compare({.max_rows = 8000, .evict = evict, .ttl_seconds = evict == Evict::kAge ? 900 : 0},
                {.seed = 31, .batches = 250, .ids = 100'000, .largest = 150});
    EXPECT_GT(c.evicted + c.expired, 500);
  }
}

TEST_F(GpuHashIndexTest, RowsExpireLikeOnTheCpu) {
  for (const Evict evict : kPolicies) {
    const HashIndex::Counts c =
        compare({.max_rows = 9000, .evict = evict, .ttl_seconds = 40}, {.seed = 22});
    EXPECT_GT(c.expired, 3000);
  }
}

TEST_F(GpuHashIndexTest, AdmissionLikeOnTheCpu) {
  for (const Evict evict : kPolicies) {
    compare({.max_rows = 1500, .evict = evict, .admit_after = 3}, {.seed = 23, .ids = 8000});
    compare({.max_rows = 1500, .evict = evict, .admit_share = 0.3, .seed = 4},
            {.seed = 24, .ids = 8000});
    compare(
        {.max_rows = 700, .evict = evict, .admit_after = 2, .admit_share = 0.5, .ttl_seconds = 60},
        {.seed = 25, .ids = 5000});
  }
}

/// Long runs of keys in few buckets; candidates push out rows.
TEST_F(GpuHashIndexTest, FullBucketsLikeOnTheCpu) {
  for (const int64_t admit_after : {1, 2}) {
    const HashIndex::Counts c =
        compare({.max_rows = 256, .evict = Evict::kLfu, .admit_after = admit_after},
                {.seed = 26, .ids = 100'000, .largest = 2000});
    EXPECT_GT(c.refused, 1000);
  }
}

TEST_F(GpuHashIndexTest, GrowsLikeTheCpu) {
  for (const int64_t start : {1, 20'000}) {
    for (const int64_t admit_after : {1, 2}) {
      const HashIndex::Counts c = compare({.max_rows = 40'000,
                                           .start_rows = start,
                                           .admit_after = admit_after,
                                           .ttl_seconds = 1000},
                                          {.seed = 27, .batches = 100, .ids = 60'000});
      EXPECT_TRUE(start > 1 || c.growths > 20) << c.growths;
    }
  }
  // What a shard holds does not fit every size.
  Pair pair({.max_rows = 128 * 7, .start_rows = 256});
  HashBatch b{.step = 1};
  for (int64_t key = -128; key < 128; ++key) b.keys.push_back(key);
  pair.use(b);
  pair.use({.keys = {1000}, .step = 9});
  pair.check();
  EXPECT_EQ(pair.counts().growths, 1);
  EXPECT_EQ(pair.counts().capacity, 128 * 6);
}

TEST_F(GpuHashIndexTest, EntriesGoFromOneDeviceToTheOther) {
  for (const Evict evict : kPolicies) {
    compare({.max_rows = 4000, .evict = evict, .ttl_seconds = 60}, {.seed = 28, .reloads = true});
    compare({.max_rows = 8000, .start_rows = 100, .evict = evict, .admit_after = 2},
            {.seed = 29, .reloads = true});
  }
}

TEST_F(GpuHashIndexTest, PartOfTheShards) {
  const HashIndexConfig config{
      .max_rows = 8000, .start_rows = 2000, .first_shard = 5, .end_shard = 7};
  ASSERT_EQ(num_shards(config), 8);
  BatchMaker maker(30, 60'000, 9000);
  Pair pair(config);
  for (int batch = 0; batch < 30; ++batch) {
    HashBatch b = maker.next();
    const auto begin =
        std::ranges::partition_point(b.keys, [](int64_t key) { return shard_of_key(key, 8) < 5; });
    const auto end =
        std::ranges::partition_point(b.keys, [](int64_t key) { return shard_of_key(key, 8) < 7; });
    pair.use(b.part(static_cast<size_t>(begin - b.keys.begin()),
                    static_cast<size_t>(end - b.keys.begin())));
    pair.find(maker.some_keys(100));  // most of them are elsewhere
  }
  pair.check();
  EXPECT_GT(pair.counts().evicted, 100);
}

TEST_F(GpuHashIndexTest, AMillionKeysAtOnce) {
  Pair pair({.max_rows = int64_t{3} << 20, .start_rows = int64_t{1} << 20});
  for (int64_t step = 1; step <= 4; ++step) {
    HashBatch b{.step = 3 * step};
    for (int64_t i = 0; i < int64_t{1} << 20; ++i) b.keys.push_back(key_of_id(i * step));
    std::ranges::sort(b.keys);
    pair.use(b);
  }
  pair.check();
}

TEST_F(GpuHashIndexTest, AnIndexWithoutShards) {
  const auto none =
      make_hash_index({.max_rows = 100, .first_shard = 1, .end_shard = 1}, Device::cuda());
  const HashCaller caller(Device::cuda());
  EXPECT_TRUE(caller.find_or_insert(*none, {}).rows.empty());
  EXPECT_EQ(caller.find(*none, {5}), std::vector<int64_t>{-1});
  none->load(none->entries());
  EXPECT_TRUE(none->entries().keys.empty());
}

/// Of all kinds, at sizes of their own, more than one launch has room for.
TEST_F(GpuHashIndexTest, SeveralIndicesShareACall) {
  std::vector<std::unique_ptr<HashIndex>> cpu, gpu;
  std::vector<HashIndex*> here, there;
  std::vector<BatchMaker> makers;
  for (int64_t i = 0; i < 20; ++i) {
    HashIndexConfig config{.max_rows = 700 + 900 * i};
    config.start_rows = i % 3 == 0 ? 0 : 200;
    config.evict = i % 4 == 1 ? Evict::kLfu : i % 4 == 2 ? Evict::kAge : Evict::kLru;
    config.admit_after = i % 5 == 2 ? 2 : 1;
    config.ttl_seconds = i % 7 == 3 ? 100 : 0;
    cpu.push_back(make_hash_index(config, Device::cpu()));
    gpu.push_back(make_hash_index(config, Device::cuda()));
    here.push_back(cpu.back().get());
    there.push_back(gpu.back().get());
    makers.emplace_back(static_cast<uint64_t>(i), 20'000, 1 + 150 * i);
  }
  const HashCaller on_cpu, on_gpu(Device::cuda());
  for (int step = 0; step < 40; ++step) {
    std::vector<HashBatch> batches;
    for (BatchMaker& maker : makers) batches.push_back(maker.next());
    const std::vector<HashFound> expected = on_cpu.find_or_insert(here, batches);
    const std::vector<HashFound> found = on_gpu.find_or_insert(there, batches);
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].is_new, expected[i].is_new) << "index " << i << ", step " << step;
      for (size_t k = 0; k < found[i].rows.size(); ++k) {
        ASSERT_EQ(found[i].rows[k] < 0, expected[i].rows[k] < 0);
      }
    }
  }
  for (size_t i = 0; i < cpu.size(); ++i) {
    SCOPED_TRACE(i);
    expect_equal(*cpu[i], *gpu[i]);
  }
}

}  // namespace
}  // namespace segue::sparse
