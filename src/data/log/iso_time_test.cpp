#include "data/log/iso_time.h"

#include <gtest/gtest.h>

namespace segue::data {
namespace {

int64_t seconds_of(std::string_view text) {
  int64_t seconds = -1;
  EXPECT_TRUE(parse_iso_time(text, seconds)) << text;
  return seconds;
}

TEST(IsoTime, FormsOfOneMoment) {
  constexpr int64_t kMoment = 1'700'000'000;  // 2023-11-14 22:13:20 UTC
  for (const char* text :
       {"2023-11-14T22:13:20Z", "2023-11-14 22:13:20", "2023-11-14T22:13:20.999999",
        "2023-11-14 22:13:20 UTC", "2023-11-14T23:13:20+01:00", "2023-11-15T03:43:20+0530",
        "2023-11-14T20:13:20-02", "2023-11-14 22:13:20.5+00:00"}) {
    EXPECT_EQ(seconds_of(text), kMoment) << text;
  }
  EXPECT_EQ(seconds_of("2023-11-14 22:13"), kMoment - 20);
  EXPECT_EQ(seconds_of("1970-01-01"), 0);
  EXPECT_EQ(seconds_of("2024-02-29"), 1709164800);
  EXPECT_EQ(seconds_of("1969-12-31T23:59:59Z"), -1);
}

TEST(IsoTime, AnythingElseIsNone) {
  int64_t seconds = 0;
  for (const char* text :
       {"", "1700000000", "2023", "2023-11", "2023-13-01", "2023-02-29", "2023-11-14T", "x",
        "2023-11-14T25:00:00", "2023-11-14T22:60", "2023-11-14T22:13:20+", "2023-11-14T22:13:20.",
        "2023-11-14T22:13:20Zx", "14.11.2023", "2023-11-14T22:13:20+25:00", "-2023-11-14"}) {
    EXPECT_FALSE(parse_iso_time(text, seconds)) << text;
  }
}

}  // namespace
}  // namespace segue::data
