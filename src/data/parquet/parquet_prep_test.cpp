// Parquet in: the same rows as any Arrow types, row groups and files give the store of the CSV
// file.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <arrow/api.h>
#include <arrow/compute/api.h>
#include <arrow/io/file.h>
#include <gtest/gtest.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>

#include "base/test_util.h"
#include "base/time.h"
#include "data/parquet/parquet.h"
#include "data/prep/prep.h"
#include "data/prep/prep_test_util.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;
using base::contains;
using base::error_of;

using TypePtr = std::shared_ptr<arrow::DataType>;

/// How the columns of a log are typed.
struct LogTypes {
  TypePtr user = arrow::uint32(), time = arrow::uint32(), item = arrow::uint32(),
          organic = arrow::uint8(), value = arrow::uint16(), length = arrow::uint32();
  bool kind_dictionary = false, kind_number = false;
  int64_t row_group = 1 << 20;
  bool use_dictionary = true;
};

std::shared_ptr<arrow::Array> cast(const std::shared_ptr<arrow::Array>& array,
                                   const TypePtr& type) {
  return arrow::compute::Cast(*array, type).ValueOrDie();
}

template <class Builder, class Get>
std::shared_ptr<arrow::Array> build(const std::vector<Event>& events, Get get) {
  Builder builder;
  for (const Event& e : events) {
    if (const auto value = get(e)) {
      EXPECT_TRUE(builder.Append(*value).ok());
    } else {
      EXPECT_TRUE(builder.AppendNull().ok());
    }
  }
  return builder.Finish().ValueOrDie();
}

template <class Get>
std::shared_ptr<arrow::Array> integers(const std::vector<Event>& events, const TypePtr& type,
                                       Get get) {
  return cast(build<arrow::Int64Builder>(
                  events, [&get](const Event& e) { return std::optional<int64_t>(get(e)); }),
              type);
}

std::shared_ptr<arrow::Table> table_of(const std::vector<Event>& events, const LogTypes& t) {
  const auto value = [](const Event& e) {
    return e.has_value() ? std::optional<int64_t>(static_cast<int64_t>(e.value)) : std::nullopt;
  };
  const auto length = [](const Event& e) {
    return e.length >= 0 ? std::optional<int64_t>(e.length) : std::nullopt;
  };
  std::shared_ptr<arrow::Array> kinds;
  if (t.kind_number) {
    kinds = integers(events, arrow::uint8(), [](const Event& e) { return e.kind; });
  } else {
    kinds = build<arrow::StringBuilder>(
        events, [](const Event& e) { return std::optional(yambda_kinds()[e.kind]); });
    if (t.kind_dictionary) kinds = arrow::compute::DictionaryEncode(kinds)->make_array();
  }
  const std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>> columns = {
      {"uid", integers(events, t.user, [](const Event& e) { return e.user; })},
      {"timestamp", integers(events, t.time, [](const Event& e) { return e.time; })},
      {"item_id", integers(events, t.item, [](const Event& e) { return e.item; })},
      {"is_organic", integers(events, t.organic, [](const Event& e) { return e.organic; })},
      {"played_ratio_pct", cast(build<arrow::Int64Builder>(events, value), t.value)},
      {"track_length_seconds", cast(build<arrow::Int64Builder>(events, length), t.length)},
      {"event_type", kinds}};
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  return arrow::Table::Make(arrow::schema(fields), arrays);
}

void write_table(const std::string& path, const arrow::Table& table, const LogTypes& t = {}) {
  parquet::WriterProperties::Builder properties;
  if (!t.use_dictionary) properties.disable_dictionary();
  parquet::ArrowWriterProperties::Builder arrow_properties;
  arrow_properties.store_schema();
  const auto file = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  ASSERT_TRUE(parquet::arrow::WriteTable(table, arrow::default_memory_pool(), file, t.row_group,
                                         properties.build(), arrow_properties.build())
                  .ok());
  ASSERT_TRUE(file->Close().ok());
}

class PrepParquet : public testing::Test {
 protected:
  PrepParquet() : log_("raw"), events_(random_log(3000, 21)) {
    log_.put_events("events.csv", events_);
    prep(log_.config("wanted"));
    wanted_ = store_bytes(log_.folder + "/wanted");
    fs::remove(log_.folder + "/events.csv");
    // The schema is part of the store, and its files are not: keep the pattern.
    log_.schema.events = "events*.csv";
  }

