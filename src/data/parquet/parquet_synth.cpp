#include "data/parquet/parquet_synth.h"

#include <utility>

#include <arrow/array/array_dict.h>
#include <arrow/array/builder_binary.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/type.h>
#include <fmt/format.h>

#include "data/log_schema.h"
#include "data/parquet/parquet_file.h"

namespace segue::data {
namespace {

constexpr int64_t kGroupRows = 1 << 20;

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

}  // namespace

std::unique_ptr<RawLogWriter> make_parquet_log_writer(const std::string& folder,
                                                      const std::string& size_name) {
  return std::make_unique<ParquetLogWriter>(folder, LogSchema::preset("yambda-" + size_name));
}

}  // namespace segue::data
