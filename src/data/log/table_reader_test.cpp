#include "data/log/table_reader.h"

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::data {
namespace {

using base::contains;
using base::error_of;

/// All rows of one column as text: "-" where missing.
std::vector<std::string> column(const std::string& text, const ColumnRequest& request,
                                const CsvFormat& format = {}, size_t block_rows = 3) {
  const std::string path = base::temp_path("table.csv");
  base::put_file(path, text);
  const auto reader = open_csv(path, {request}, format, block_rows);
  std::vector<std::string> values;
  RawBlock block;
  int64_t rows = 0;
  while (reader->read(block)) {
    EXPECT_EQ(block.first_row, rows);
    const RawColumn& c = block.columns[0];
    for (size_t i = 0; i < block.rows; ++i) {
      if (!c.is_valid(i)) {
        values.emplace_back("-");
      } else if (c.type == RawColumn::Type::kInteger) {
        values.push_back(std::to_string(c.integers[i]));
      } else if (c.type == RawColumn::Type::kNumber) {
        values.push_back(std::to_string(c.numbers[i]).substr(0, 5));
      } else {
        values.emplace_back(c.text(i));
      }
    }
    rows += static_cast<int64_t>(block.rows);
  }
  return values;
}

using Strings = std::vector<std::string>;

TEST(CsvReader, ColumnsByName) {
  const std::string text = "a,b,c\n1,x,2.5\n2,y,\n-3,,NaN\n\n4.0,x,7\n";
  EXPECT_EQ(column(text, {"a", ColumnRole::kInteger}), (Strings{"1", "2", "-3", "4"}));
  EXPECT_EQ(column(text, {"b", ColumnRole::kText}), (Strings{"x", "y", "-", "x"}));
  EXPECT_EQ(column(text, {"b", ColumnRole::kKind}), (Strings{"x", "y", "-", "x"}));
  EXPECT_EQ(column(text, {"c", ColumnRole::kNumber}), (Strings{"2.500", "-", "-", "7.000"}));
  EXPECT_EQ(column(text, {"c", ColumnRole::kWhole}), (Strings{"2", "-", "-", "7"}));
}

TEST(CsvReader, LineEndsAndMarks) {
  EXPECT_EQ(column("\xef\xbb\xbf"
                   "a,b\r\n1,2\r\n3,4",
                   {"a", ColumnRole::kInteger}),
            (Strings{"1", "3"}));
  EXPECT_EQ(column("a\n", {"a", ColumnRole::kInteger}), Strings{});
  EXPECT_EQ(column("a\ntrue\nFalse\n", {"a", ColumnRole::kInteger}), (Strings{"1", "0"}));
  EXPECT_EQ(column("a\n-0.5\n", {"a", ColumnRole::kWhole}), (Strings{"-1"}));
}

/// Ids: "007" is another than "7", and as a number neither could be given back.
TEST(CsvReader, ZerosInFrontOfIdsAreNotLost) {
  const ColumnRequest id = {.name = "a", .hint = "; say dense", .exact = true};
  EXPECT_EQ(column("a\n7\n0\n-7\n12.0\n", id), (Strings{"7", "0", "-7", "12"}));
  const auto error = error_of([&] { column("a\n7\n007\n", id); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(),
                       "row 2: column \"a\" has \"007\" where an integer without leading zeros is "
                       "needed; say dense"))
      << error->what();
  EXPECT_EQ(column("a\n007\n", {"a", ColumnRole::kInteger}), Strings{"7"});  // a number
}

/// Spelled as floating-point numbers, large ids that differ may look the same.
TEST(CsvReader, IdsThatWereRoundedAreNoIds) {
  const ColumnRequest id = {.name = "a", .hint = "; say dense", .exact = true};
  const auto message = [&](const std::string& value) {
    const auto error = error_of([&] { column("a\n" + value + "\n", id); });
    return error ? std::string(error->what()) : "";
  };
  EXPECT_EQ(column("a\n9007199254740991.0\n9007199254740993\n", id),
            (Strings{"9007199254740991", "9007199254740993"}));
  for (const char* value : {"9007199254740993.0", "1.2e+18", "-1.2E18", "1e+18"}) {
    EXPECT_TRUE(contains(message(value), fmt::format("row 1: column \"a\" has the id {} as a "
                                                     "floating-point number",
                                                     value)))
        << message(value);
    EXPECT_TRUE(contains(message(value), "write the column as integers or text"));
  }
  for (const char* value : {"1e3", "-0", "1.5"}) {
    EXPECT_TRUE(contains(message(value), "where an integer is needed; say dense")) << value;
  }
  EXPECT_EQ(column("a\n1e3\n", {"a", ColumnRole::kInteger}), Strings{"1000"});  // a number
}

TEST(CsvReader, TimesAreWrittenAsTheFormatSays) {
  const ColumnRequest time = {
      .name = "a", .role = ColumnRole::kTime, .time_format = "%d.%m.%Y %H:%M"};
  EXPECT_EQ(column("a\n14.11.2023 22:13\n\n1.1.1970 0:01\n", time), (Strings{"1699999980", "60"}));
  const auto error = error_of([&] { column("a\n14.11.2023 22:13\n1700000000\n", time); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(),
                       "row 2: column \"a\" has \"1700000000\" where a time as "
                       "time_format = \"%d.%m.%Y %H:%M\" is needed"))
      << error->what();
}

TEST(CsvReader, TextThatIsNoTable) {
  const auto message = [](const std::string& text) {
    const auto error = error_of([&] { column(text, {"a", ColumnRole::kInteger}); });
    return error ? std::string(error->what()) : "";
  };
  EXPECT_EQ(column("\n\r\na,b\n1,2\n", {"b", ColumnRole::kInteger}), Strings{"2"});
  EXPECT_TRUE(contains(message("a,b\r1,2\r"), "carriage returns alone; `tr"));
  EXPECT_TRUE(contains(message("{\"a\": 1}\n"), "is JSON; bring Parquet or CSV"));
  EXPECT_TRUE(contains(message("[\n  {\"a\": 1}\n]\n"), "read_json('IN', dtype"));
  EXPECT_TRUE(contains(message("\xff\xfe"), "is UTF-16; `iconv"));
}

TEST(CsvReader, Quotes) {
  EXPECT_EQ(column("n,t\n1,\"a, \"\"b\"\"\nc\"\n2,\"\"\n3,\"x\"\n", {"t", ColumnRole::kText}),
            (Strings{"a, \"b\"\nc", "-", "x"}));
  EXPECT_EQ(column("\"n\",\"t\"\n\"1\",2\n", {"n", ColumnRole::kInteger}), (Strings{"1"}));
}

TEST(CsvReader, QuotesInsideAFieldAreCharacters) {
  EXPECT_EQ(column("n,t\n1,6\" disk\n2,x \"y\n3,\"a,\n\"\"b\"\n", {"t", ColumnRole::kText}),
            (Strings{"6\" disk", "x \"y", "a,\n\"b"}));
}

TEST(CsvReader, LongSeparatorsKnowNoQuotes) {
  const CsvFormat format = {.separator = "::", .columns = {"id", "title", "kind"}};
  EXPECT_EQ(column("1::\"Cats\" (1998)::A|B\n2::x:y::C\n", {"title", ColumnRole::kText}, format),
            (Strings{"\"Cats\" (1998)", "x:y"}));
}

TEST(CsvReader, LinesOfAnyLengthAcrossBuffers) {
  std::string text = "n,t\n";
  Strings wanted;
  for (size_t i = 0; i < 60; ++i) {
    wanted.push_back(std::string(i * i * 37, static_cast<char>('a' + i % 26)) + "x");
    text += std::to_string(i) + "," + wanted.back() + "\n";
  }
  EXPECT_GT(text.size(), size_t{2} << 20);
  EXPECT_EQ(column(text, {"t", ColumnRole::kText}), wanted);
}

TEST(CsvReader, Mistakes) {
  const auto message = [](const std::string& text, const ColumnRequest& request) {
    const auto error = error_of([&] { column(text, request); });
    return error ? std::string(error->what()) : "";
  };
  const ColumnRequest a = {"a", ColumnRole::kInteger};
  EXPECT_TRUE(contains(message("a,b\n1,2\n3\n", a), "row 2: has 1 fields instead of 2"));
  EXPECT_TRUE(contains(message("a,b\n1,2\n3,4,5\n", a), "row 2: has 3 fields instead of 2"));
  EXPECT_TRUE(contains(message("a,b\n1,2\nx,2\n", a),
                       "row 2: column \"a\" has \"x\" where an integer is needed"));
  EXPECT_TRUE(contains(message("a\n1.5\n", a), "\"1.5\" where an integer"));
  EXPECT_TRUE(contains(message("a\n99999999999999999999\n", a), "where an integer"));
  EXPECT_TRUE(contains(message("a\n1e\n", {"a", ColumnRole::kNumber}), "where a number"));
  EXPECT_TRUE(contains(message("ab,b\n", a), "has no column \"a\""));
  EXPECT_TRUE(contains(message("ab,b\n", a), "it has: ab, b"));
  EXPECT_TRUE(contains(message("a\n\"x\n", {"a", ColumnRole::kText}), "without an end"));
  EXPECT_TRUE(contains(message("a\n\"x\"y\n", {"a", ColumnRole::kText}), "behind a quoted field"));
}

/// Every line ends inside quotes, wherever reading begins: to look behind each of them to the end
/// of the file would take minutes for this megabyte, and years for a log.
TEST(CsvReader, QuotesThatNeverCloseDoNotTakeForever) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "a\",\"b\n";
  const auto reader = open_csv_text(text, "log.csv", {{"x", ColumnRole::kText}}, {",", {"x", "y"}},
                                    1 << 12, text.size() + 1, true);
  const auto error = error_of([&] {
    RawBlock block;
    while (reader->read(block)) {
    }
  });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "quotes open and do not close in line after line"));
}