  /// Any file is told by its bytes, so the pattern of the CSV log serves.
  std::string path(const std::string& name = "events.csv") const {
    return log_.folder + "/" + name;
  }
  PrepConfig config() const {
    PrepConfig c = log_.config("store");
    c.parquet = &parquet_support();
    c.overwrite = true;
    return c;
  }
  testing::AssertionResult same(const LogTypes& types, uint64_t seed = 1) {
    std::vector<Event> events = events_;
    std::mt19937_64 random(seed);
    std::shuffle(events.begin(), events.end(), random);
    write_table(path(), *table_of(events, types), types);
    prep(config());
    return same_store(wanted_, store_bytes(log_.folder + "/store"));
  }
  std::string message(ErrorCode code) {
    const auto error = error_of([this] { prep(config()); });
    if (!error) return "";
    EXPECT_EQ(error->code(), code) << error->what();
    return error->what();
  }

  RawLog log_;
  std::vector<Event> events_;
  StoreBytes wanted_;
};

TEST_F(PrepParquet, TypesOfThePublishedFiles) { EXPECT_TRUE(same({})); }

TEST_F(PrepParquet, OtherWidths) {
  const TypePtr i64 = arrow::int64(), i32 = arrow::int32();
  EXPECT_TRUE(
      same({.user = i64, .time = i64, .item = i64, .organic = i64, .value = i64, .length = i64}));
  EXPECT_TRUE(same({.user = arrow::int16(),
                    .time = arrow::uint64(),
                    .item = i32,
                    .organic = arrow::boolean(),
                    .value = arrow::float32(),
                    .length = arrow::int16()}));
  EXPECT_TRUE(same({.user = arrow::float64(),
                    .time = arrow::float64(),
                    .item = arrow::float32(),
                    .organic = arrow::int8(),
                    .value = arrow::float64(),
                    .length = arrow::float64()}));
}

TEST_F(PrepParquet, TimestampsSayTheirUnit) {
  for (const arrow::TimeUnit::type unit : {arrow::TimeUnit::SECOND, arrow::TimeUnit::MILLI,
                                           arrow::TimeUnit::MICRO, arrow::TimeUnit::NANO}) {
    LogTypes types;
    std::vector<Event> events = events_;
    const auto table = table_of(events, types);
    const auto seconds = integers(events, arrow::int64(), [](const Event& e) { return e.time; });
    const auto stamped =
        cast(cast(seconds, arrow::timestamp(arrow::TimeUnit::SECOND)), arrow::timestamp(unit));
    const auto typed = table
                           ->SetColumn(1, arrow::field("timestamp", stamped->type()),
                                       std::make_shared<arrow::ChunkedArray>(stamped))
                           .ValueOrDie();
    write_table(path(), *typed);
    prep(config());
    EXPECT_TRUE(same_store(wanted_, store_bytes(log_.folder + "/store"))) << unit;
  }
}

/// Several values are a text, as in CSV; a column of lists says how it should be written.
TEST_F(PrepParquet, SeveralValuesOfAnAttributeAreText) {
  log_.put_events("events.csv", events_);
  log_.schema.attributes = {
      {.name = "genre", .file = "genres.*", .value = "genre", .separator = "|", .max_values = 2}};
  log_.put("genres.csv", "item_id,genre\n3,War|Drama\n7,\n9,Action|War|Drama\n");
  prep(log_.config("several"));
  fs::remove(path("genres.csv"));
  arrow::Int64Builder item, number;
  arrow::StringBuilder text;
  arrow::ListBuilder list(arrow::default_memory_pool(), std::make_shared<arrow::StringBuilder>());
  ASSERT_TRUE(item.AppendValues({3, 7, 9}).ok() && number.AppendValues({3, 7, 9}).ok());
  ASSERT_TRUE(text.Append("War|Drama").ok() && text.AppendNull().ok() &&
              text.Append("Action|War|Drama").ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(list.Append().ok());
    ASSERT_TRUE(static_cast<arrow::StringBuilder*>(list.value_builder())->Append("War").ok());
  }
  const auto items = item.Finish().ValueOrDie();
  const auto put = [&](const std::shared_ptr<arrow::Array>& values) {
    write_table(path("genres.parquet"),
                *arrow::Table::Make(arrow::schema({arrow::field("item_id", items->type()),
                                                   arrow::field("genre", values->type())}),
                                    {items, values}));
  };
  put(text.Finish().ValueOrDie());
  prep(config());
  EXPECT_TRUE(same_store(store_bytes(log_.folder + "/several"), store_bytes(config().store)));
  put(list.Finish().ValueOrDie());
  const std::string nested = message(ErrorCode::kConfig);
  EXPECT_TRUE(contains(nested,
                       "is nested; several values of attribute \"genre\" are one text, "
                       "such as \"a|b\""))
      << nested;
  put(number.Finish().ValueOrDie());
  EXPECT_TRUE(contains(message(ErrorCode::kConfig), "a number, where text is needed; several"));
}

