#include "data/propose/column_shapes.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/log/time_format.h"
#include "data/propose/proposal_words.h"

namespace segue::data {
namespace {

constexpr double kMostFit = 0.99;                               // a few values may be wrong
constexpr size_t kFirst = 200;                                  // values that are looked at first
constexpr int64_t kEarliest = 631152000, kLatest = 4102444800;  // 1990, 2100

// Of texts. The first that fits is taken, another is named beside it.
constexpr const char* kDateFormats[] = {"%m/%d/%Y",  "%d/%m/%Y",  "%d.%m.%Y", "%d-%m-%Y",
                                        "%m-%d-%Y",  "%Y/%m/%d",  "%Y-%m-%d", "%m/%d/%y",
                                        "%d/%m/%y",  "%d.%m.%y",  "%d-%m-%y", "%m-%d-%y",
                                        "%m %d, %Y", "%b %d, %Y", "%d %b %Y"};
constexpr const char* kDayTimeFormats[] = {" %I:%M:%S %p", " %I:%M %p", " %H:%M:%S", " %H:%M", ""};
constexpr const char* kOtherFormats[] = {"%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %z %Y"};
// In numbers every digit counts.
constexpr const char* kNumberFormats[] = {"%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d%H",
                                          "%Y%m%d",       "%y%m%d%H",   "%y%m%d"};

std::vector<std::string> make_text_formats() {
  std::vector<std::string> formats;
  for (const char* const date : kDateFormats) {
    for (const char* const time : kDayTimeFormats) formats.push_back(std::string(date) + time);
  }
  formats.insert(formats.end(), std::begin(kOtherFormats), std::end(kOtherFormats));
  return formats;
}
const std::vector<std::string>& text_formats() {
  static const std::vector<std::string> kFormats = make_text_formats();
  return kFormats;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool has_digit(std::string_view text) { return std::ranges::any_of(text, is_digit); }

bool is_written_as(std::string_view text, const std::string& format) {
  int64_t seconds = 0;
  return parse_time(text, format, seconds) && seconds >= kEarliest && seconds < kLatest;
}

bool fits(const ColumnSample& c, const std::string& format) {
  int64_t rows = 0, seen = 0;
  for (size_t v = 0; v < c.values.size(); ++v) {
    seen += c.counts[v];
    rows += is_written_as(c.values[v], format) ? c.counts[v] : 0;
    if (v + 1 == kFirst && rows * 2 < seen) return false;
  }
  return rows > 0 && static_cast<double>(rows) >= kMostFit * static_cast<double>(seen);
}

template <class Holds>
double share_of(const ColumnSample& c, Holds holds) {
  int64_t rows = 0, seen = 0;
  for (size_t v = 0; v < c.values.size(); ++v) {
    seen += c.counts[v];
    rows += holds(c.values[v]) ? c.counts[v] : 0;
  }
  return seen == 0 ? 0 : static_cast<double>(rows) / static_cast<double>(seen);
}

/// No descriptions, of which every word would be looked at.
bool is_short(const ColumnSample& c) {
  constexpr size_t kLongest = 200;  // on average
  size_t bytes = 0;
  for (const std::string& value : c.values) bytes += value.size();
  return bytes <= kLongest * c.values.size();
}

}  // namespace

bool parse_number(std::string_view text, double& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() && std::isfinite(value);
}

WrittenTimes written_times(const ColumnSample& c, bool numbers) {
  WrittenTimes times;
  if (c.values.size() < 2) return times;
  if ((c.type == ColumnSample::Type::kInteger || c.numbers_as_text) && numbers) {
    for (const char* const format : kNumberFormats) {
      if (times.format.empty() && fits(c, format)) times.format = format;
    }
  }
  if (c.type != ColumnSample::Type::kText || !times.format.empty()) return times;
  for (const std::string& format : text_formats()) {
    if (!fits(c, format)) continue;
    (times.format.empty() ? times.format : times.other) = format;
    if (!times.other.empty()) break;
  }
  return times;
}

bool is_row_number(const ColumnSample& c) {
  constexpr size_t kEnough = 50;
  return c.values.size() >= kEnough && static_cast<int64_t>(c.values.size()) == c.present();
}

bool is_written_time(std::string_view text) {
  return std::ranges::any_of(
      text_formats(), [&](const std::string& format) { return is_written_as(text, format); });
}

/// Ids in two pieces, such as "AB12 34XL", and times look alike, but every piece has its place.
bool holds_several_items(const ColumnSample& c) {
  if (c.type != ColumnSample::Type::kText) return false;
  std::unordered_map<std::string_view, size_t> places;  // of tokens
  size_t least = std::numeric_limits<size_t>::max(), most = 0;
  bool moves = false;
  const double several = share_of(c, [&](std::string_view text) {
    size_t items = 0;
    while (!text.empty()) {
      const std::string_view token = text.substr(0, text.find(' '));
      if (!has_digit(token)) return false;
      moves = moves || places.emplace(token, items).first->second != items;
      ++items;
      text.remove_prefix(std::min(token.size() + 1, text.size()));
    }
    least = std::min(least, items);
    most = std::max(most, items);
    return items > 1;
  });
  constexpr size_t kPieces = 2;
  return several > 0.5 && (moves || (most > kPieces && least < most)) &&
         written_times(c, false).format.empty();
}

SeveralValues several_values(const ColumnSample& c, int64_t room) {
  constexpr int64_t kMostKept = 8;
  constexpr double kEnough = 0.9;
  if (c.type != ColumnSample::Type::kText || !is_short(c)) return {};
  for (const char separator : {'|', ';', ','}) {
    SeveralValues s{.separator = std::string(1, separator)};
    std::map<int64_t, int64_t> rows;  // by number of values
    int64_t fields = 0;
    for (size_t v = 0; v < c.values.size(); ++v) {
      int64_t n = 0;
      for (size_t begin = 0; begin <= c.values[v].size(); ++n) {
        const size_t end = std::min(c.values[v].find(separator, begin), c.values[v].size());
        s.values.insert(c.values[v].substr(begin, end - begin));
        begin = end + 1;
      }
      fields += n > 1 ? 1 : 0;
      rows[n] += c.counts[v];
    }
    s.share = share(fields, std::ssize(c.values));
    if (s.share <= (separator == ',' ? 0.5 : 0.25)) continue;  // commas are in titles, too
    if (s.values.size() >= c.values.size()) continue;
    s.most = rows.rbegin()->first;
    for (const auto& [n, count] : rows) {
      if (s.enough >= kEnough || n > std::min(kMostKept, room)) break;
      s.kept = n;
      s.enough += share(count, c.present());
    }
    if (s.kept > 1) return s;
  }
  return {};
}

Threshold most_even_threshold(const ColumnSample& c) {
  std::vector<std::pair<double, int64_t>> values;
  for (size_t v = 0; v < c.values.size(); ++v) {
    if (!std::isnan(c.number(v))) values.emplace_back(c.number(v), c.counts[v]);
  }
  std::ranges::sort(values, std::greater<>());
  int64_t above = 0, all = 0;
  for (const auto& [number, count] : values) all += count;
  Threshold best{.value = values.front().first};
  for (const auto& [number, count] : values) {
    above += count;
    if (above == all) break;
    const double part = share(above, all);
    if (std::abs(part - 0.5) >= std::abs(best.share - 0.5) && best.share < 1) continue;
    best = {number, part};
  }
  return best;
}

bool has_brackets(const ColumnSample& c) {
  if (c.type != ColumnSample::Type::kText) return false;
  return share_of(c, [](std::string_view text) {
           return (text.starts_with('[') && text.ends_with(']')) ||
                  (text.starts_with('{') && text.ends_with('}'));
         }) > 0.5;
}

bool has_decimal_commas(const ColumnSample& c) {
  if (c.type != ColumnSample::Type::kText) return false;
  return share_of(c, [](std::string_view text) {
           const size_t comma = text.find(',');
           return comma != std::string_view::npos && comma > 0 && comma + 1 < text.size() &&
                  text.find_first_not_of("0123456789,-") == std::string_view::npos &&
                  text.find(',', comma + 1) == std::string_view::npos;
         }) > 0.5;
}

}  // namespace segue::data
