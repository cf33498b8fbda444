#include "data/parquet/parquet_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <arrow/memory_pool.h>
#include <fmt/format.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>

#include "base/error.h"
#include "data/log/iso_time.h"
#include "data/log/time_format.h"
#include "data/parquet/parquet_file.h"

namespace segue::data {
namespace {

constexpr double kLargestInteger = 9.2e18;  // as a double, safely inside int64

/// Names at the top of the schema; a nested column has the name of its outermost group.
std::vector<std::string> column_names(const parquet::SchemaDescriptor& schema) {
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(schema.num_columns()));
  for (int i = 0; i < schema.num_columns(); ++i) {
    names.push_back(schema.Column(i)->path()->ToDotVector().front());
  }
  return names;
}

/// What the integers of a column stand for.
struct IntegerMeaning {
  bool is_unsigned = false;
  double unit_seconds = 0;
};

IntegerMeaning meaning_of(const parquet::LogicalType& type) {
  IntegerMeaning meaning;
  if (type.is_int()) {
    meaning.is_unsigned = !static_cast<const parquet::IntLogicalType&>(type).is_signed();
  } else if (type.is_timestamp()) {
    switch (static_cast<const parquet::TimestampLogicalType&>(type).time_unit()) {
      case parquet::LogicalType::TimeUnit::MILLIS:
        meaning.unit_seconds = 1e-3;
        break;
      case parquet::LogicalType::TimeUnit::MICROS:
        meaning.unit_seconds = 1e-6;
        break;
      default:
        meaning.unit_seconds = 1e-9;
    }
  } else if (type.is_date()) {
    meaning.unit_seconds = 86400;
  }
  return meaning;
}

/// "nested; bring ...": why nothing is made of a column; empty: it can be read.
std::string why_unreadable(const parquet::ColumnDescriptor& column) {
  if (column.max_repetition_level() > 0 || column.path()->ToDotVector().size() > 1) {
    return "nested; bring one value a row, or several as a text such as "
           "\"a|b\" (see separator)";
  }
  const parquet::Type::type type = column.physical_type();
  if (column.logical_type()->is_decimal() || type == parquet::Type::INT96 ||
      type == parquet::Type::FIXED_LEN_BYTE_ARRAY) {
    return fmt::format(
        "of the type {}; bring it as {}",
        column.logical_type()->is_none() ? parquet::TypeToString(type)
                                         : column.logical_type()->ToString(),
        type == parquet::Type::INT96 ? "a timestamp of microseconds" : "integers, double or text");
  }
  return "";
}

/// One column, from row group to row group.
class ColumnSource {
 public:
  ColumnSource(const std::string& path, const parquet::SchemaDescriptor& schema,
               const ColumnRequest& request)
      : path_(path),
        request_(request),
        index_(static_cast<int>(find_column(path, column_names(schema), request.name))),
        descriptor_(*schema.Column(index_)),
        meaning_(meaning_of(*descriptor_.logical_type())) {
    check_type();
  }

  void begin(parquet::RowGroupReader& group) { reader_ = group.Column(index_); }

  /// Replaces `column` by the next `rows` rows; `first_row` is for messages. Rows that cannot be
  /// read are added to `bad`; null: they are an Error.
  void read(RawColumn& column, size_t rows, int64_t first_row, std::vector<BadRow>* bad) {
    column.clear();
    bad_ = bad;
    column.untyped = false;
    column.unit_seconds = has_written_times() ? 1 : meaning_.unit_seconds;
    first_row_ = first_row;
    switch (descriptor_.physical_type()) {
      case parquet::Type::BOOLEAN:
        return read_as<parquet::BooleanType>(column, rows);
      case parquet::Type::INT32:
        return read_as<parquet::Int32Type>(column, rows);
      case parquet::Type::INT64:
        return read_as<parquet::Int64Type>(column, rows);
      case parquet::Type::FLOAT:
        return read_as<parquet::FloatType>(column, rows);
      case parquet::Type::DOUBLE:
        return read_as<parquet::DoubleType>(column, rows);
      default:
        return read_as<parquet::ByteArrayType>(column, rows);
    }
  }

