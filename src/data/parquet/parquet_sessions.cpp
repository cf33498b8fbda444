#include "data/parquet/parquet_sessions.h"

#include <exception>
#include <string>
#include <utility>

#include <arrow/array/builder_nested.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/io/interfaces.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>
#include <fmt/format.h>
#include <parquet/arrow/writer.h>

#include "base/error.h"

namespace segue::data {
namespace {

constexpr int64_t kGroupValues = 1 << 20;  // list elements, or rows, of a row group

/// Arrow's view of a file that we write and hash ourselves. Our errors pass through Arrow, which
/// knows only its own, by being kept here.
class HashedStream final : public arrow::io::OutputStream {
 public:
  explicit HashedStream(const std::string& path) : file_(path) {}

  arrow::Status Write(const void* data, int64_t bytes) override {
    try {
      file_.write(data, static_cast<size_t>(bytes));
      return arrow::Status::OK();
    } catch (...) {
      error_ = std::current_exception();
      return arrow::Status::IOError("write failed");
    }
  }
  arrow::Result<int64_t> Tell() const override { return file_.size(); }
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }

  base::FileRecord finish() { return file_.finish(); }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  base::HashedFile file_;
  std::exception_ptr error_;
  bool closed_ = false;
};

/// A Parquet file that grows by record batches, one row group each.
class TableFile {
 public:
  TableFile(const StoreStage& stage, std::string name, std::shared_ptr<arrow::Schema> schema)
      : name_(std::move(name)),
        schema_(std::move(schema)),
        stream_(std::make_shared<HashedStream>(stage.path(name_))) {
    parquet::WriterProperties::Builder properties;
    if (arrow::util::Codec::IsAvailable(arrow::Compression::ZSTD)) {
      properties.compression(arrow::Compression::ZSTD);
    }
    auto writer = parquet::arrow::FileWriter::Open(*schema_, arrow::system_memory_pool(), stream_,
                                                   properties.build());
    check(writer.status());
    writer_ = std::move(*writer);
  }

  void write(arrow::ArrayVector columns) {
    const int64_t rows = columns.front()->length();
    check(writer_->NewBufferedRowGroup());
    check(writer_->WriteRecordBatch(*arrow::RecordBatch::Make(schema_, rows, std::move(columns))));
  }
  base::FileRecord finish() {
    check(writer_->Close());
    base::FileRecord record = stream_->finish();
    record.name = name_;
    return record;
  }
  void check(const arrow::Status& status) const {
    if (status.ok()) return;
    stream_->rethrow();
    fail(ErrorCode::kIo, fmt::format("{}: cannot be written: {}", name_, status.ToString()));
  }

 private:
  std::string name_;
  std::shared_ptr<arrow::Schema> schema_;
  std::shared_ptr<HashedStream> stream_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
};

/// Columns that events have in every file.
struct EventBuilders {
  arrow::Int64Builder time, item;
  arrow::UInt8Builder kind, organic;
  arrow::FloatBuilder value;
  arrow::Int32Builder length;
};

template <class Builder, class Value>
void append(Builder& builder, Value value, bool valid = true) {
  const arrow::Status status = valid ? builder.Append(value) : builder.AppendNull();
  if (!status.ok()) fail(ErrorCode::kOutOfMemory, status.ToString());
}

std::shared_ptr<arrow::Array> take(arrow::ArrayBuilder& builder) {
  auto array = builder.Finish();
  if (!array.ok()) fail(ErrorCode::kOutOfMemory, array.status().ToString());
  return *array;
}

/// A list column over a builder of its elements.
template <class Builder>
class ListColumn {
 public:
  template <class Value>
  void add(Value value, bool valid = true) {
    append(*elements_, value, valid);
  }
  void begin() {
    const arrow::Status status = lists_.Append();
    if (!status.ok()) fail(ErrorCode::kOutOfMemory, status.ToString());
  }
  int64_t elements() const { return elements_->length(); }
  std::shared_ptr<arrow::Array> finish() { return take(lists_); }

