#include "report/mlperf/mllog.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "report/mlperf/mllog_reader.h"

namespace segue::report {
namespace {

using Json = nlohmann::ordered_json;

/// As Python's repr: plain decimals for exponents -4 .. 15, else a mantissa and at least two digits
/// of exponent.
std::string python_number(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific);
  const std::string_view scientific(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  const size_t e = scientific.find('e');
  int exponent = 0;
  std::from_chars(buffer.data() + e + 2, end.ptr, exponent);  // behind the sign
  if (scientific[e + 1] == '-') exponent = -exponent;
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", scientific.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  std::string digits;
  for (const char c : scientific.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  const std::string sign = std::signbit(value) ? "-" : "";
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole + 1) digits.resize(whole + 1, '0');
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string quote(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

struct ToText {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return python_number(value); }
  std::string operator()(const std::string& value) const { return quote(value); }
  std::string operator()(const MllogRaw& value) const { return value.text; }
};

/// The path from the root of the repository, however the compiler was given it.
std::string trimmed(std::string_view file) {
  const size_t root = file.rfind("/src/");
  if (root != std::string_view::npos) file.remove_prefix(root + 1);
  return std::string(file);
}

std::string metadata_text(const MllogMetadata& metadata, const MllogWriter::Location& at) {
  MllogMetadata all = {{"file", trimmed(at.file_name())}, {"lineno", int64_t{at.line()}}};
  for (const auto& [name, value] : metadata) {
    bool replaced = false;
    for (auto& entry : all) {
      if (entry.first != name) continue;
      entry.second = value;
      replaced = true;
    }
    if (!replaced) all.emplace_back(name, value);
  }
  std::string text;
  for (const auto& [name, value] : all) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", quote(name), mllog_text(value));
  }
  return "{" + text + "}";
}

/// The convergence checker of MLPerf finds these events by looking for the word anywhere in a line.
void check_words(std::string_view key, const std::string& line) {
  for (const std::string_view word : kMllogWords) {
    size_t found = 0;
    for (size_t at = line.find(word); at != line.npos; at = line.find(word, at + 1)) ++found;
    if (found == (key == word ? 1u : 0u)) continue;
    fail(ErrorCode::kInvalidArgument,
         fmt::format("MLPerf log: the event `{}` has the word `{}` in its value, metadata or file "
                     "name; MLPerf's checkers would misread the line. Use another word.",
                     key, word));
  }
}

}  // namespace

std::string mllog_text(const MllogValue& value) { return std::visit(ToText{}, value); }

MllogWriter::MllogWriter(std::string path, Mode mode, base::WhenFull when_full)
    : path_(std::move(path)) {
  if (mode == Mode::kAppend && base::exists(path_)) {
    const std::string text = base::read_file(path_);
    const std::string_view last = std::string_view(text).substr(text.rfind('\n') + 1);
    if (!last.empty()) lead_ = is_whole_mllog_line(last) ? "\n" : " ";
  }
  const int descriptor =
      mode == Mode::kTruncate
          ? base::create_file(path_, O_APPEND)
          : ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    fail(ErrorCode::kIo,
         fmt::format("{}: cannot open the MLPerf log: {}", path_, std::strerror(errno)));
  }
  file_ = std::make_unique<base::AppendFile>(path_, descriptor, when_full);
}

void MllogWriter::event(std::string_view key, const MllogValue& value,
                        const MllogMetadata& metadata, const Location& at) {
  write("POINT_IN_TIME", key, value, metadata, at);
}
void MllogWriter::start(std::string_view key, const MllogValue& value,
                        const MllogMetadata& metadata, const Location& at) {
  write("INTERVAL_START", key, value, metadata, at);
}
void MllogWriter::end(std::string_view key, const MllogValue& value, const MllogMetadata& metadata,
                      const Location& at) {
  write("INTERVAL_END", key, value, metadata, at);
}

void MllogWriter::write(std::string_view type, std::string_view key, const MllogValue& value,
                        const MllogMetadata& metadata, const Location& at) {
  const std::string json = fmt::format(
      R"({{"namespace": "", "time_ms": {}, "event_type": "{}", "key": {}, "value": {}, "metadata": {}}})",
      base::unix_time_ms(), type, quote(std::string(key)), mllog_text(value),
      metadata_text(metadata, at));
  check_words(key, json);
  file_->append(fmt::format("{}{}{}\n", lead_, kMllogToken, json));
  lead_.clear();
}

}  // namespace segue::report
