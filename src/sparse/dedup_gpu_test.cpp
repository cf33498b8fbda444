#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "ops/gpu_test_util.h"
#include "sparse/dedup.h"

namespace segue::sparse {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();

template <class T>
std::vector<T> fetch(const Tensor& t, int64_t count, const Stream& stream) {
  std::vector<T> values(static_cast<size_t>(count));
  copy_bytes(values.data(), Device::cpu(), t.data, t.device, values.size() * sizeof(T), &stream);
  stream.synchronize();
  return values;
}

class GpuDistinctTest : public ops::test::GpuTest {
 protected:
  void SetUp() override {
    ops::test::GpuTest::SetUp();
    if (!IsSkipped()) stream_ = std::make_unique<Stream>(Device::cuda());
  }

  void expect_equal(const std::vector<int64_t>& ids, bool skip_negative) {
    IdRange range;
    for (const int64_t id : ids) {
      if (!skip_negative || id >= 0) range.add(id);
    }
    expect_equal(ids, skip_negative, range);
  }

  /// Against the host's form, and the order against a stable sort.
  void expect_equal(const std::vector<int64_t>& ids, bool skip_negative, IdRange range) {
    const auto n = static_cast<int64_t>(ids.size());
    const Tensor input = dedup_.input(n, Device::cuda());
    copy_bytes(input.data, input.device, ids.data(), Device::cpu(), ids.size() * sizeof(int64_t),
               stream_.get());
    const DeviceDedup::Found found = dedup_.find(input, range, skip_negative, *stream_);
    const Distinct expected = distinct(ids, skip_negative);
    const int64_t count = dedup_.count();
    ASSERT_EQ(count, expected.values.size());
    ASSERT_TRUE(
        std::ranges::equal(fetch<int64_t>(found.values, count, *stream_), expected.values.span()));
    ASSERT_TRUE(
        std::ranges::equal(fetch<int32_t>(found.inverse, n, *stream_), expected.inverse.span()));

    std::vector<int32_t> order, starts{0};
    const auto add = [&](int32_t value) {
      for (int64_t i = 0; i < n; ++i) {
        if (expected.inverse[i] == value) order.push_back(static_cast<int32_t>(i));
      }
    };
    if (n <= 2000) {  // the loop is quadratic
      for (int64_t v = 0; v < count; ++v) {
        add(static_cast<int32_t>(v));
        starts.push_back(static_cast<int32_t>(order.size()));
      }
      add(-1);
    } else {
      order.resize(ids.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
      const auto key = [&](int32_t i) { return static_cast<uint32_t>(expected.inverse[i]); };
      std::ranges::stable_sort(order, {}, key);  // -1 is the largest
      for (int64_t v = 0; v < count; ++v) {
        const auto end = std::ranges::upper_bound(order, static_cast<uint32_t>(v), {}, key);
        starts.push_back(static_cast<int32_t>(end - order.begin()));
      }
    }
    std::vector<int32_t> first;
    for (int64_t v = 0; v < count; ++v)
      first.push_back(order[static_cast<size_t>(starts[static_cast<size_t>(v)])]);
    ASSERT_EQ(fetch<int32_t>(found.first, count, *stream_), first);
    ASSERT_EQ(fetch<int32_t>(found.order, n, *stream_), order);
    ASSERT_EQ(fetch<int32_t>(found.starts, count + 1, *stream_), starts);
  }

  DeviceDedup dedup_;  // memory of other calls must not shine through
  std::unique_ptr<Stream> stream_;
};

TEST_F(GpuDistinctTest, SmallCases) {
  for (const bool skip_negative : {false, true}) {
    expect_equal({}, skip_negative);
    expect_equal({5}, skip_negative);
    expect_equal({-1, -1}, skip_negative);
    expect_equal({7, 7, 7}, skip_negative);
    expect_equal({3, 1, 2, 3, 1}, skip_negative);
    expect_equal({-5, 4, -1, 4, 0}, skip_negative);
    expect_equal({kLargest, 0, kLargest - 1, kLargest, 1}, skip_negative);
    expect_equal({kLargest, kSmallest, 0, -1, kSmallest, 1}, skip_negative);
  }
}

TEST_F(GpuDistinctTest, TheRangeMayBeWiderThanTheIds) {
  expect_equal({-1, 4, -1, 4, 0}, true, {.smallest = -3, .largest = 100});
  expect_equal({7, 4, 7, 0}, false, {.smallest = -3, .largest = 100});
  expect_equal({7, 4, 7, 0}, false, {.smallest = kSmallest, .largest = kLargest});
  expect_equal({-1, -1}, true, {.smallest = 0, .largest = kLargest});
}

TEST_F(GpuDistinctTest, AllEqualAndAllDistinct) {
  for (const int64_t n : {1'000, 5'000, 300'000}) {
    std::vector<int64_t> ids(static_cast<size_t>(n), int64_t{1} << 40);
    expect_equal(ids, false);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int64_t>((i * 7'919) % ids.size()) - 100;
    }
    expect_equal(ids, false);
    expect_equal(ids, true);
  }
}

TEST_F(GpuDistinctTest, EqualsTheHostForAnyRangeOfIds) {
  for (uint64_t seed = 0; seed < 64; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const uint64_t bits = 1 + seed;  // ranges from one bit to all of them
    std::vector<int64_t> ids(seed % 4 == 0 ? 70'000 + seed : random() % 2'000);
    for (int64_t& id : ids) id = static_cast<int64_t>(random() >> (64 - bits));
    if (seed % 3 == 0) {
      for (size_t i = 0; i < ids.size(); i += 3) ids[i] = -1;
    }
    expect_equal(ids, seed % 2 == 0);
  }
}

}  // namespace
}  // namespace segue::sparse
