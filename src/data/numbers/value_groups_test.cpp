#include "data/numbers/value_groups.h"

#include <gtest/gtest.h>

#include "data/numbers/numbers_test_util.h"

namespace segue::data {
namespace {

int64_t values_in_groups(const ValueGroups& groups) {
  int64_t values = 0;
  for (int64_t id = 0; id < kWithGroups.items; ++id) {
    values += groups.group(groups.period(3), DayCounts::kItem, id) > 0 ? 1 : 0;
  }
  return values;
}

/// Users are left out where there are more tries than are looked at, but not for tries of users
/// that are not looked at anyway.
TEST(ValueGroups, AFewUsersOfManyTriesAreNotLeftOut) {
  StoreShape shape = kWithGroups;
  shape.users = 30;
  shape.max_events = 600;
  TestStore s = fresh_store(61, shape);
  give_tastes(s);
  EXPECT_EQ(values_in_groups(groups_of(s)), kWithGroups.items);
  std::filesystem::remove(s.index("groups.idx"));
  EXPECT_EQ(values_in_groups(groups_of(s, {.tries = 500, .tries_of_user = 30})), kWithGroups.items);
  std::filesystem::remove(s.index("groups.idx"));
  EXPECT_EQ(values_in_groups(groups_of(s, {.tries = 500})), 0) << "the test itself";
}

/// Many users of a few tries each tell as much as a few of many.
TEST(ValueGroups, UsersOfAFewTriesCount) {
  StoreShape shape = kWithGroups;
  shape.users = 400;
  shape.max_events = 15;
  TestStore s = fresh_store(62, shape);
  give_tastes(s);
  EXPECT_EQ(values_in_groups(groups_of(s)), kWithGroups.items);
  std::filesystem::remove(s.index("groups.idx"));
  EXPECT_EQ(values_in_groups(groups_of(s, {.users = 50})), kWithGroups.items);
  std::filesystem::remove(s.index("groups.idx"));
  EXPECT_EQ(values_in_groups(groups_of(s, {.users = 5})), 0) << "the test itself";
}

}  // namespace
}  // namespace segue::data