 private:
  std::shared_ptr<Builder> elements_ = std::make_shared<Builder>();
  arrow::ListBuilder lists_{arrow::system_memory_pool(), elements_};
};

std::shared_ptr<arrow::Field> list_field(const char* name,
                                         const std::shared_ptr<arrow::DataType>& type) {
  return arrow::field(name, arrow::list(type));
}

class ParquetSessionWriter final : public SessionWriter {
 public:
  explicit ParquetSessionWriter(StoreStage& stage)
      : sessions_(
            stage, "train_sessions.parquet",
            arrow::schema(
                {arrow::field("uid", arrow::int64()), arrow::field("session_id", arrow::int64()),
                 list_field("item_ids", arrow::int64()), list_field("timestamps", arrow::int64()),
                 list_field("event_types", arrow::uint8()),
                 list_field("is_organic", arrow::uint8()),
                 list_field("played_ratio_pct", arrow::float32()),
                 list_field("track_length_seconds", arrow::int32())})),
        index_(stage, "session_index.parquet",
               arrow::schema({arrow::field("uid", arrow::int64()),
                              list_field("session_ids", arrow::int64()),
                              list_field("session_lens", arrow::int64()),
                              list_field("session_offsets", arrow::int64())})),
        test_(stage, "test_events.parquet",
              arrow::schema({arrow::field("uid", arrow::int64()),
                             arrow::field("timestamp", arrow::int64()),
                             arrow::field("item_id", arrow::int64()),
                             arrow::field("is_organic", arrow::uint8()),
                             arrow::field("played_ratio_pct", arrow::float32()),
                             arrow::field("track_length_seconds", arrow::int32()),
                             arrow::field("event_type", arrow::uint8())})) {}

  void add_session(int64_t session, std::span<const Event> events) override {
    const int64_t user = events.front().user;
    add_to_index(user, session, static_cast<int64_t>(events.size()));
    append(session_user_, user);
    append(session_id_, session);
    items_.begin(), times_.begin(), kinds_.begin(), organic_.begin();
    values_.begin(), lengths_.begin();
    for (const Event& e : events) {
      items_.add(e.item);
      times_.add(e.time);
      kinds_.add(e.kind);
      organic_.add(static_cast<uint8_t>(e.organic));
      values_.add(e.value, e.has_value());
      lengths_.add(e.length, e.length >= 0);
    }
    if (items_.elements() >= kGroupValues) flush_sessions();
  }

  void add_test(const Event& e) override {
    append(test_user_, e.user);
    append(test_event_.time, e.time);
    append(test_event_.item, e.item);
    append(test_event_.organic, static_cast<uint8_t>(e.organic));
    append(test_event_.value, e.value, e.has_value());
    append(test_event_.length, e.length, e.length >= 0);
    append(test_event_.kind, e.kind);
    if (test_user_.length() >= kGroupValues) flush_test();
  }

  std::vector<base::FileRecord> finish() override {
    flush_sessions();
    flush_index();
    flush_test();
    return {sessions_.finish(), index_.finish(), test_.finish()};
  }

 private:
  void add_to_index(int64_t user, int64_t session, int64_t length) {
    if (session == 0) {
      if (offsets_.elements() >= kGroupValues) flush_index();
      append(index_user_, user);
      ids_.begin(), lens_.begin(), offsets_.begin();
      offset_ = 0;
    }
    offset_ += length;
    ids_.add(session);
    lens_.add(length);
    offsets_.add(offset_);
  }

  void flush_sessions() {
    sessions_.write({take(session_user_), take(session_id_), items_.finish(), times_.finish(),
                     kinds_.finish(), organic_.finish(), values_.finish(), lengths_.finish()});
  }
  void flush_index() {
    index_.write({take(index_user_), ids_.finish(), lens_.finish(), offsets_.finish()});
  }
  void flush_test() {
    test_.write({take(test_user_), take(test_event_.time), take(test_event_.item),
                 take(test_event_.organic), take(test_event_.value), take(test_event_.length),
                 take(test_event_.kind)});
  }

  TableFile sessions_, index_, test_;
  arrow::Int64Builder session_user_, session_id_, index_user_, test_user_;
  ListColumn<arrow::Int64Builder> items_, times_, ids_, lens_, offsets_;
  ListColumn<arrow::UInt8Builder> kinds_, organic_;
  ListColumn<arrow::FloatBuilder> values_;
  ListColumn<arrow::Int32Builder> lengths_;
  EventBuilders test_event_;
  int64_t offset_ = 0;
};

}  // namespace

std::unique_ptr<SessionWriter> make_session_writer(StoreStage& stage) {
  return std::make_unique<ParquetSessionWriter>(stage);
}

}  // namespace segue::data