TEST_F(PrepParquet, KindsAndEncodings) {
  EXPECT_TRUE(same({.kind_dictionary = true}));
  EXPECT_TRUE(same({.kind_number = true}));
  EXPECT_TRUE(same({.use_dictionary = false}));
}

TEST_F(PrepParquet, RowGroupsAndFiles) {
  for (const int64_t row_group : {3, 1000}) EXPECT_TRUE(same({.row_group = row_group}));
  fs::remove(path());
  const std::vector<Event> first(events_.begin(), events_.begin() + 1234);
  const std::vector<Event> second(events_.begin() + 1234, events_.end());
  write_table(path("events-b.csv"), *table_of(first, {}));
  LogTypes other;
  other.user = arrow::int64();
  other.kind_dictionary = true;
  write_table(path("events-a.csv"), *table_of(second, other), other);
  write_table(path("events-c.csv"), *table_of({}, {}));
  prep(config());
  EXPECT_TRUE(same_store(wanted_, store_bytes(log_.folder + "/store")));
}

TEST_F(PrepParquet, TextIds) {
  // User numbers as texts: the order of their bytes, whether plain or in dictionaries.
  const auto texts = [](const std::vector<Event>& events, bool dictionary) {
    std::shared_ptr<arrow::Array> names = build<arrow::StringBuilder>(
        events, [](const Event& e) { return std::optional("u" + std::to_string(e.user)); });
    if (dictionary) names = arrow::compute::DictionaryEncode(names)->make_array();
    const auto table = table_of(events, {});
    return table
        ->SetColumn(0, arrow::field("uid", names->type()),
                    std::make_shared<arrow::ChunkedArray>(names))
        .ValueOrDie();
  };
  write_table(path(), *texts(events_, false));
  prep(config());
  const StoreBytes plain = store_bytes(log_.folder + "/store");
  std::vector<Event> backwards(events_.rbegin(), events_.rend());
  write_table(path(), *texts(backwards, true), {.row_group = 500});
  prep(config());
  EXPECT_TRUE(same_store(plain, store_bytes(log_.folder + "/store")));
  EXPECT_TRUE(plain.at("segue/user_ids.txt").starts_with("u1\nu10\nu100\n"));
  EXPECT_TRUE(verify_store(log_.folder + "/store").ok());
}

TEST_F(PrepParquet, Mistakes) {
  const auto table = table_of(events_, {});
  write_table(path(), *table->RemoveColumn(2).ValueOrDie());
  EXPECT_TRUE(contains(message(ErrorCode::kConfig), "has no column \"item_id\""));

  std::shared_ptr<arrow::Array> holes =
      build<arrow::Int64Builder>(events_, [n = 0](const Event& e) mutable {
        return ++n == 2500 ? std::nullopt : std::optional<int64_t>(e.item);
      });
  write_table(path(),
              *table
                   ->SetColumn(2, arrow::field("item_id", holes->type()),
                               std::make_shared<arrow::ChunkedArray>(holes))
                   .ValueOrDie(),
              {.row_group = 100});
  EXPECT_TRUE(
      contains(message(ErrorCode::kCorrupt), path() + ": row 2500: column \"item_id\" is empty"));

  std::vector<Event> negative = events_;
  negative[42].time = -5;
  write_table(path(), *table_of(negative, {.time = arrow::int32()}), {});
  EXPECT_TRUE(
      contains(message(ErrorCode::kCorrupt), "row 43: column \"timestamp\" has the time -5"));

  LogTypes fraction;
  fraction.item = arrow::float64();
  const auto halves = cast(
      build<arrow::DoubleBuilder>(
          events_, [](const Event& e) { return std::optional(static_cast<double>(e.item) / 2); }),
      arrow::float64());
  write_table(path(), *table
                           ->SetColumn(2, arrow::field("item_id", halves->type()),
                                       std::make_shared<arrow::ChunkedArray>(halves))
                           .ValueOrDie());
  EXPECT_TRUE(contains(message(ErrorCode::kCorrupt), "where an integer is needed"));

  const auto text = build<arrow::StringBuilder>(
      events_, [](const Event&) { return std::optional(std::string("x")); });
  write_table(path(), *table
                           ->SetColumn(1, arrow::field("timestamp", text->type()),
                                       std::make_shared<arrow::ChunkedArray>(text))
                           .ValueOrDie());
  EXPECT_TRUE(contains(message(ErrorCode::kCorrupt),
                       "row 1: column \"timestamp\" has \"x\" where a time such as 2026-01-31"));

  const auto price = cast(integers(events_, arrow::int64(), [](const Event& e) { return e.item; }),
                          arrow::decimal128(19, 0));
  write_table(path(), *table
                           ->SetColumn(2, arrow::field("item_id", price->type()),
                                       std::make_shared<arrow::ChunkedArray>(price))
                           .ValueOrDie());
  const std::string decimal = message(ErrorCode::kConfig);
  EXPECT_TRUE(contains(decimal,
                       "is of the type Decimal(precision=19, scale=0); bring it as "
                       "integers, double or text"))
      << decimal;
}

