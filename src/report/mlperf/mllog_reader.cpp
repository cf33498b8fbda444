#include "report/mlperf/mllog_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace segue::report {
namespace {

using Json = nlohmann::json;

std::string utf8_of_latin1(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      out += c;
    } else {
      out += static_cast<char>(0xC0 | (byte >> 6));
      out += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return out;
}

/// A number of JSON whose exponent takes it beyond all doubles; Python reads it as infinity.
bool is_too_large(const std::string& number) {
  const size_t exponent = number.find_first_of("eE");
  if (exponent == number.npos || !Json::accept(number.substr(0, exponent))) return false;
  const size_t sign = number[exponent + 1] == '-' || number[exponent + 1] == '+' ? 1 : 0;
  const std::string digits = number.substr(exponent + 1 + sign);
  return !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos &&
         std::isinf(std::strtod(number.c_str(), nullptr));
}

/// Python writes and reads NaN and Infinity, which JSON does not have. They become texts that begin
/// with a zero byte, and value_of() makes numbers of them.
std::string with_marked_nan(const std::string& json) {
  std::string out;
  bool in_text = false;
  for (size_t i = 0; i < json.size();) {
    if (json[i] == '"') in_text = !in_text;
    if (in_text) {
      if (json[i] == '\\' && i + 1 < json.size()) out += json[i++];
      out += json[i++];
      continue;
    }
    std::string_view marked;
    for (const std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
      if (json.compare(i, word.size(), word) == 0) marked = word;
    }
    size_t size = marked.size();
    if (marked.empty()) {
      size = std::min(json.find_first_not_of("0123456789+-.eE", i), json.size()) - i;
      if (is_too_large(json.substr(i, size))) marked = json[i] == '-' ? "-Infinity" : "Infinity";
    }
    size = std::max<size_t>(size, 1);
    out += marked.empty() ? json.substr(i, size) : fmt::format("\"\\u0000{}\"", marked);
    i += size;
  }
  return out;
}

MllogValue text_or_nan(std::string text) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!text.starts_with('\0')) return text;
  const std::string_view word = std::string_view(text).substr(1);
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (word == "Infinity") return kInfinity;
  if (word == "-Infinity") return -kInfinity;
  return text;
}

MllogValue value_of(const Json& json) {
  if (json.is_null()) return std::monostate{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) return json.get<double>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return text_or_nan(json.get<std::string>());
  return MllogRaw{json.dump(-1, ' ', /*ensure_ascii=*/true)};  // as Python writes it
}

/// What Python's float() makes of it.
std::optional<double> time_of(const Json& json) {
  const MllogValue read = value_of(json);
  if (const std::optional<double> number = as_number(read)) return number;
  if (!json.is_string()) return std::nullopt;
  const std::string& text = std::get<std::string>(read);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// MLPerf's reader, in Python, gives up at about a thousand levels; here the text of a value is
/// made by a call per level.
bool is_too_deep(std::string_view json) {
  constexpr int kMostLevels = 500;
  int level = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text && c == '\\') ++i;
    if (c == '"') in_text = !in_text;
    if (in_text) continue;
    if ((c == '[' || c == '{') && ++level > kMostLevels) return true;
    if (c == ']' || c == '}') --level;
  }
  return false;
}

/// What is wrong with the object; empty: nothing.
std::string missing_in(const Json& json) {
  if (!json.is_object()) return "the event is no JSON object";
  for (const char* field : {"time_ms", "key", "value", "metadata"}) {
    if (!json.contains(field)) return fmt::format("the event has no `{}`", field);
  }
  if (!time_of(json["time_ms"])) return "`time_ms` is no number";
  return "";
}

/// Python's strip() of a latin-1 line takes these away, too.
std::string_view without_trailing_space(std::string_view line) {
  const size_t last = line.find_last_not_of(" \t\v\f\x1c\x1d\x1e\x1f\x85\xa0");
  return line.substr(0, last + 1);
}

}  // namespace

const MllogValue* MllogEvent::find(std::string_view name) const {
  if (!metadata) return nullptr;
  for (const auto& entry : *metadata) {
    if (entry.first == name) return &entry.second;
  }
  return nullptr;
}

std::vector<MllogLine> split_mllog(std::string_view text) {
  std::vector<MllogLine> lines;
  MllogPlace place;
  while (!text.empty()) {
    ++place.line;
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    const std::string_view line = text.substr(0, end);
    const size_t token = line.rfind(kMllogToken);
    if (token != line.npos) {
      const std::string_view json = line.substr(token + kMllogToken.size());
      lines.push_back({place, utf8_of_latin1(without_trailing_space(json))});
      ++place.number;
    }
    text.remove_prefix(end);
    if (!text.empty()) text.remove_prefix(text.starts_with("\r\n") ? 2 : 1);
  }
  return lines;
}

void parse_mllog_line(const MllogLine& line, MllogFile& file) {
  if (is_too_deep(line.json)) {
    file.problems.push_back({line.place, "the JSON is nested too deeply"});
    return;
  }
  // A zero byte, of which a crash may leave many, would end the text for this parser.
  const bool cut = line.json.find('\0') != line.json.npos;
  const Json json = cut ? Json(Json::value_t::discarded)
                        : Json::parse(with_marked_nan(line.json), nullptr, false);
  const std::string trouble = json.is_discarded()
                                  ? "what follows the token is no JSON, "
                                    "perhaps a line that was cut or mixed with another"
                                  : missing_in(json);
  if (!trouble.empty()) {
    file.problems.push_back({line.place, trouble});
    return;
  }
  MllogEvent event;
  event.place = line.place;
  event.time_ms = *time_of(json["time_ms"]);
  if (json["key"].is_string()) event.key = json["key"].get<std::string>();
  event.value = value_of(json["value"]);
  if (json["metadata"].is_object()) {
    event.metadata.emplace();
    for (const auto& [name, value] : json["metadata"].items()) {
      event.metadata->emplace_back(name, value_of(value));
    }
  }
  file.events.push_back(std::move(event));
}

MllogFile read_mllog(const std::string& path) {
  MllogFile file;
  for (const MllogLine& line : split_mllog(base::read_file(path))) parse_mllog_line(line, file);
  return file;
}

bool is_whole_mllog_line(std::string_view line) {
  MllogFile file;
  for (const MllogLine& part : split_mllog(line)) parse_mllog_line(part, file);
  return !file.events.empty() && file.problems.empty();
}

std::optional<double> as_number(const MllogValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  if (const int64_t* count = std::get_if<int64_t>(&value)) return static_cast<double>(*count);
  if (const double* real = std::get_if<double>(&value)) return *real;
  return std::nullopt;
}

bool same_value(const MllogValue& a, const MllogValue& b) {
  if (a == b) return true;
  const std::optional<double> left = as_number(a), right = as_number(b);
  const bool both_counts = std::holds_alternative<int64_t>(a) && std::holds_alternative<int64_t>(b);
  return left && right && !both_counts && *left == *right;
}

}  // namespace segue::report
