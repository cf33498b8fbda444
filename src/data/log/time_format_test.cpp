#include "data/log/time_format.h"

#include <gtest/gtest.h>

namespace segue::data {
namespace {

int64_t seconds_of(std::string_view text, std::string_view format) {
  int64_t seconds = -1;
  EXPECT_TRUE(parse_time(text, format, seconds)) << text << " as " << format;
  return seconds;
}

TEST(TimeFormat, FormsOfOneMoment) {
  constexpr int64_t kMoment = 1'700'000'000;  // 2023-11-14 22:13:20 UTC, a Tuesday
  EXPECT_EQ(seconds_of("11/14/2023 10:13:20 PM", "%m/%d/%Y %I:%M:%S %p"), kMoment);
  EXPECT_EQ(seconds_of(" 14.11.2023 22:13:20 ", "%d.%m.%Y %H:%M:%S"), kMoment);
  EXPECT_EQ(seconds_of("20231114221320", "%Y%m%d%H%M%S"), kMoment);
  EXPECT_EQ(seconds_of("Tue Nov 14 23:13:20 +0100 2023", "%a %b %d %H:%M:%S %z %Y"), kMoment);
  EXPECT_EQ(seconds_of("14/Nov/2023:17:13:20 -05:00", "%d/%b/%Y:%H:%M:%S %z"), kMoment);
  EXPECT_EQ(seconds_of("22h13m20 23-11-14 100%", "%Hh%Mm%S %y-%m-%d 100%%"), kMoment);
  EXPECT_EQ(seconds_of("23111422", "%y%m%d%H"), kMoment - 800);
}

TEST(TimeFormat, ZerosInFrontMayBeMissingWhereNoDigitFollows) {
  EXPECT_EQ(seconds_of("3/4/2017 1:05:06 AM", "%m/%d/%Y %I:%M:%S %p"), 1488589506);
  EXPECT_EQ(seconds_of("3/4/2017 12:05:06 AM", "%m/%d/%Y %I:%M:%S %p"), 1488585906);
  EXPECT_EQ(seconds_of("3/4/2017 12:05:06 pm", "%m/%d/%Y %I:%M:%S %p"), 1488629106);
  EXPECT_EQ(seconds_of("4Mar2017 1AM", "%d%b%Y %I%p"), 1488589200);
  EXPECT_EQ(seconds_of("01 5, 1969", "%m %d, %Y"), -361 * 86400);
  int64_t seconds = 0;
  EXPECT_FALSE(parse_time("2017341", "%Y%m%d", seconds));
}

TEST(TimeFormat, AnythingElseIsNone) {
  int64_t seconds = 0;
  for (const char* text : {"", "31.02.2024 10:00", "01.13.2024 10:00", "01.01.2024 24:00",
                           "01.01.2024", "01.01.2024 10:00:00", "1.1.24 10:00", "x"}) {
    EXPECT_FALSE(parse_time(text, "%d.%m.%Y %H:%M", seconds)) << text;
  }
  EXPECT_FALSE(parse_time("01/01/2024 13:00 PM", "%m/%d/%Y %I:%M %p", seconds));
  EXPECT_FALSE(parse_time("01/01/2024 10:00 XM", "%m/%d/%Y %I:%M %p", seconds));
  EXPECT_FALSE(parse_time("01 Foo 2024", "%d %b %Y", seconds));
  EXPECT_FALSE(parse_time("20240101 0100", "%Y%m%d %z", seconds));
}

TEST(TimeFormat, FormatsThatTellNoDay) {
  EXPECT_EQ(time_format_problem("%d.%m.%Y %H:%M"), "");
  EXPECT_EQ(time_format_problem("%y%m%d%H"), "");
  for (const char* format : {"%H:%M", "%Y-%m", "%Y%m%d%Q", "%Y%m%d%", "%Y%m%d %I", "%Y%m%d %p"}) {
    EXPECT_NE(time_format_problem(format), "") << format;
  }
}

}  // namespace
}  // namespace segue::data
