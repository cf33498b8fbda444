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

/// Lists of their own, in ranges of their own: as one call for each.
TEST_F(GpuDistinctTest, SeveralListsAtOnce) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const size_t lists = 1 + random() % 12;
    std::vector<IdPart> parts(lists);
    std::vector<int64_t> all;
    std::vector<std::vector<int64_t>> ids(lists);
    for (size_t p = 0; p < lists; ++p) {
      const auto first = static_cast<int64_t>(random() % 1000) - 500;
      const auto width = static_cast<int64_t>(1 + random() % (seed % 2 == 0 ? 300 : 1 << 30));
      ids[p].resize(random() % 3 == 0 ? 0 : random() % 5000);
      parts[p] = {std::ssize(ids[p]),
                  {first, first + width - 1},
                  random() % 2 == 0 ? OutsideIds::kSkip : OutsideIds::kClamp};
      for (int64_t& id : ids[p]) {
        id = first + static_cast<int64_t>(random() % static_cast<uint64_t>(width));
        if (random() % 16 == 0) id = first - 1 - static_cast<int64_t>(random() % 9);
        if (random() % 16 == 0) id = first + width + static_cast<int64_t>(random() % 9);
      }
      all.insert(all.end(), ids[p].begin(), ids[p].end());
    }
    const auto n = std::ssize(all);
    const Tensor input = dedup_.input(n, Device::cuda());
    copy_bytes(input.data, input.device, all.data(), Device::cpu(), all.size() * sizeof(int64_t),
               stream_.get());
    const DeviceDedup::Found found = dedup_.find(input, parts, *stream_);
    const std::vector<int64_t> values = fetch<int64_t>(found.values, dedup_.count(), *stream_);
    const std::vector<int32_t> inverse = fetch<int32_t>(found.inverse, n, *stream_);
    const std::vector<int32_t> order = fetch<int32_t>(found.order, n, *stream_);
    const std::vector<int32_t> places = fetch<int32_t>(found.places, n, *stream_);
    int64_t place = 0, at = 0;
    for (size_t p = 0; p < lists; ++p) {
      const auto [smallest, largest] = parts[p].range;
      IdRange seen = parts[p].range;
      int64_t outside = 0, first_outside = -1;
      std::vector<int64_t> keys = ids[p];
      for (int64_t& key : keys) {
        const int64_t number = at + (&key - keys.data());
        seen.add(key);
        if (key >= smallest && key <= largest) {
          key -= smallest;
          continue;
        }
        if (outside++ == 0) first_outside = number;
        const bool clamps = parts[p].outside == OutsideIds::kClamp;
        key = clamps ? std::clamp(key, smallest, largest) - smallest : -1;
      }
      const Distinct expected = distinct(keys, true);
      const DeviceDedup::PartFound part = dedup_.part(p);
      ASSERT_EQ(part.first, place);
      ASSERT_EQ(part.count, expected.values.size());
      EXPECT_EQ(part.outside, outside);
      EXPECT_EQ(part.first_outside, first_outside);
      EXPECT_EQ(part.range.smallest, seen.smallest);
      EXPECT_EQ(part.range.largest, seen.largest);
      for (int64_t v = 0; v < part.count; ++v) {
        ASSERT_EQ(values[static_cast<size_t>(place + v)], expected.values[v] + smallest);
      }
      for (int64_t i = 0; i < std::ssize(keys); ++i) {
        const int64_t of = expected.inverse[i];
        ASSERT_EQ(inverse[static_cast<size_t>(at + i)], of < 0 ? -1 : place + of);
      }
      place += part.count;
      at += std::ssize(keys);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      const int32_t of = inverse[static_cast<size_t>(order[i])];
      ASSERT_EQ(places[i], of < 0 ? place : of);
      ASSERT_TRUE(i == 0 || places[i - 1] < places[i] || order[i - 1] < order[i]);
    }
  }
}

}  // namespace
}  // namespace segue::sparse