 private:
  void check_type() const {
    const parquet::Type::type type = descriptor_.physical_type();
    const bool text = type == parquet::Type::BYTE_ARRAY;
    const std::string why = why_unreadable(descriptor_);
    // The hint says better what to bring.
    if (!why.empty()) fail_type(text_hint().empty() ? why : why.substr(0, why.find(';')));
    const bool wants_text = request_.role == ColumnRole::kText;
    if (request_.role == ColumnRole::kTime && meaning_.unit_seconds > 0 &&
        !request_.time_format.empty()) {
      fail_type("a timestamp, which says itself what it means; leave time_format out");
    }
    if (request_.role == ColumnRole::kTime && text) return;
    if (wants_text && request_.exact) return;  // ids
    if (request_.role != ColumnRole::kKind && text != wants_text) {
      fail_type(text ? "text, where numbers are needed" : "a number, where text is needed");
    }
  }
  [[noreturn]] void fail_type(const std::string& what) const {
    fail(ErrorCode::kConfig, fmt::format("{}: column \"{}\" is {}{}", path_,
                                         descriptor_.path()->ToDotString(), what, text_hint()));
  }
  std::string text_hint() const { return request_.role == ColumnRole::kText ? request_.hint : ""; }

  /// Times as texts, or as numbers that spell a date, such as 20260131.
  bool has_written_times() const {
    return request_.role == ColumnRole::kTime &&
           (descriptor_.physical_type() == parquet::Type::BYTE_ARRAY ||
            !request_.time_format.empty());
  }

  int64_t written_time(std::string_view text, size_t row) const {
    int64_t seconds = 0;
    const std::string& format = request_.time_format;
    if (format.empty() ? parse_iso_time(text, seconds) : parse_time(text, format, seconds)) {
      return seconds;
    }
    fail_row(path_, first_row_ + static_cast<int64_t>(row), {request_.name, "is not a time"},
             fmt::format("column \"{}\" has \"{}\" where a time {} is needed{}", request_.name,
                         text.substr(0, 80),
                         format.empty() ? "such as 2026-01-31T23:59:59Z"
                                        : fmt::format("as time_format = \"{}\"", format),
                         request_.hint));
  }

  template <class ParquetType>
  void read_as(RawColumn& column, size_t rows) {
    using Value = typename ParquetType::c_type;
    auto& reader = static_cast<parquet::TypedColumnReader<ParquetType>&>(*reader_);
    const bool nullable = descriptor_.max_definition_level() > 0;
    levels_.resize(rows);
    Values<Value> values(rows);
    for (size_t done = 0; done < rows;) {
      int64_t found = 0;
      const int64_t n =
          reader.ReadBatch(static_cast<int64_t>(rows - done), nullable ? levels_.data() : nullptr,
                           nullptr, values.data(), &found);
      if (n <= 0) throw parquet::ParquetException("a column has fewer rows than its row group");
      int64_t next = 0;
      for (int64_t i = 0; i < n; ++i) {
        const size_t row = done + static_cast<size_t>(i);
        const bool valid = !nullable || levels_[i] == descriptor_.max_definition_level();
        if (!valid || !column.valid.empty()) {
          column.valid.resize(row, 1);
          column.valid.push_back(valid ? 1 : 0);
        }
        take(column, valid ? values.data()[next++] : Value{}, row, valid);
      }
      done += static_cast<size_t>(n);
    }
  }

  /// vector<bool> has no data().
  template <class Value>
  class Values {
   public:
    explicit Values(size_t size) : values_(new Value[size]) {}
    Value* data() { return values_.get(); }

   private:
    std::unique_ptr<Value[]> values_;
  };

  void take(RawColumn& column, const parquet::ByteArray& value, size_t row, bool valid) const {
    const std::string_view text =
        valid ? std::string_view(reinterpret_cast<const char*>(value.ptr), value.len) : "";
    if (request_.role == ColumnRole::kTime) {
      column.type = RawColumn::Type::kInteger;
      column.integers.push_back(valid ? integer_or_bad([&] { return written_time(text, row); }, row)
                                      : 0);
      return;
    }
    column.type = RawColumn::Type::kText;
    if (request_.role == ColumnRole::kKind) {
      column.codes.push_back(column.texts.find_or_add(text));
    } else {
      column.codes.push_back(static_cast<uint32_t>(column.texts.size()));
      column.texts.add(text);
    }
  }

