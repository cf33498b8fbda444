#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include <arrow/array/builder_base.h>
#include <arrow/io/interfaces.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>
#include <fmt/format.h>
#include <parquet/arrow/writer.h>

#include "base/error.h"
#include "base/file.h"

namespace segue::data {

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
    base::make_folders(std::filesystem::path(path_).parent_path());
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

inline void check_memory(const arrow::Status& status) {
  if (!status.ok()) fail(ErrorCode::kOutOfMemory, status.ToString());
}

template <class Builder, class Value>
void append(Builder& builder, Value value, bool valid = true) {
  check_memory(valid ? builder.Append(static_cast<typename Builder::value_type>(value))
                     : builder.AppendNull());
}

inline std::shared_ptr<arrow::Array> take(arrow::ArrayBuilder& builder) {
  auto array = builder.Finish();
  check_memory(array.status());
  return *array;
}

}  // namespace segue::data
