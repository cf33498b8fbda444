#include "data/propose/column_shapes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "data/log/time_format.h"
#include "data/propose/proposal_words.h"

namespace segue::data {
namespace {

constexpr double kMostFit = 0.99;                               // a few values may be wrong
constexpr size_t kFirst = 200;                                  // values that are looked at first
constexpr int64_t kEarliest = 631152000, kLatest = 4102444800;  // 1990, 2100

// The first that fits is taken; in numbers every digit counts.
constexpr const char* kTextFormats[] = {"%m/%d/%Y %I:%M:%S %p",
                                        "%m/%d/%Y %I:%M %p",
                                        "%m/%d/%Y %H:%M:%S",
                                        "%m/%d/%Y %H:%M",
                                        "%m/%d/%Y",
                                        "%d/%m/%Y %I:%M:%S %p",
                                        "%d/%m/%Y %I:%M %p",
                                        "%d/%m/%Y %H:%M:%S",
                                        "%d/%m/%Y %H:%M",
                                        "%d/%m/%Y",
                                        "%d.%m.%Y %H:%M:%S",
                                        "%d.%m.%Y %H:%M",
                                        "%d.%m.%Y",
                                        "%d-%m-%Y %H:%M:%S",
                                        "%d-%m-%Y %H:%M",
                                        "%d-%m-%Y",
                                        "%Y/%m/%d %H:%M:%S",
                                        "%Y/%m/%d %H:%M",
                                        "%Y/%m/%d",
                                        "%Y-%m-%d %I:%M:%S %p",
                                        "%m/%d/%y %H:%M:%S",
                                        "%m/%d/%y %H:%M",
                                        "%m/%d/%y",
                                        "%m %d, %Y",
                                        "%b %d, %Y",
                                        "%d %b %Y",
                                        "%d/%b/%Y:%H:%M:%S %z",
                                        "%a %b %d %H:%M:%S %z %Y"};
constexpr const char* kNumberFormats[] = {"%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d%H",
                                          "%Y%m%d",       "%y%m%d%H",   "%y%m%d"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool has_digit(std::string_view text) { return std::ranges::any_of(text, is_digit); }

bool fits(const ColumnSample& c, const char* format) {
  int64_t rows = 0, seen = 0;
  for (size_t v = 0; v < c.values.size(); ++v) {
    int64_t seconds = 0;
    const bool fine =
        parse_time(c.values[v], format, seconds) && seconds >= kEarliest && seconds < kLatest;
    seen += c.counts[v];
    rows += fine ? c.counts[v] : 0;
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

}  // namespace

WrittenTimes written_times(const ColumnSample& c, bool numbers) {
  WrittenTimes times;
  if (c.values.size() < 2) return times;
  if (c.type == ColumnSample::Type::kInteger && numbers) {
    for (const char* const format : kNumberFormats) {
      if (times.format.empty() && fits(c, format)) times.format = format;
    }
  }
  if (c.type != ColumnSample::Type::kText) return times;
  for (const char* const format : kTextFormats) {
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

bool holds_several_items(const ColumnSample& c) {
  if (c.type != ColumnSample::Type::kText) return false;
  return share_of(c, [](std::string_view text) {
           size_t items = 0;
           while (!text.empty()) {
             const size_t end = std::min(text.find(' '), text.size());
             if (!has_digit(text.substr(0, end))) return false;
             ++items;
             text.remove_prefix(std::min(end + 1, text.size()));
           }
           return items > 1;
         }) > 0.5;
}

SeveralValues several_values(const ColumnSample& c, int64_t room) {
  constexpr int64_t kMostKept = 8;
  constexpr double kEnough = 0.9;
  if (c.type != ColumnSample::Type::kText) return {};
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
