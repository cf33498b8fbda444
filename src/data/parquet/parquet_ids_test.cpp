// Ids in Parquet: beside those of CSV files, and those that a type does not hold.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include "base/test_util.h"
#include "data/parquet/parquet.h"
#include "data/prep/prep.h"
#include "data/prep/prep_test_util.h"

namespace segue::data {
namespace {

using base::contains;
using base::error_of;

template <class Builder, class Value>
std::shared_ptr<arrow::Array> array_of(const std::vector<Value>& values) {
  Builder builder;
  EXPECT_TRUE(builder.AppendValues(values).ok());
  return builder.Finish().ValueOrDie();
}

class ParquetIds : public testing::Test {
 protected:
  ParquetIds() : log_("raw") {
    LogSchema& schema = log_.schema;
    schema.attributes.clear();
    schema.kind = schema.value = schema.organic = schema.length = "";
    schema.test_seconds = schema.gap_seconds = schema.train_days = 0;
  }

  /// Three events, of these users.
  void put(const std::string& name, const std::shared_ptr<arrow::Array>& users) const {
    const auto times = array_of<arrow::Int64Builder>(std::vector<int64_t>{100, 200, 300});
    const auto items = array_of<arrow::Int64Builder>(std::vector<int64_t>{7, 8, 7});
    const auto table = arrow::Table::Make(
        arrow::schema({arrow::field("uid", users->type()), arrow::field("timestamp", times->type()),
                       arrow::field("item_id", items->type())}),
        {users, times, items});
    const auto file = arrow::io::FileOutputStream::Open(log_.folder + "/" + name).ValueOrDie();
    ASSERT_TRUE(
        parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), file, 1 << 20).ok());
    ASSERT_TRUE(file->Close().ok());
  }
  StoreBytes made() const {
    PrepConfig config = log_.config("store");
    config.parquet = &parquet_support();
    config.overwrite = true;
    prep(config);
    return store_bytes(config.store);
  }

  RawLog log_;
};

/// Whatever the files say of their types, dense ids are what they spell.
TEST_F(ParquetIds, DenseOnesBesideThoseOfCsv) {
  log_.schema.user_ids = log_.schema.item_ids = IdMapping::kDense;
  const std::string header = "uid,timestamp,item_id\n", first = "12,100,7\n5,200,8\n12,300,7\n",
                    second = "12.0,400,7\n900,500,9\n";
  log_.put("events-1.csv", header + first);
  log_.put("events-2.csv", header + second);
  const StoreBytes wanted = made();
  const auto users = array_of<arrow::Int32Builder>(std::vector<int32_t>{12, 5, 12});
  put("events-1.csv", users);
  EXPECT_TRUE(same_store(wanted, made()));
  log_.put("events-1.csv", header + second);
  put("events-2.csv", users);
  EXPECT_TRUE(same_store(wanted, made()));
}

TEST_F(ParquetIds, ThatATypeDoesNotHold) {
  constexpr double kGap = 9007199254740992;  // 2^53
  const auto message = [&](const std::shared_ptr<arrow::Array>& users) {
    put("events.csv", users);
    const auto error = error_of([&] { made(); });
    return error ? std::string(error->what()) : "";
  };
  for (const IdMapping mapping : {IdMapping::kAuto, IdMapping::kDense}) {
    log_.schema.user_ids = mapping;
    const std::string rounded =
        message(array_of<arrow::DoubleBuilder>(std::vector<double>{1, kGap, kGap + 2}));
    EXPECT_TRUE(contains(rounded,
                         "row 2: column \"uid\" has the id 9007199254740992 as a "
                         "floating-point number, which may stand for several ids"))
        << rounded;
    const std::string narrow =
        message(array_of<arrow::FloatBuilder>(std::vector<float>{1, 16777215, 16777216}));
    EXPECT_TRUE(contains(narrow, "row 3: column \"uid\" has the id 16777216 as")) << narrow;
    const std::string large =
        message(array_of<arrow::UInt64Builder>(std::vector<uint64_t>{1, 2, uint64_t{1} << 63}));
    EXPECT_TRUE(contains(large,
                         "row 3: column \"uid\" has 9223372036854775808, more than an "
                         "integer of 64 bits with a sign holds; cast the column to text"))
        << large;
  }
}

}  // namespace
}  // namespace segue::data