/// Dates as texts, and as numbers that spell them, are the times of numbers.
TEST_F(PrepParquet, TimesThatAreWritten) {
  const auto table = table_of(events_, {});
  const auto with = [&](const std::shared_ptr<arrow::Array>& times) {
    write_table(path(), *table
                             ->SetColumn(1, arrow::field("timestamp", times->type()),
                                         std::make_shared<arrow::ChunkedArray>(times))
                             .ValueOrDie());
    prep(config());
    return store_bytes(log_.folder + "/store");
  };
  const auto texts = build<arrow::StringBuilder>(
      events_, [](const Event& e) { return std::optional(base::iso_time(e.time)); });
  EXPECT_TRUE(same_store(wanted_, with(texts)));

  log_.schema.time_format = "%Y%m%d";
  const auto day_of = [](const Event& e) {
    std::string day = base::iso_time(e.time).substr(0, 10);
    std::erase(day, '-');
    return std::optional(day);
  };
  const StoreBytes days = with(build<arrow::StringBuilder>(events_, day_of));
  const auto numbers = build<arrow::Int64Builder>(
      events_, [&](const Event& e) { return std::optional<int64_t>(std::stoll(*day_of(e))); });
  EXPECT_TRUE(same_store(days, with(cast(numbers, arrow::int32()))));
  const auto stamps = cast(numbers, arrow::timestamp(arrow::TimeUnit::MILLI));
  EXPECT_TRUE(contains(error_of([&] { with(stamps); })->what(), "leave time_format out"));
}

TEST_F(PrepParquet, DamagedFiles) {
  write_table(path(), *table_of(events_, {}), {.row_group = 500});
  const std::string whole = base::read_file(path());
  for (const size_t size :
       {size_t{4}, size_t{100}, whole.size() / 2, whole.size() - 8, whole.size() - 1}) {
    base::put_file(path(), whole.substr(0, size));
    EXPECT_TRUE(contains(message(ErrorCode::kCorrupt), path() + ": damaged Parquet file")) << size;
  }
  // Zeros in the middle of the data: never a crash, and not the wanted store either.
  std::string holed = whole;
  holed.replace(whole.size() / 3, 2000, std::string(2000, '\0'));
  base::put_file(path(), holed);
  EXPECT_TRUE(error_of([this] { prep(config()); }).has_value());
  EXPECT_FALSE(base::exists(log_.folder + "/store/segue"));
}

std::shared_ptr<arrow::Table> read_table(const std::string& path) {
  const auto file = arrow::io::ReadableFile::Open(path).ValueOrDie();
  auto reader = parquet::arrow::OpenFile(file, arrow::default_memory_pool()).ValueOrDie();
  std::shared_ptr<arrow::Table> table;
  EXPECT_TRUE(reader->ReadTable(&table).ok());
  return table->CombineChunks().ValueOrDie();
}

template <class ArrayType>
const ArrayType& column(const arrow::Table& table, const std::string& name) {
  return static_cast<const ArrayType&>(*table.GetColumnByName(name)->chunk(0));
}

