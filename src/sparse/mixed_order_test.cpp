#include "sparse/mixed_order.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "ops/gpu_test_util.h"
#include "sparse/hash_index.h"

namespace segue::sparse {
namespace {

using ops::test::ModeBed;

std::vector<int64_t> longs_of(const Tensor& t, const Stream& stream) {
  std::vector<int64_t> values(static_cast<size_t>(t.elements()));
  copy_bytes(values.data(), Device::cpu(), t.data, t.device, values.size() * 8, &stream);
  stream.synchronize();
  return values;
}

/// Rows that stand for keys come back in the order of ids; uses and scores went along.
void check(Device device, uint64_t seed, std::vector<int64_t> sizes) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  ModeBed bed(device, Precision::kF32);
  MixedOrder order;
  for (int call = 0; call < 3; ++call) {
    std::vector<std::vector<int64_t>> ids;
    std::vector<MixedOrder::List> lists;
    for (const int64_t size : sizes) {
      std::vector<int64_t> list(static_cast<size_t>(size));
      for (int64_t& id : list) id = static_cast<int64_t>(random() % (1 << 20)) - 1000;
      std::ranges::sort(list);
      list.erase(std::unique(list.begin(), list.end()), list.end());
      std::vector<int32_t> uses;
      for (const int64_t id : list) uses.push_back(static_cast<int32_t>(id % 100));
      MixedOrder::List to{
          bed.longs(list), {}, {}, bed.longs(std::vector<int64_t>(list.size(), -7))};
      if (ids.size() % 2 == 1) to.uses = bed.ints(uses);
      if (ids.size() % 3 == 1) to.scores = to.ids;
      lists.push_back(to);
      ids.push_back(list);
    }
    const std::vector<MixedOrder::Sorted> sorted = order.sort(bed.exec, lists);
    ASSERT_EQ(sorted.size(), lists.size());
    for (size_t l = 0; l < lists.size(); ++l) {
      std::vector<int64_t> expected;
      for (const int64_t id : ids[l]) expected.push_back(key_of_id(id));
      std::ranges::sort(expected);
      ASSERT_EQ(longs_of(sorted[l].keys, *bed.exec.stream), expected);
      ASSERT_EQ(static_cast<bool>(sorted[l].uses), l % 2 == 1);
      if (l % 2 == 1) {
        std::vector<int32_t> uses(expected.size());
        copy_bytes(uses.data(), Device::cpu(), sorted[l].uses.data, device, uses.size() * 4,
                   bed.exec.stream);
        bed.exec.stream->synchronize();
        for (size_t i = 0; i < uses.size(); ++i) {
          ASSERT_EQ(uses[i], static_cast<int32_t>(id_of_key(expected[i]) % 100));
        }
      }
      ASSERT_EQ(static_cast<bool>(sorted[l].scores), l % 3 == 1);
      if (l % 3 == 1) {
        std::vector<int64_t> scores;
        for (const int64_t key : expected) scores.push_back(id_of_key(key));
        ASSERT_EQ(longs_of(sorted[l].scores, *bed.exec.stream), scores);
      }
      ASSERT_EQ(sorted[l].is_new.elements(), std::ssize(expected));
      copy(sorted[l].rows, sorted[l].keys, bed.exec.stream);
    }
    order.put_back(bed.exec);
    for (size_t l = 0; l < lists.size(); ++l) {
      std::vector<int64_t> expected;
      for (const int64_t id : ids[l]) expected.push_back(key_of_id(id));
      ASSERT_EQ(longs_of(lists[l].rows, *bed.exec.stream), expected);
    }
    for (int64_t& size : sizes) size = size * 2 + call;
  }
}

void check_all(Device device) {
  check(device, 1, {0});
  check(device, 2, {1, 0, 3});
  check(device, 3, {1000, 31, 32, 33, 0, 5000});
  check(device, 4, {100'000, 7});
  check(device, 5, std::vector<int64_t>(MixedOrder::kMostLists, 300));
}

TEST(MixedOrderTest, KeysAscendAndRowsComeBack) { check_all(Device::cpu()); }

class GpuMixedOrderTest : public ops::test::GpuTest {};

TEST_F(GpuMixedOrderTest, KeysAscendAndRowsComeBack) { check_all(Device::cuda()); }

/// Ids whose keys begin with the same bits, as many as a sort by those cannot tell apart.
TEST_F(GpuMixedOrderTest, KeysThatBeginAlikeAreInOrder) {
  ModeBed bed(Device::cuda(), Precision::kF32);
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 300; ++i) expected.push_back((int64_t{1} << 62) + (i * 7919) % 1000);
  std::ranges::sort(expected);
  std::vector<int64_t> ids;
  for (const int64_t key : expected) ids.push_back(id_of_key(key));
  std::ranges::sort(ids);
  const Tensor rows = bed.longs(std::vector<int64_t>(ids.size()));
  const MixedOrder::List list{bed.longs(ids), {}, {}, rows};
  MixedOrder order;
  const std::vector<MixedOrder::Sorted> sorted = order.sort(bed.exec, {&list, 1});
  EXPECT_EQ(longs_of(sorted[0].keys, *bed.exec.stream), expected);
}

}  // namespace
}  // namespace segue::sparse
