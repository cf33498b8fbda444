#include "data/propose/csv_look.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "data/log/byte_source.h"
#include "data/log/iso_time.h"
#include "data/propose/column_shapes.h"

namespace segue::data {
namespace {

constexpr size_t kHeadBytes = 64 << 10;
constexpr const char* kSeparators[] = {"::", "\t", ";", "|", ","};

/// Fields of a line. Quotes mean something where a field begins, as for the reader of CSV files.
std::vector<std::string> split(std::string_view line, std::string_view separator) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (separator.size() == 1 && line[i] == '"' && (quoted || fields.back().empty())) {
      const bool doubled = quoted && line.substr(i + 1).starts_with('"');
      if (doubled) {
        fields.back() += line[++i];
      } else {
        quoted = !quoted;
      }
    } else if (!quoted && line.substr(i).starts_with(separator)) {
      fields.emplace_back();
      i += separator.size() - 1;
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

struct Head {
  std::string text;    // the beginning of a file
  bool whole = false;  // it is all of it
};

Head read_head(const std::string& path) {
  const ByteSource source = open_bytes(path);
  Head head{.text = std::string(kHeadBytes, '\0')};
  std::string& text = head.text;
  text.resize(source.read(text.data(), text.size()));
  head.whole = text.size() < kHeadBytes;
  check_csv_text(path, text);
  if (text.find('\0') != std::string::npos) {
    fail(ErrorCode::kUnsupported, "is neither Parquet nor text");
  }
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // byte order mark
  return head;
}

/// With `quotes` a line end between two of them is part of a field.
std::vector<std::string> first_lines(const Head& head, bool quotes) {
  constexpr size_t kLines = 32;
  const std::string& text = head.text;
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin < text.size() && lines.size() < kLines) {
    bool inside = false;
    size_t end = begin;
    while (end < text.size() && (inside || text[end] != '\n')) {
      inside = text[end] == '"' && quotes ? !inside : inside;
      ++end;
    }
    if (end == text.size() && (!head.whole || inside)) break;
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

/// What stands between the fields of most lines, and how many there are; at least two.
size_t find_separator(const std::vector<std::string>& lines, std::string& separator) {
  size_t most = 1;
  for (const char* const candidate : kSeparators) {
    const size_t fields = lines.empty() ? 0 : split(lines.front(), candidate).size();
    const auto same = std::ranges::count_if(
        lines, [&](const std::string& line) { return split(line, candidate).size() == fields; });
    if (fields > most && same * 10 >= std::ssize(lines) * 8) {
      most = fields;
      separator = candidate;
    }
  }
  return most;
}

/// "7, 12, 1": the blank is no part of a field. Quotes mean nothing with such a separator.
bool has_blanks_behind_commas(const std::string& line) {
  for (size_t i = line.find(','); i != std::string::npos; i = line.find(',', i + 1)) {
    if (i + 1 >= line.size() || line[i + 1] != ' ') return false;
  }
  return line.find('"') == std::string::npos;
}

/// What no column is called: numbers and times.
bool is_data(const std::string& field) {
  const auto is = [&](int (*kind)(int)) {
    return std::ranges::any_of(field,
                               [kind](char c) { return kind(static_cast<unsigned char>(c)) != 0; });
  };
  const bool letters =
      is(std::isalpha) || std::ranges::any_of(field, [](char c) { return (c & 0x80) != 0; });
  double ignored = 0;
  int64_t seconds = 0;
  return (is(std::isdigit) && !letters) || parse_number(field, ignored) ||
         parse_iso_time(field, seconds) || is_written_time(field);
}

/// Whether a field of the first line is a value of its column further down, too, as in a table of
/// texts alone that has no header line.
bool comes_again(const std::vector<std::string>& names, const std::vector<std::string>& lines,
                 const std::string& separator) {
  for (const std::string& line : lines) {
    if (line == lines.front()) continue;  // files in one, each with its header line
    const std::vector<std::string> fields = split(line, separator);
    for (size_t i = 0; i < std::min(names.size(), fields.size()); ++i) {
      if (!names[i].empty() && fields[i] == names[i]) return true;
    }
  }
  return false;
}

}  // namespace

CsvFormat look_at_csv(const std::string& path, std::vector<std::string>& names) {
  const Head head = read_head(path);
  if (head.text.find_first_not_of("\r\n") == std::string::npos)
    fail(ErrorCode::kCorrupt, "is empty");
  std::vector<std::string> lines = first_lines(head, false);
  CsvFormat format;
  if (find_separator(lines, format.separator) < 2) {
    lines = first_lines(head, true);  // a quote may also be just a character
    if (find_separator(lines, format.separator) < 2) {
      fail(ErrorCode::kUnsupported, "has no columns that can be told apart");
    }
  }
  if (format.separator == "," && std::ranges::all_of(lines, has_blanks_behind_commas)) {
    format.separator = ", ";
  }
  names = split(lines.front(), format.separator);
  if (std::ranges::any_of(names, is_data) || comes_again(names, lines, format.separator)) {
    for (size_t i = 0; i < names.size(); ++i) names[i] = fmt::format("column{}", i + 1);
    format.columns = names;
  }
  return format;
}

}  // namespace segue::data