  template <class Number>
  void take(RawColumn& column, Number value, size_t row, bool valid) const {
    if (request_.role == ColumnRole::kNumber) {
      column.type = RawColumn::Type::kNumber;
      column.numbers.push_back(to_number(value));
    } else {
      column.type = RawColumn::Type::kInteger;
      column.integers.push_back(valid ? integer_or_bad(
                                            [&] {
                                              return has_written_times()
                                                         ? written_time(fmt::to_string(value), row)
                                                         : to_integer(value, row);
                                            },
                                            row)
                                      : 0);
    }
  }

  template <class Convert>
  int64_t integer_or_bad(Convert convert, size_t row) const {
    try {
      return convert();
    } catch (const RowError& error) {
      if (bad_ == nullptr) throw;
      bad_->push_back({row, error.fault()});
      return 0;
    }
  }

  template <class Number>
  double to_number(Number value) const {
    if constexpr (std::is_same_v<Number, int32_t>) {
      if (meaning_.is_unsigned) return static_cast<uint32_t>(value);
    } else if constexpr (std::is_same_v<Number, int64_t>) {
      if (meaning_.is_unsigned) return static_cast<double>(static_cast<uint64_t>(value));
    }
    return static_cast<double>(value);
  }

  template <class Number>
  int64_t to_integer(Number value, size_t row) const {
    if constexpr (std::is_floating_point_v<Number>) {
      // Neighbours of the first integer that the type skips may have become it.
      constexpr auto kFirstGap =
          static_cast<Number>(int64_t{1} << std::numeric_limits<Number>::digits);
      if (request_.exact && std::abs(value) >= kFirstGap) {
        fail_rounded(path_, first_row_ + static_cast<int64_t>(row), request_.name,
                     fmt::format("{}", value));
      }
      const bool whole = request_.role == ColumnRole::kWhole || request_.role == ColumnRole::kTime;
      const double floor = std::floor(static_cast<double>(value));
      if (!(std::abs(floor) < kLargestInteger) || (!whole && floor != static_cast<double>(value))) {
        fail_value(fmt::format("{}", value), row);
      }
      return static_cast<int64_t>(floor);
    } else if constexpr (std::is_same_v<Number, int32_t>) {
      return meaning_.is_unsigned ? int64_t{static_cast<uint32_t>(value)} : int64_t{value};
    } else {
      if (meaning_.is_unsigned && static_cast<int64_t>(value) < 0) {
        fail_row(path_, first_row_ + static_cast<int64_t>(row),
                 {request_.name, "is beyond 64 bits with a sign"},
                 fmt::format("column \"{}\" has {}, more than an integer of 64 bits with a sign "
                             "holds; cast the column to text",
                             request_.name, static_cast<uint64_t>(value)));
      }
      return static_cast<int64_t>(value);
    }
  }
  [[noreturn]] void fail_value(const std::string& value, size_t row) const {
    fail_row(path_, first_row_ + static_cast<int64_t>(row), {request_.name, "is not an integer"},
             fmt::format("column \"{}\" has {} where an integer is needed{}", request_.name, value,
                         request_.hint));
  }

  std::string path_;
  ColumnRequest request_;
  int index_;
  const parquet::ColumnDescriptor& descriptor_;
  IntegerMeaning meaning_;
  std::shared_ptr<parquet::ColumnReader> reader_;
  std::vector<int16_t> levels_;
  int64_t first_row_ = 0;
  std::vector<BadRow>* bad_ = nullptr;
};

class ParquetReader final : public TableReader {
 public:
  ParquetReader(const std::string& path, const std::vector<ColumnRequest>& columns,
                size_t block_rows, bool mark_bad_rows)
      : path_(path),
        block_rows_(block_rows),
        mark_bad_rows_(mark_bad_rows),
        file_(open_parquet_file(path)) {
    const std::shared_ptr<parquet::FileMetaData> metadata = file_->metadata();
    total_rows_ = metadata->num_rows();
    for (const ColumnRequest& request : columns) {
      columns_.push_back(std::make_unique<ColumnSource>(path, *metadata->schema(), request));
    }
    for (int i = 0; i < metadata->num_row_groups(); ++i) {
      file_bytes_ += metadata->RowGroup(i)->total_compressed_size();
    }
  }

  bool read(RawBlock& block) override {
    return translated(path_, [this, &block] { return read_block(block); });
  }
  int64_t bytes_read() const override {
    return total_rows_ == 0
               ? 0
               : static_cast<int64_t>(static_cast<double>(file_bytes_) * static_cast<double>(row_) /
                                      static_cast<double>(total_rows_));
  }

