// Schemas that are proposed for Parquet files: they say what their columns are, and prep holds them
// to it.

#include <memory>
#include <string>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include "data/parquet/parquet.h"
#include "data/propose/propose_test_util.h"

namespace segue::data {
namespace {

class ProposeParquet : public ProposedLog {
 protected:
  static constexpr int64_t kRows = 3000;

  ProposeParquet() { parquet_ = &parquet_support(); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  template <class Value>
  static std::vector<int64_t> integers(Value value) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < kRows; ++i) all.push_back(value(i));
    return all;
  }
  template <class Value>
  static std::vector<std::string> texts(Value value) {
    std::vector<std::string> all;
    for (int64_t i = 0; i < kRows; ++i) all.push_back(fmt::format("{}", value(i)));
    return all;
  }
  static int64_t user(int64_t i) { return i * 7919 % 30; }
  static int64_t item(int64_t i) { return i * 31 % 40; }
  static int64_t time(int64_t i) { return 1'700'000'000 + i * 1152; }
  static int64_t clicked(int64_t i) { return i % 7 / 5; }

  void write(const std::string& name, const std::vector<TableColumn>& columns) const {
    parquet_->write_table(path(name), columns);
  }
};

TEST_F(ProposeParquet, IntegersAreWhatTheyAre) {
  write("log.parquet", {{.name = "user", .integers = integers(user)},
                        {.name = "item", .integers = integers(item)},
                        {.name = "time", .integers = integers(time)},
                        {.name = "clicked", .integers = integers(clicked)}});
  const LogSchema s = propose();
  EXPECT_EQ(s.flags, std::vector<std::string>{"clicked"});
  EXPECT_EQ(prepare(s), kRows);
}

/// Spark writes so what it read from CSV without inferSchema.
TEST_F(ProposeParquet, NumbersThatAreTextsAreIdsAndKindsAlone) {
  const std::vector<TableColumn> ids = {{.name = "user", .texts = texts(user)},
                                        {.name = "item", .texts = texts(item)}};
  std::vector<TableColumn> columns = ids;
  columns.push_back({.name = "day", .texts = texts([](int64_t i) {
                                      return fmt::format("202311{:02}", i % 28 + 1);
                                    })});
  columns.push_back({.name = "clicked", .texts = texts(clicked)});
  columns.push_back({.name = "rating", .texts = texts([](int64_t i) { return i % 7; })});
  columns.push_back({.name = "shelf", .texts = texts([](int64_t i) { return item(i) % 4; })});
  write("log.parquet", columns);
  LogSchema s = propose();
  EXPECT_EQ(s.time_format, "%Y%m%d") << text_;
  EXPECT_EQ(s.kind, "clicked") << text_;
  EXPECT_TRUE(s.flags.empty());
  EXPECT_TRUE(s.value.empty());
  ASSERT_EQ(s.attributes.size(), 1U) << text_;
  EXPECT_EQ(s.attributes[0].name, "shelf");
  EXPECT_TRUE(says("rating: changes from row to row of an item; its numbers are texts")) << text_;
  EXPECT_EQ(prepare(s), kRows);

  columns = ids;
  columns.push_back({.name = "time", .texts = texts(time)});
  columns.push_back({.name = "clicked", .texts = texts(clicked)});
  write("log.parquet", columns);
  s = propose();
  EXPECT_EQ(s.time, "time");
  EXPECT_TRUE(says("FILL IN: its numbers are texts in the file, which are no times")) << text_;
}

TEST_F(ProposeParquet, ATableOfItemsMayBeCsvAndTheLogParquet) {
  const auto items = [](const char* separator) {
    std::string rows = fmt::format("item{}shelf\n", separator);
    for (int i = 0; i < 40; ++i) rows += fmt::format("{}{}s{}\n", i, separator, i % 4);
    return rows;
  };
  write("log.parquet", {{.name = "user", .integers = integers(user)},
                        {.name = "item", .integers = integers(item)},
                        {.name = "time", .integers = integers(time)},
                        {.name = "clicked", .integers = integers(clicked)}});
  put("items.tsv", items("\t"));
  LogSchema s = propose();
  ASSERT_EQ(s.attributes.size(), 1U) << text_;
  EXPECT_EQ(s.csv_separator, "\t");
  EXPECT_EQ(prepare(s), kRows);
  put("more.csv", items(","));
  propose();
  EXPECT_TRUE(says("between fields, where another file has")) << text_;
}

TEST_F(ProposeParquet, ATableOfItemsMayBeParquetAndTheLogCsv) {
  put("log.tsv",
      "user\titem\ttime\tclicked\n" + rows([](int64_t i, int64_t user, int64_t item, int64_t time) {
        return fmt::format("{}\t{}\t{}\t{}", user, item, time, i % 2);
      }));
  std::vector<int64_t> items, shelves;
  std::vector<std::string> names;
  for (int64_t i = 0; i < 40; ++i) {
    items.push_back(i);
    names.push_back(std::to_string(i));
    shelves.push_back(i % 4);
  }
  write("items.parquet",
        {{.name = "item", .integers = items}, {.name = "shelf", .integers = shelves}});
  const LogSchema s = propose();
  ASSERT_EQ(s.attributes.size(), 1U) << text_;
  EXPECT_EQ(s.csv_separator, "\t");
  EXPECT_EQ(prepare(s), 3000);
  write("items.parquet",
        {{.name = "item", .texts = names}, {.name = "shelf", .integers = shelves}});
  EXPECT_TRUE(propose().attributes.empty());
  EXPECT_TRUE(says("its item is text, where the log has integers")) << text_;
}

TEST_F(ProposeParquet, DatesAreDays) {
  arrow::Int64Builder users, items;
  arrow::Date32Builder days;
  arrow::Int32Builder clicks;
  for (int64_t i = 0; i < kRows; ++i) {
    ASSERT_TRUE(users.Append(user(i)).ok() && items.Append(item(i)).ok() &&
                days.Append(static_cast<int32_t>(19'675 + i % 40)).ok() &&
                clicks.Append(static_cast<int32_t>(clicked(i))).ok());
  }
  const auto table = arrow::Table::Make(
      arrow::schema({arrow::field("user", arrow::int64()), arrow::field("item", arrow::int64()),
                     arrow::field("day", arrow::date32()),
                     arrow::field("clicked", arrow::int32())}),
      {users.Finish().ValueOrDie(), items.Finish().ValueOrDie(), days.Finish().ValueOrDie(),
       clicks.Finish().ValueOrDie()});
  const auto file = arrow::io::FileOutputStream::Open(path("log.parquet")).ValueOrDie();
  ASSERT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), file, 1000).ok());
  ASSERT_TRUE(file->Close().ok());
  const LogSchema s = propose();
  EXPECT_TRUE(says("days, from 2023-11-14T00:00:00")) << text_;
  EXPECT_EQ(prepare(s), kRows);
}

}  // namespace
}  // namespace segue::data
