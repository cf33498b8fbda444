#include <charconv>
#include <filesystem>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/file.h"
#include "data/log/log_schema.h"
#include "data/synth/synth_output.h"

namespace segue::data {
namespace {

/// Lines put together in memory and written in large pieces.
class CsvFile {
 public:
  CsvFile(const std::string& path, std::string_view header) : file_(path) {
    buffer_.reserve(kBufferBytes + kLongestLine);
    buffer_ += header;
    buffer_ += '\n';
  }
  void number(int64_t value) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
    buffer_.append(digits, end);
  }
  void comma() { buffer_ += ','; }
  void text(std::string_view value) { buffer_ += value; }
  void end_line() {
    buffer_ += '\n';
    if (buffer_.size() >= kBufferBytes) flush();
  }
  void commit() {
    flush();
    file_.commit();
  }

 private:
  static constexpr size_t kBufferBytes = 1 << 20, kLongestLine = 256;
  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }

  base::AtomicFile file_;
  std::string buffer_;
};

std::string in_folder_of(const std::string& path) {
  base::make_folders(base::folder_of(path));
  return path;
}

class CsvLogWriter : public RawLogWriter {
 public:
  CsvLogWriter(const std::string& folder, const std::string& size_name)
      : folder_(folder),
        schema_(csv_schema(size_name)),
        events_(in_folder_of(folder + "/" + schema_.events),
                "uid,timestamp,item_id,is_organic,played_ratio_pct,track_length_seconds,"
                "event_type") {}

  void add(std::span<const Event> events) override {
    for (const Event& e : events) {
      for (const int64_t value : {e.user, e.time, e.item, int64_t{e.organic}}) {
        events_.number(value);
        events_.comma();
      }
      if (e.has_value()) events_.number(static_cast<int64_t>(e.value));
      events_.comma();
      if (e.length >= 0) events_.number(e.length);
      events_.comma();
      events_.text(schema_.kinds[e.kind]);
      events_.end_line();
    }
  }

  void add_mapping(std::string_view attribute, const AttributeRows& rows) override {
    CsvFile file(fmt::format("{}/{}_item_mapping.csv", folder_, attribute),
                 fmt::format("{}_id,item_id", attribute));
    for (size_t i = 0; i < rows.items.size(); ++i) {
      file.number(rows.values[i]);
      file.comma();
      file.number(rows.items[i]);
      file.end_line();
    }
    file.commit();
  }

  void finish() override {
    base::write_file(folder_ + "/schema.toml", base::to_toml(schema_));
    events_.commit();
  }

 private:
  /// The preset with the names of these files in it.
  static LogSchema csv_schema(const std::string& size_name) {
    const auto as_csv = [](std::string& file) {
      file = std::filesystem::path(file).replace_extension(".csv").string();
    };
    LogSchema schema = LogSchema::preset("yambda-" + size_name);
    as_csv(schema.events);
    for (AttributeFile& a : schema.attributes) as_csv(a.file);
    return schema;
  }

  std::string folder_;
  LogSchema schema_;
  CsvFile events_;
};

}  // namespace

std::unique_ptr<RawLogWriter> make_csv_log_writer(const std::string& folder,
                                                  const std::string& size_name) {
  return std::make_unique<CsvLogWriter>(folder, size_name);
}

}  // namespace segue::data
