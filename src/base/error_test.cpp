#include "base/error.h"

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue {
namespace {

TEST(Error, CarriesCodeAndMessage) {
  const auto error = base::error_of([] { fail(ErrorCode::kOutOfRange, "row 7 of 5"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfRange);
  EXPECT_STREQ(error->what(), "row 7 of 5");
  EXPECT_EQ(to_string(ErrorCode::kOutOfRange), "out of range");
}

TEST(Status, GrowsContextOnTheWayUp) {
  EXPECT_TRUE(Status().ok());
  EXPECT_TRUE(Status().with("ignored").ok());
  EXPECT_NO_THROW(Status().throw_if_failed());

  const Status status = Status(ErrorCode::kIo, "disk full").with("saving table items");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "saving table items: disk full");
  const auto error = base::error_of([&] { status.throw_if_failed(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
}

TEST(AssertDeathTest, NamesThePlace) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(SEGUE_ASSERT(1 + 1 == 3, "arithmetic is broken"), "error_test.cpp.*arithmetic");
}

}  // namespace
}  // namespace segue