TEST_F(PrepParquet, Sessions) {
  write_table(path(), *table_of(events_, {}));
  PrepConfig c = config();
  c.sessions = true;
  const PrepResult r = prep(c);
  EXPECT_TRUE(verify_store(c.store).ok());

  const auto sessions = read_table(c.store + "/train_sessions.parquet");
  ASSERT_EQ(sessions->num_rows(), r.counts.sessions);
  const auto& users = column<arrow::Int64Array>(*sessions, "uid");
  const auto& ids = column<arrow::Int64Array>(*sessions, "session_id");
  const auto& times = column<arrow::ListArray>(*sessions, "timestamps");
  const auto& all_times = static_cast<const arrow::Int64Array&>(*times.values());
  ASSERT_EQ(all_times.length(), r.counts.train_events);
  // The lists, one behind the other, are the store's columns.
  const std::string flat = wanted_.at("hstu_cache_L20/flat_timestamps.npy").substr(128);
  EXPECT_EQ(flat, std::string(reinterpret_cast<const char*>(all_times.raw_values()), flat.size()));
  for (int64_t i = 0; i < sessions->num_rows(); ++i) {
    const bool same_user = i > 0 && users.Value(i) == users.Value(i - 1);
    EXPECT_EQ(ids.Value(i), same_user ? ids.Value(i - 1) + 1 : 0);
    for (int64_t k = times.value_offset(i) + (same_user ? 0 : 1); k < times.value_offset(i + 1);
         ++k) {
      const int64_t gap = all_times.Value(k) - all_times.Value(k - 1);
      EXPECT_EQ(gap > 1800, k == times.value_offset(i));
    }
  }
  const auto& ratios = static_cast<const arrow::FloatArray&>(
      *column<arrow::ListArray>(*sessions, "played_ratio_pct").values());
  EXPECT_GT(ratios.null_count(), 0);

  const auto index = read_table(c.store + "/session_index.parquet");
  ASSERT_EQ(index->num_rows(), r.counts.users);
  const auto& offsets = column<arrow::ListArray>(*index, "session_offsets");
  const auto& lens = column<arrow::ListArray>(*index, "session_lens");
  int64_t total = 0;
  for (int64_t i = 0; i < index->num_rows(); ++i) {
    int64_t sum = 0;
    for (int64_t k = offsets.value_offset(i); k < offsets.value_offset(i + 1); ++k) {
      sum += static_cast<const arrow::Int64Array&>(*lens.values()).Value(k);
      EXPECT_EQ(static_cast<const arrow::Int64Array&>(*offsets.values()).Value(k), sum);
    }
    total += sum;
  }
  EXPECT_EQ(total, r.counts.train_events);

  const auto test = read_table(c.store + "/test_events.parquet");
  EXPECT_EQ(test->num_rows(), r.counts.test_events);

  // Other files, other memory: the same bytes.
  const StoreBytes first = store_bytes(c.store);
  write_table(path(), *table_of({events_.rbegin(), events_.rend()}, {}), {.row_group = 333});
  c.run_events = 100;
  prep(c);
  EXPECT_TRUE(same_store(first, store_bytes(c.store)));
}

/// Nulls, fractions and numbers out of range, in a log whose types are right.
TEST_F(PrepParquet, RowsThatCannotBeUsedAreLeftOut) {
  LogTypes types;
  types.user = types.time = types.item = arrow::float64();
  const auto table = table_of(events_, types);
  const auto with = [&](int column, std::vector<std::optional<double>> bad) {
    arrow::DoubleBuilder builder;
    for (const std::optional<double>& value : bad) {
      EXPECT_TRUE((value ? builder.Append(*value) : builder.AppendNull()).ok());
    }
    // Rows of the log itself, the first value replaced.
    auto rows = table->Slice(0, static_cast<int64_t>(bad.size()));
    return rows
        ->SetColumn(column, rows->field(column),
                    std::make_shared<arrow::ChunkedArray>(builder.Finish().ValueOrDie()))
        .ValueOrDie();
  };
  const auto all =
      arrow::ConcatenateTables({with(0, {std::nullopt, 1.5}), table, with(1, {std::nullopt, -7}),
                                with(2, {std::nullopt, 1e18})})
          .ValueOrDie();
  write_table(log_.folder + "/events.csv", *all, types);
  PrepConfig config = log_.config("store");
  config.parquet = &parquet_support();
  const auto error = error_of([&] { prep(config); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "--skip-bad"));
  config.skip_bad = SkipLimit::parse("6");
  const PrepResult result = prep(config);
  EXPECT_EQ(result.rows.skipped, 6);
  StoreBytes made = store_bytes(config.store), wanted = wanted_;
  for (const std::string name : {kRowsFile, kSkippedFile, kManifestFile}) {
    made.erase(name);
    wanted.erase(name);
  }
  EXPECT_TRUE(same_store(wanted, made));
  EXPECT_EQ(
      base::read_file(config.store + "/" + kSkippedFile),
      "file,row,column,reason\nevents.csv,1,uid,is empty\nevents.csv,2,uid,is not an "
      "integer\nevents.csv,3003,timestamp,is empty\nevents.csv,3004,timestamp,is out of "
      "range\nevents.csv,3005,item_id,is empty\nevents.csv,3006,item_id,is a rounded number\n");
}

}  // namespace
}  // namespace segue::data
