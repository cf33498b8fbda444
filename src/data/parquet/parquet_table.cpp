#include "data/parquet/parquet_table.h"

#include <algorithm>

#include <arrow/array/builder_primitive.h>

#include "data/parquet/parquet_file.h"

namespace segue::data {
namespace {

constexpr size_t kGroupRows = 1 << 20;

template <class Builder, class Value>
std::shared_ptr<arrow::Array> array_of(std::span<const Value> values) {
  Builder builder;
  check_memory(builder.AppendValues(values.data(), static_cast<int64_t>(values.size())));
  return take(builder);
}

}  // namespace

void write_parquet_table(const std::string& path, std::span<const TableColumn> columns) {
  arrow::FieldVector fields;
  for (const TableColumn& c : columns) {
    fields.push_back(arrow::field(c.name, c.is_real() ? arrow::float32() : arrow::int64()));
  }
  ParquetFile file(path, arrow::schema(fields));
  const size_t rows = columns.empty() ? 0 : columns.front().size();
  for (size_t first = 0; first < rows; first += kGroupRows) {
    const size_t count = std::min(kGroupRows, rows - first);
    arrow::ArrayVector arrays;
    for (const TableColumn& c : columns) {
      arrays.push_back(
          c.is_real() ? array_of<arrow::FloatBuilder>(std::span(c.reals).subspan(first, count))
                      : array_of<arrow::Int64Builder>(std::span(c.integers).subspan(first, count)));
    }
    file.write(std::move(arrays));
  }
  file.commit();
}

}  // namespace segue::data