TEST(OpenTable, LooksAtTheFirstBytes) {
  const std::string path = base::temp_path("table.csv");
  const auto error_for = [&path](const std::string& text) {
    base::put_file(path, text);
    return error_of([&] { open_table(path, {{"a"}}, {}); });
  };
  auto error = error_for("PAR1....");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(contains(error->what(),
                       "built without Parquet support; run scripts/fetch_wheels.sh and rebuild, or "
                       "bring CSV"));
  error = error_for("\x1f\x8b....");
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "cannot be unpacked (gzip)"));
  error = error_for("BZh9....");
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "compressed (bzip2)"));
  error = error_for("");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
}

TEST(OpenTable, ColumnIsText) {
  const Strings paths = {base::temp_path("table.csv")};
  base::put_file(paths[0], "a,b,c,d\n,12,x1,3.0\n5,13,7,4.0\n");
  EXPECT_FALSE(column_is_text(paths, "a", {}));
  EXPECT_FALSE(column_is_text(paths, "b", {}));
  EXPECT_TRUE(column_is_text(paths, "c", {}));
  EXPECT_FALSE(column_is_text(paths, "d", {}));
  for (const char* text : {"007", "10.0.0.1", "1.5.2", "100.200.3", "1.5", "1e3", ".0"}) {
    base::put_file(paths[0], std::string("a\n") + text + "\n");
    EXPECT_TRUE(column_is_text(paths, "a", {})) << text;
  }
}

