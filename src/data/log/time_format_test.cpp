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

/// Read as a number a time loses its first zero: 9010100 was 09010100, and is no hour of 1990.
TEST(TimeFormat, ANumberThatTouchesAnotherHasAllItsDigits) {
  int64_t seconds = 0;
  EXPECT_FALSE(parse_time("2017111", "%Y%m%d", seconds));
  EXPECT_FALSE(parse_time("9010100", "%y%m%d%H", seconds));
  EXPECT_FALSE(parse_time("20171114 1015", "%Y%m%d %H0%M", seconds));
  EXPECT_EQ(seconds_of("20171101", "%Y%m%d"), seconds_of("2017-11-1", "%Y-%m-%d"));
}

TEST(TimeFormat, FormsOfLogsAndReports) {
  constexpr int64_t kMoment = 1'488'621'600;  // 2017-03-04 10:00:00 UTC, a Saturday
  EXPECT_EQ(seconds_of("Sat Mar  4 10:00:00 2017", "%a %b %d %H:%M:%S %Y"), kMoment);
  EXPECT_EQ(seconds_of("Sat Mar 14 10:00:00 2017", "%a %b  %d %H:%M:%S %Y"), kMoment + 864'000);
  EXPECT_EQ(seconds_of("March 4, 2017 10:00", "%B %d, %Y %H:%M"), kMoment);
  EXPECT_EQ(seconds_of("mar 4, 2017 10:00", "%B %d, %Y %H:%M"), kMoment);
  EXPECT_EQ(seconds_of("SATURDAY, 4 March 2017 10:00", "%A, %d %b %Y %H:%M"), kMoment);
  EXPECT_EQ(seconds_of("4May2017", "%d%b%Y"), seconds_of("2017-05-04", "%Y-%m-%d"));
  EXPECT_EQ(seconds_of("04/03/2017 10:00:00.25", "%d/%m/%Y %H:%M:%S"), kMoment);
  EXPECT_EQ(seconds_of("04/03/2017 10:00:00.999999 AM", "%d/%m/%Y %I:%M:%S %p"), kMoment);
  EXPECT_EQ(seconds_of("2017-03-04 10:00:00,250", "%Y-%m-%d %H:%M:%S,%f"), kMoment);
  EXPECT_EQ(seconds_of("2017-03-04 10:00:00.250", "%Y-%m-%d %H:%M:%S.%f"), kMoment);
  EXPECT_EQ(seconds_of("2017-03-04 11:00:00+01", "%Y-%m-%d %H:%M:%S%z"), kMoment);
  EXPECT_EQ(seconds_of("2017-03-04 15:30:00.5 +0530", "%Y-%m-%d %H:%M:%S %z"), kMoment);
  int64_t seconds = 0;
  for (const char* text : {"Marc 4, 2017", "Marching 4, 2017", "March4, 2017", "M 4, 2017"}) {
    EXPECT_FALSE(parse_time(text, "%B %d, %Y", seconds)) << text;
  }
  EXPECT_FALSE(parse_time("04/03/2017 10:00:00.", "%d/%m/%Y %H:%M:%S", seconds));
  EXPECT_FALSE(parse_time("04/03/2017 10:00.5", "%d/%m/%Y %H:%M", seconds));
  EXPECT_FALSE(parse_time("2017-03-04 11:00+1", "%Y-%m-%d %H:%M%z", seconds));
  EXPECT_FALSE(parse_time("2017-03-04 11:00+01:", "%Y-%m-%d %H:%M%z", seconds));
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
  EXPECT_EQ(time_format_problem("%A, %d %B %Y %H:%M:%S.%f"), "");
  for (const char* format : {"%H:%M", "%Y-%m", "%Y%m%d%Q", "%Y%m%d%", "%Y%m%d %I", "%Y%m%d %p"}) {
    EXPECT_NE(time_format_problem(format), "") << format;
  }
}

}  // namespace
}  // namespace segue::data
