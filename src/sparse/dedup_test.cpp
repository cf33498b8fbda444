#include "sparse/dedup.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/parallel.h"

namespace segue::sparse {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();

/// Runs a body on one thread and then on two; the number of before comes back afterwards.
template <class Body>
void on_one_and_two_threads(Body&& body) {
  const int before = base::num_threads();
  for (const int threads : {1, 2}) {
    base::set_num_threads(threads);
    SCOPED_TRACE(threads);
    body();
  }
  base::set_num_threads(before);
}

void expect_distinct(const std::vector<int64_t>& ids, bool skip_negative) {
  std::set<int64_t> expected;
  for (const int64_t id : ids) {
    if (!skip_negative || id >= 0) expected.insert(id);
  }
  const Distinct d = distinct(ids, skip_negative);
  ASSERT_TRUE(std::ranges::equal(d.values.span(), expected));
  ASSERT_EQ(d.inverse.size(), static_cast<int64_t>(ids.size()));
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t place = d.inverse[static_cast<int64_t>(i)];
    if (skip_negative && ids[i] < 0) {
      ASSERT_EQ(place, -1);
    } else {
      ASSERT_EQ(d.values[place], ids[i]);
    }
  }
}

TEST(DistinctTest, SmallCases) {
  expect_distinct({}, false);
  expect_distinct({}, true);
  expect_distinct({5}, false);
  expect_distinct({7, 7, 7}, false);
  expect_distinct({3, 1, 2, 3, 1}, false);
  expect_distinct({-1, -1}, true);
  expect_distinct({-1, 4, -1, 4, 0}, true);
  expect_distinct({-5, 4, -1, 4, 0}, false);
  expect_distinct({0, 2, 5}, true);
  expect_distinct({-2, 2, 5}, false);
  expect_distinct({-2, 2, 5}, true);
}

TEST(DistinctTest, AllIdsOf64Bits) {
  expect_distinct({kLargest, 0, kLargest - 1, kLargest, 1}, false);
  expect_distinct({kLargest, kSmallest, 0, -1, kSmallest, 1}, false);
  expect_distinct({kLargest, kSmallest, 0, -1, kSmallest, 1}, true);
  expect_distinct({kLargest}, true);
}

TEST(DistinctTest, EqualsASetForAnyRangeOfIds) {
  on_one_and_two_threads([] {
    for (uint64_t seed = 0; seed < 64; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937_64 random(seed);
      const uint64_t bits = 1 + seed;  // ranges from one bit to all of them
      std::vector<int64_t> ids(seed % 8 == 0 ? 70'000 : random() % 500);
      for (int64_t& id : ids) id = static_cast<int64_t>(random() >> (64 - bits));
      if (seed % 3 == 0) {
        for (size_t i = 0; i < ids.size(); i += 3) ids[i] = -1;
      }
      expect_distinct(ids, seed % 2 == 0);
    }
  });
}

TEST(DistinctTuplesTest, EqualsASetOfTuples) {
  DedupScratch scratch;  // memory of other calls must not shine through
  DistinctTuples d;
  on_one_and_two_threads([&] {
    for (uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937_64 random(seed);
      const size_t width = 1 + seed % 5;
      const size_t n = seed % 10 == 0 ? 40'000 : random() % 300;
      // Few values make tuples repeat; all 32 bits make the packed key overflow into ranks.
      const int bits = seed % 4 == 3 ? 32 : static_cast<int>(1 + random() % 6);
      std::vector<std::vector<int32_t>> columns(width, std::vector<int32_t>(n));
      for (auto& column : columns) {
        for (int32_t& value : column) {
          value = bits == 32 ? static_cast<int32_t>(random() % 3 == 0 ? random() : random() % 2)
                             : static_cast<int32_t>(random() >> (64 - bits)) - 1;
        }
      }
      // The first column decides the others, but for one tuple every now and then.
      if (seed % 3 == 1) {
        for (size_t c = 1; c < width; ++c) {
          for (size_t i = 0; i < n; ++i)
            columns[c][i] = columns[0][i] % static_cast<int32_t>(5 + seed) - 2;
        }
        if (seed % 2 == 0 && width > 1 && n > 0) ++columns[width - 1][n / 2];
      }
      std::map<std::vector<int32_t>, int32_t> expected;
      const auto tuple = [&](size_t i) {
        std::vector<int32_t> members;
        for (const auto& column : columns) members.push_back(column[i]);
        return members;
      };
      for (size_t i = 0; i < n; ++i) expected[tuple(i)] = 0;
      int32_t rank = 0;
      for (auto& entry : expected) entry.second = rank++;

      const std::vector<std::span<const int32_t>> views(columns.begin(), columns.end());
      distinct_tuples(views, scratch, d);
      ASSERT_EQ(d.count, static_cast<int64_t>(expected.size()));
      ASSERT_EQ(d.inverse.size(), static_cast<int64_t>(n));
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(d.inverse[static_cast<int64_t>(i)], expected[tuple(i)]);
      }
      for (const auto& [members, place] : expected) {
        for (size_t c = 0; c < width; ++c) {
          ASSERT_EQ(d.column(static_cast<int64_t>(c))[static_cast<size_t>(place)], members[c]);
        }
      }
    }
  });
}

TEST(DistinctTuplesTest, ExtremesOfInt32) {
  constexpr int32_t kLow = std::numeric_limits<int32_t>::min();
  constexpr int32_t kHigh = std::numeric_limits<int32_t>::max();
  const std::vector<int32_t> a{kHigh, kLow, kHigh, -1};
  const std::vector<int32_t> b{kLow, kHigh, kLow, 0};
  const std::vector<int32_t> c{0, kLow, 0, kHigh};
  const std::vector<std::span<const int32_t>> columns{a, b, c};
  const DistinctTuples d = distinct_tuples(columns);
  ASSERT_EQ(d.count, 3);
  EXPECT_TRUE(std::ranges::equal(d.inverse.span(), std::vector<int32_t>{2, 0, 2, 1}));
  EXPECT_TRUE(std::ranges::equal(d.column(0), std::vector<int32_t>{kLow, -1, kHigh}));
  EXPECT_TRUE(std::ranges::equal(d.column(2), std::vector<int32_t>{kLow, kHigh, 0}));
}

TEST(DistinctTuplesTest, NoTuples) {
  const std::vector<std::span<const int32_t>> columns(2);
  const DistinctTuples d = distinct_tuples(columns);
  EXPECT_EQ(d.count, 0);
  EXPECT_TRUE(d.inverse.empty());
  EXPECT_TRUE(d.column(1).empty());
}

TEST(DeviceDedupTest, RangesFitWhereAllTheirIdsHaveAKey) {
  const IdPart all{1, {kSmallest, kLargest}, OutsideIds::kNever},
      one{1, {5, 5}, OutsideIds::kNever};
  IdPart half{1, {0, kLargest}, OutsideIds::kSkip};
  EXPECT_TRUE(DeviceDedup::fits(std::vector{all}));
  EXPECT_FALSE(DeviceDedup::fits(std::vector{all, one}));
  EXPECT_FALSE(DeviceDedup::fits(std::vector{one, all}));
  EXPECT_TRUE(DeviceDedup::fits(std::vector{half, one}));
  EXPECT_FALSE(DeviceDedup::fits(std::vector{half, half}));  // those that are skipped have none
  half.outside = OutsideIds::kClamp;
  EXPECT_TRUE(DeviceDedup::fits(std::vector{half, half}));
  EXPECT_FALSE(DeviceDedup::fits(std::vector<IdPart>(65, one)));
}

}  // namespace
}  // namespace segue::sparse
