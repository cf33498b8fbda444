#include "data/parquet/parquet_writers.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <arrow/array/array_dict.h>
#include <arrow/array/array_nested.h>
#include <arrow/array/array_primitive.h>
#include <arrow/array/builder_binary.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/array/util.h>
#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>
#include <fmt/format.h>
#include <parquet/arrow/writer.h>

#include "base/error.h"
#include "base/file.h"
#include "data/log/log_schema.h"

namespace segue::data {
namespace {

constexpr int64_t kGroupRows = 1 << 20;

/// Arrow's view of a file that appears when it is complete. Our errors pass through Arrow, which
/// knows only its own, by being kept here.
class AtomicStream final : public arrow::io::OutputStream {
 public:
  explicit AtomicStream(const std::string& path) : file_(path) {}

  arrow::Status Write(const void* data, int64_t bytes) override {
    try {
      file_.write(data, static_cast<size_t>(bytes));
      written_ += bytes;
      return arrow::Status::OK();
    } catch (...) {
      error_ = std::current_exception();
      return arrow::Status::IOError("write failed");
    }
  }
  arrow::Result<int64_t> Tell() const override { return written_; }
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }

  void commit() { file_.commit(); }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  base::AtomicFile file_;
  int64_t written_ = 0;
  std::exception_ptr error_;
  bool closed_ = false;
};

/// A Parquet file that grows by row groups and appears when it is complete.
class ParquetFile {
 public:
  ParquetFile(std::string path, std::shared_ptr<arrow::Schema> schema)
      : path_(std::move(path)), schema_(std::move(schema)) {
    base::make_folders(base::folder_of(path_));
    stream_ = std::make_shared<AtomicStream>(path_);
    parquet::WriterProperties::Builder properties;
    if (arrow::util::Codec::IsAvailable(arrow::Compression::ZSTD)) {
      properties.compression(arrow::Compression::ZSTD);
    }
    auto writer = parquet::arrow::FileWriter::Open(*schema_, arrow::default_memory_pool(), stream_,
                                                   properties.build());
    check(writer.status());
    writer_ = std::move(*writer);
  }

  void write(arrow::ArrayVector columns) {
    const int64_t rows = columns.front()->length();
    if (rows == 0) return;
    check(writer_->NewBufferedRowGroup());
    check(writer_->WriteRecordBatch(*arrow::RecordBatch::Make(schema_, rows, std::move(columns))));
  }
  void commit() {
    check(writer_->Close());
    stream_->commit();
  }

 private:
  void check(const arrow::Status& status) const {
    if (status.ok()) return;
    stream_->rethrow();
    fail(ErrorCode::kIo, fmt::format("{}: cannot be written: {}", path_, status.ToString()));
  }

  std::string path_;
  std::shared_ptr<arrow::Schema> schema_;
  std::shared_ptr<AtomicStream> stream_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
};

void check_memory(const arrow::Status& status) {
  if (!status.ok()) fail(ErrorCode::kOutOfMemory, status.ToString());
}

template <class Builder, class Value>
void append(Builder& builder, Value value, bool valid = true) {
  check_memory(valid ? builder.Append(static_cast<typename Builder::value_type>(value))
                     : builder.AppendNull());
}

std::shared_ptr<arrow::Array> take(arrow::ArrayBuilder& builder) {
  auto array = builder.Finish();
  check_memory(array.status());
  return *array;
}

std::shared_ptr<arrow::Schema> event_schema() {
  return arrow::schema(
      {arrow::field("uid", arrow::uint32()), arrow::field("timestamp", arrow::uint32()),
       arrow::field("item_id", arrow::uint32()), arrow::field("is_organic", arrow::uint8()),
       arrow::field("played_ratio_pct", arrow::uint16()),
       arrow::field("track_length_seconds", arrow::uint32()),
       arrow::field("event_type", arrow::dictionary(arrow::int8(), arrow::utf8()))});
}

class ParquetLogWriter final : public RawLogWriter {
 public:
  ParquetLogWriter(const std::string& folder, const LogSchema& schema)
      : folder_(folder), events_(folder + "/" + schema.events, event_schema()) {
    arrow::StringBuilder names;
    for (const std::string& kind : schema.kinds) check_memory(names.Append(kind));
    kind_names_ = take(names);
  }

  void add(std::span<const Event> events) override {
    for (const Event& e : events) {
      append(user_, e.user);
      append(time_, e.time);
      append(item_, e.item);
      append(organic_, e.organic);
      append(value_, e.has_value() ? e.value : 0, e.has_value());
      append(length_, e.length >= 0 ? e.length : 0, e.length >= 0);
      append(kind_, e.kind);
    }
    if (user_.length() >= kGroupRows) flush();
  }

  void add_mapping(std::string_view attribute, const AttributeRows& rows) override {
    ParquetFile file(fmt::format("{}/{}_item_mapping.parquet", folder_, attribute),
                     arrow::schema({arrow::field(fmt::format("{}_id", attribute), arrow::uint32()),
                                    arrow::field("item_id", arrow::uint32())}));
    arrow::UInt32Builder value, item;
    for (size_t i = 0; i < rows.items.size(); ++i) {
      append(value, rows.values[i]);
      append(item, rows.items[i]);
      if (item.length() == kGroupRows) file.write({take(value), take(item)});
    }
    file.write({take(value), take(item)});
    file.commit();
  }

