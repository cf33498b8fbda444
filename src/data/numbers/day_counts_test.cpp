#include "data/numbers/day_counts.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "data/numbers/numbers_test_util.h"

namespace segue::data {
namespace {

/// However many events are sorted at a time, and however wide counts are.
TEST(DayCounts, DoNotDependOnTheirLimits) {
  for (const uint64_t seed : {51, 52}) {
    SCOPED_TRACE(seed);
    const TestStore s = fresh_store(seed, {.users = 20, .items = 60, .days = 9});
    const EventStore store(s.folder, s.schema);
    constexpr int64_t kMany = 1 << 20;
    std::vector<Tally> first;
    for (const DayCountLimits& limits :
         {DayCountLimits(), DayCountLimits{kMany, 4, 0}, DayCountLimits{50, 4, kMany},
          DayCountLimits{50, 4, 0}, DayCountLimits{1, 1, kMany}, DayCountLimits{600, 4, kMany, 1},
          DayCountLimits{1000, 4, kMany, 1}, DayCountLimits{50, 4, 0, 1}}) {
      std::filesystem::remove(s.index("counts.idx"));
      const DayCounts counts = DayCounts::open_or_build(store, store, limits);
      std::vector<Tally> found;
      for (size_t of = 0; of < DayCounts::kFirstAttribute + s.maps.size(); ++of) {
        for (int64_t id = -1; id < 1000; ++id) {
          for (int64_t day = -1; day < 12; ++day) found.push_back(counts.before(of, id, day));
        }
      }
      if (first.empty()) first = found;
      ASSERT_EQ(found.size(), first.size());
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(std::pair(found[i].positive, found[i].all),
                  std::pair(first[i].positive, first[i].all))
            << i;
      }
    }
  }
}

/// A year or a time is an integer like an id, but not one of so many.
TEST(DayCounts, LargeIdsTakeNoRoomForThoseThatThereAreNot) {
  constexpr int64_t kFirst = 1'700'000'000, kApart = 86400;
  TestStore s = fresh_store(53, {.users = 20, .items = 60, .days = 9});
  for (int64_t& value : s.maps[0]) value = value % 50 + 1;
  s.maps[1] = s.maps[0];
  for (int64_t& value : s.maps[1]) value = kFirst + value * kApart;
  s.write({});
  const EventStore store(s.folder, s.schema);
  const DayCounts counts = DayCounts::open_or_build(store, store);
  EXPECT_LT(std::filesystem::file_size(s.index("counts.idx")), 1U << 20);
  constexpr size_t kSmall = DayCounts::kFirstAttribute, kLarge = kSmall + 1;
  EXPECT_LE(counts.end(kSmall), 51);
  EXPECT_EQ(counts.end(kLarge), kFirst + (counts.end(kSmall) - 1) * kApart + 1);
  EXPECT_EQ(counts.end(kLarge, kFirst), 1) << "items that no map knows have 0";
  int64_t tries = 0;
  for (int64_t value = 1; value <= 51; ++value) {
    for (int64_t day = 0; day < 12; ++day) {
      const Tally small = counts.before(kSmall, value, day);
      const Tally large = counts.before(kLarge, kFirst + value * kApart, day);
      EXPECT_EQ(std::pair(large.positive, large.all), std::pair(small.positive, small.all));
      EXPECT_EQ(counts.before(kLarge, kFirst + value * kApart + 1, day).all, 0);
      tries += large.all;
    }
  }
  EXPECT_GT(tries, 0);
}

}  // namespace
}  // namespace segue::data
