#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>

#include "base/error.h"
#include "data/parquet/parquet_file.h"
#include "data/parquet/parquet_reader.h"

namespace segue::data {
namespace {

/// Every number of a file of vectors is there: it says so in its schema, and its lists have equal
/// lengths.
class ParquetVectorReader final : public VectorReader {
 public:
  ParquetVectorReader(const std::string& path, const VectorShape& shape)
      : path_(path), shape_(shape), file_(open_parquet_file(path)) {
    const parquet::SchemaDescriptor& schema = *file_->metadata()->schema();
    const bool f32 = shape.number == VectorShape::Number::kF32;
    std::vector<std::pair<std::string, parquet::Type::type>> wanted = {
        {"id", parquet::Type::INT64}};
    if (shape.dim > 0) {
      wanted.emplace_back("weight", f32 ? parquet::Type::FLOAT : parquet::Type::INT32);
    }
    if (shape.scaled) wanted.emplace_back("scale", parquet::Type::FLOAT);
    bool fits = schema.num_columns() == static_cast<int>(wanted.size());
    for (int i = 0; fits && i < schema.num_columns(); ++i) {
      const auto& [name, type] = wanted[static_cast<size_t>(i)];
      const int levels = name == "weight" ? 1 : 0;
      const parquet::ColumnDescriptor& column = *schema.Column(i);
      fits = column.path()->ToDotVector().front() == name && column.physical_type() == type &&
             column.max_repetition_level() == levels && column.max_definition_level() == levels;
    }
    if (!fits) fail(ErrorCode::kCorrupt, path + ": has other columns than a table of vectors");
  }

  int64_t rows() const override { return file_->metadata()->num_rows(); }
  bool read(VectorBlock& block) override {
    return translated(path_, [&] { return read_block(block); });
  }

 private:
  bool read_block(VectorBlock& block) {
    constexpr int64_t kBlockNumbers = 1 << 17;
    while (left_in_group_ == 0) {
      if (group_ == file_->metadata()->num_row_groups()) {
        if (row_ != rows()) throw parquet::ParquetException("row groups have another sum of rows");
        return false;
      }
      row_group_ = file_->RowGroup(group_++);
      left_in_group_ = row_group_->metadata()->num_rows();
      if (left_in_group_ < 0) throw parquet::ParquetException("a row group has no possible size");
      columns_.clear();
      for (int i = 0; i < row_group_->metadata()->num_columns(); ++i) {
        columns_.push_back(row_group_->Column(i));
      }
    }
    const int64_t most = std::max<int64_t>(1, kBlockNumbers / std::max<int64_t>(1, shape_.dim));
    const auto count = static_cast<size_t>(std::min(most, left_in_group_));
    read_flat<parquet::Int64Type>(0, count, ids_);
    if (shape_.dim > 0) read_weights(count);
    if (shape_.scaled) read_flat<parquet::FloatType>(2, count, scales_);
    left_in_group_ -= static_cast<int64_t>(count);
    row_ += static_cast<int64_t>(count);
    block = {ids_, numbers_.data(), scales_.data()};
    return true;
  }

  /// Fills `values`, and the levels of a list.
  template <class ParquetType>
  void read_column(size_t column, std::vector<typename ParquetType::c_type>& values, bool list) {
    auto& reader = static_cast<parquet::TypedColumnReader<ParquetType>&>(*columns_[column]);
    definition_.resize(list ? values.size() : 0);
    repetition_.resize(definition_.size());
    for (size_t done = 0; done < values.size();) {
      int64_t found = 0;
      const int64_t n = reader.ReadBatch(
          static_cast<int64_t>(values.size() - done), list ? &definition_[done] : nullptr,
          list ? &repetition_[done] : nullptr, &values[done], &found);
      if (n <= 0 || found != n) throw parquet::ParquetException("a column has too few values");
      done += static_cast<size_t>(n);
    }
  }
  template <class ParquetType>
  void read_flat(size_t column, size_t rows, std::vector<typename ParquetType::c_type>& values) {
    values.resize(rows);
    read_column<ParquetType>(column, values, false);
  }

  void read_weights(size_t rows) {
    const auto dim = static_cast<size_t>(shape_.dim);
    const size_t count = rows * dim;
    numbers_.resize(count * static_cast<size_t>(shape_.number_bytes()));
    if (shape_.number == VectorShape::Number::kF32) {
      floats_.resize(count);
      read_column<parquet::FloatType>(1, floats_, true);
      std::memcpy(numbers_.data(), floats_.data(), numbers_.size());
    } else {
      integers_.resize(count);
      read_column<parquet::Int32Type>(1, integers_, true);
      if (shape_.number == VectorShape::Number::kU16) narrow<uint16_t>();
      if (shape_.number == VectorShape::Number::kI8) narrow<int8_t>();
    }
    for (size_t i = 0; i < count; ++i) {
      if (repetition_[i] != (i % dim == 0 ? 0 : 1)) {
        throw parquet::ParquetException("a list has another length");
      }
    }
  }
  template <class Number>
  void narrow() {
    for (size_t i = 0; i < integers_.size(); ++i) {
      if (!std::in_range<Number>(integers_[i])) {
        throw parquet::ParquetException("a number is too large for its type");
      }
      const auto number = static_cast<Number>(integers_[i]);
      std::memcpy(&numbers_[i * sizeof(Number)], &number, sizeof(Number));
    }
  }

  std::string path_;
  VectorShape shape_;
  std::unique_ptr<parquet::ParquetFileReader> file_;
  std::shared_ptr<parquet::RowGroupReader> row_group_;
  std::vector<std::shared_ptr<parquet::ColumnReader>> columns_;
  int group_ = 0;
  int64_t left_in_group_ = 0, row_ = 0;
  std::vector<int64_t> ids_;
  std::vector<float> floats_, scales_;
  std::vector<int32_t> integers_;
  std::vector<int16_t> definition_, repetition_;
  std::vector<std::byte> numbers_;
};

}  // namespace

std::unique_ptr<VectorReader> open_vectors(const std::string& path, const VectorShape& shape) {
  return translated(path, [&] { return std::make_unique<ParquetVectorReader>(path, shape); });
}

}  // namespace segue::data