  void finish() override {
    flush();
    events_.commit();
  }

 private:
  void flush() {
    auto kinds = arrow::DictionaryArray::FromArrays(arrow::dictionary(arrow::int8(), arrow::utf8()),
                                                    take(kind_), kind_names_);
    check_memory(kinds.status());
    events_.write({take(user_), take(time_), take(item_), take(organic_), take(value_),
                   take(length_), *kinds});
  }

  std::string folder_;
  ParquetFile events_;
  arrow::UInt32Builder user_, time_, item_, length_;
  arrow::UInt8Builder organic_;
  arrow::UInt16Builder value_;
  arrow::Int8Builder kind_;
  std::shared_ptr<arrow::Array> kind_names_;
};

std::shared_ptr<arrow::DataType> number_type(const VectorShape& shape) {
  switch (shape.number) {
    case VectorShape::Number::kF32:
      return arrow::float32();
    case VectorShape::Number::kU16:
      return arrow::uint16();
    case VectorShape::Number::kI8:
      break;
  }
  return arrow::int8();
}

class ParquetVectorWriter final : public VectorWriter {
 public:
  ParquetVectorWriter(const std::string& path, const VectorShape& shape)
      : shape_(shape), file_(path, schema_of(shape)) {}

  void write(const VectorBlock& rows) override {
    const auto count = static_cast<int64_t>(rows.ids.size());
    arrow::ArrayVector columns = {view(arrow::int64(), rows.ids.data(), count, sizeof(int64_t))};
    if (shape_.dim > 0) {
      columns.push_back(std::make_shared<arrow::FixedSizeListArray>(
          list_type(shape_), count,
          view(number_type(shape_), rows.numbers, count * shape_.dim, shape_.number_bytes())));
    }
    if (shape_.scaled) {
      columns.push_back(view(arrow::float32(), rows.scales, count, sizeof(float)));
    }
    file_.write(std::move(columns));
  }
  void finish() override { file_.commit(); }

 private:
  static std::shared_ptr<arrow::DataType> list_type(const VectorShape& shape) {
    return arrow::fixed_size_list(arrow::field("element", number_type(shape), false),
                                  static_cast<int32_t>(shape.dim));
  }
  static std::shared_ptr<arrow::Schema> schema_of(const VectorShape& shape) {
    arrow::FieldVector fields = {arrow::field("id", arrow::int64(), false)};
    if (shape.dim > 0) fields.push_back(arrow::field("weight", list_type(shape), false));
    if (shape.scaled) fields.push_back(arrow::field("scale", arrow::float32(), false));
    return arrow::schema(fields);
  }
  /// An array over the caller's memory.
  static std::shared_ptr<arrow::Array> view(const std::shared_ptr<arrow::DataType>& type,
                                            const void* data, int64_t count, int64_t bytes) {
    const auto buffer =
        std::make_shared<arrow::Buffer>(static_cast<const uint8_t*>(data), count * bytes);
    return arrow::MakeArray(arrow::ArrayData::Make(type, count, {nullptr, buffer}, 0));
  }

  VectorShape shape_;
  ParquetFile file_;
};

template <class Builder, class Value>
std::shared_ptr<arrow::Array> array_of(std::span<const Value> values) {
  Builder builder;
  check_memory(builder.AppendValues(values.data(), static_cast<int64_t>(values.size())));
  return take(builder);
}

std::shared_ptr<arrow::Array> array_of(std::span<const std::string> texts) {
  arrow::StringBuilder builder;
  for (const std::string& text : texts) check_memory(builder.Append(text));
  return take(builder);
}

}  // namespace

std::unique_ptr<RawLogWriter> make_parquet_log_writer(const std::string& folder,
                                                      const std::string& size_name) {
  return std::make_unique<ParquetLogWriter>(folder, LogSchema::preset("yambda-" + size_name));
}

std::unique_ptr<VectorWriter> make_vector_writer(const std::string& path,
                                                 const VectorShape& shape) {
  return std::make_unique<ParquetVectorWriter>(path, shape);
}

void write_parquet_table(const std::string& path, std::span<const TableColumn> columns) {
  arrow::FieldVector fields;
  for (const TableColumn& c : columns) {
    fields.push_back(arrow::field(c.name, c.is_text()   ? arrow::utf8()
                                          : c.is_real() ? arrow::float32()
                                                        : arrow::int64()));
  }
  ParquetFile file(path, arrow::schema(fields));
  const size_t rows = columns.empty() ? 0 : columns.front().size();
  for (size_t first = 0; first < rows; first += static_cast<size_t>(kGroupRows)) {
    const size_t count = std::min(static_cast<size_t>(kGroupRows), rows - first);
    arrow::ArrayVector arrays;
    for (const TableColumn& c : columns) {
      arrays.push_back(
          c.is_text() ? array_of(std::span(c.texts).subspan(first, count))
          : c.is_real()
              ? array_of<arrow::FloatBuilder>(std::span(c.reals).subspan(first, count))
              : array_of<arrow::Int64Builder>(std::span(c.integers).subspan(first, count)));
    }
    file.write(std::move(arrays));
  }
  file.commit();
}

}  // namespace segue::data