 private:
  bool read_block(RawBlock& block) {
    while (left_in_group_ == 0) {
      if (group_ == file_->metadata()->num_row_groups()) return false;
      row_group_ = file_->RowGroup(group_++);
      left_in_group_ = row_group_->metadata()->num_rows();
      for (const auto& column : columns_) column->begin(*row_group_);
    }
    block.columns.resize(columns_.size());
    block.rows = static_cast<size_t>(std::min(static_cast<int64_t>(block_rows_), left_in_group_));
    block.first_row = row_;
    block.bad.clear();
    for (size_t i = 0; i < columns_.size(); ++i) {
      columns_[i]->read(block.columns[i], block.rows, row_, mark_bad_rows_ ? &block.bad : nullptr);
    }
    // Of a row with several mistakes the first column's counts.
    std::ranges::stable_sort(block.bad, {}, &BadRow::row);
    const auto of_one_row = [](const BadRow& a, const BadRow& b) { return a.row == b.row; };
    block.bad.erase(std::unique(block.bad.begin(), block.bad.end(), of_one_row), block.bad.end());
    row_ += static_cast<int64_t>(block.rows);
    left_in_group_ -= static_cast<int64_t>(block.rows);
    return true;
  }

  std::string path_;
  size_t block_rows_;
  bool mark_bad_rows_;
  std::unique_ptr<parquet::ParquetFileReader> file_;
  std::vector<std::unique_ptr<ColumnSource>> columns_;
  std::shared_ptr<parquet::RowGroupReader> row_group_;
  int64_t total_rows_ = 0;
  int64_t file_bytes_ = 0;
  int group_ = 0;
  int64_t left_in_group_ = 0;
  int64_t row_ = 0;
};

}  // namespace

void fail_damaged_parquet(const std::string& path, const std::exception& error) {
  fail(ErrorCode::kCorrupt, fmt::format("{}: damaged Parquet file: {}", path, error.what()));
}

std::unique_ptr<parquet::ParquetFileReader> open_parquet_file(const std::string& path) {
  constexpr int64_t kColumnBuffer = 256 << 10;
  // Column chunks are read piece by piece, and memory goes back to the system: peak memory does not
  // depend on how the file was cut into row groups.
  parquet::ReaderProperties properties(arrow::system_memory_pool());
  properties.enable_buffered_stream();
  properties.set_buffer_size(kColumnBuffer);
  properties.set_page_checksum_verification(true);
  return parquet::ParquetFileReader::OpenFile(path, /*memory_map=*/false, properties);
}

std::unique_ptr<TableReader> open_parquet(const std::string& path,
                                          const std::vector<ColumnRequest>& columns,
                                          size_t block_rows, bool mark_bad_rows) {
  return translated(path, [&] {
    return std::make_unique<ParquetReader>(path, columns, block_rows, mark_bad_rows);
  });
}

std::vector<ParquetColumn> parquet_columns(const std::string& path) {
  return translated(path, [&] {
    const auto file = open_parquet_file(path);
    const parquet::SchemaDescriptor& schema = *file->metadata()->schema();
    const std::vector<std::string> names = column_names(schema);
    std::vector<ParquetColumn> columns;
    for (int i = 0; i < schema.num_columns(); ++i) {
      const parquet::ColumnDescriptor& column = *schema.Column(i);
      ParquetColumn c{.name = names[static_cast<size_t>(i)]};
      c.unreadable = why_unreadable(column);
      switch (column.physical_type()) {
        case parquet::Type::BYTE_ARRAY:
          break;
        case parquet::Type::BOOLEAN:
        case parquet::Type::INT32:
        case parquet::Type::INT64:
          c.role = meaning_of(*column.logical_type()).unit_seconds > 0 ? ColumnRole::kTime
                                                                       : ColumnRole::kInteger;
          break;
        case parquet::Type::FLOAT:
        case parquet::Type::DOUBLE:
          c.role = ColumnRole::kNumber;
          break;
        default:
          break;
      }
      columns.push_back(std::move(c));
    }
    return columns;
  });
}

bool is_text_column(const std::string& path, const std::string& column) {
  return translated(path, [&] {
    const auto file = open_parquet_file(path);
    const parquet::SchemaDescriptor& schema = *file->metadata()->schema();
    const size_t index = find_column(path, column_names(schema), column);
    return schema.Column(static_cast<int>(index))->physical_type() == parquet::Type::BYTE_ARRAY;
  });
}

}  // namespace segue::data