/// A day may have only a header.
TEST(OpenTable, TheFirstFileWithAValueSaysWhetherAColumnIsText) {
  const Strings paths = {base::temp_path("a.csv"), base::temp_path("b.csv"),
                         base::temp_path("c.csv")};
  base::put_file(paths[0], "a,b,c\n");
  base::put_file(paths[1], "a,b,c\nx,,1\n");
  base::put_file(paths[2], "a,b,c\n1,x,x\n");
  for (const bool mark_bad_rows : {false, true}) {
    TableOptions options;
    options.mark_bad_rows = mark_bad_rows;
    EXPECT_EQ(column_is_text(paths, "a", options),
              !mark_bad_rows);  // most of them, where some may be wrong
    EXPECT_TRUE(column_is_text(paths, "b", options));
    EXPECT_FALSE(column_is_text(paths, "c", options));
    EXPECT_FALSE(column_is_text({&paths[0], 1}, "a", options));
  }
}

TEST(ParseCanonicalInteger, OnlyTheUsualSpelling) {
  int64_t value = 0;
  for (const char* text : {"0", "7", "-12", "9223372036854775807"}) {
    EXPECT_TRUE(parse_canonical_integer(text, value)) << text;
    EXPECT_EQ(std::to_string(value), text);
  }
  for (const char* text :
       {"", "00", "07", "-0", "+1", " 1", "1 ", "1.0", "x", "-", "9223372036854775808"}) {
    EXPECT_FALSE(parse_canonical_integer(text, value)) << text;
  }
}

TEST(ParseWholeInteger, AlsoWithAPoint) {
  int64_t value = 0;
  for (const char* text : {"12", "12.0", "12.", "12.000"}) {
    EXPECT_TRUE(parse_whole_integer(text, value)) << text;
    EXPECT_EQ(value, 12);
  }
  EXPECT_TRUE(parse_whole_integer("9223372036854775807.0", value));
  EXPECT_EQ(value, 9223372036854775807);
  for (const char* text : {"", ".", ".0", "012.0", "12.01", "12.0.0", "12.0 ", "1e3", "x.0"}) {
    EXPECT_FALSE(parse_whole_integer(text, value)) << text;
  }
}

TEST(IsRoundedNumber, OfTwoToThe53AndMoreWithAFractionOrExponent) {
  for (const char* text :
       {"9007199254740992.0", "1.2345678901234568e+18", "1.23457E+18", "1e+18"}) {
    EXPECT_TRUE(is_rounded_number(text)) << text;
  }
  for (const char* text : {"9007199254740991.0", "9007199254740993", "12e34567", "1e18", "1.5e+3",
                           "1.2.3e+18", "1e+999", "", "."}) {
    EXPECT_FALSE(is_rounded_number(text)) << text;
  }
}

}  // namespace
}  // namespace segue::data
