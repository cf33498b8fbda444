#include "data/propose/column_times.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "data/log/iso_time.h"
#include "data/log/time_format.h"
#include "data/propose/column_words.h"
#include "data/propose/proposal_words.h"

namespace segue::data {
namespace {

constexpr double kAlmostAll = 0.99;  // a few values may be wrong
constexpr double kDaySeconds = 86400;

/// The unit in which almost all of a column are times of our days; 0: none.
double unit_of(const ColumnSample& c) {
  if (c.type == ColumnSample::Type::kTime) return c.unit_seconds;
  if (c.type == ColumnSample::Type::kText || c.values.empty()) return 0;
  constexpr double kFrom = 631152000, kTo = 4102444800;  // 1990, 2100
  for (const double unit : {1.0, 1e-3, 1e-6, 1e-9}) {
    int64_t fit = 0;
    for (size_t v = 0; v < c.values.size(); ++v) {
      const double seconds = c.number(v) * unit;
      fit += seconds >= kFrom && seconds < kTo ? c.counts[v] : 0;
    }
    if (static_cast<double>(fit) >= kAlmostAll * static_cast<double>(c.present())) return unit;
  }
  return 0;
}

/// Of the rows with a value.
template <class Holds>
bool almost_all(const ColumnSample& c, Holds holds) {
  int64_t rows = 0;
  for (size_t v = 0; v < c.values.size(); ++v) rows += holds(v) ? c.counts[v] : 0;
  return rows > 0 && static_cast<double>(rows) >= kAlmostAll * static_cast<double>(c.present());
}

/// "eventdate" is a time if its values are; "playtime" is not.
bool ends_like_a_time(const std::string& name) {
  return std::ranges::any_of(words_of(name), [](const std::string& word) {
    return word.ends_with("time") || word.ends_with("date") || word.ends_with("stamp");
  });
}

/// How much a column looks like the time of events; 0: it is none. A day without its hour is less
/// than any finer time, and a number is a time by its size alone only if nothing else is one.
int time_score(const ColumnSample& c) {
  bool named = any_word(c.name, kTimeWords) && !any_word(c.name, kUserWords);
  const bool ends = ends_like_a_time(c.name);
  // Avazu's "hour" is 14102100; hours of a day are not.
  const TimeForm form = time_form(c, named || ends || any_word(c.name, kHourWords));
  named = named || (ends && form.known);
  const bool says_so = c.type == ColumnSample::Type::kTime || !form.written.format.empty();
  if (!form.known || c.values.size() < 2) {
    const bool number = c.type != ColumnSample::Type::kText || c.numbers_as_text;
    return named && number ? 3 : 0;
  }
  if (has_whole_days(c, form)) return named ? 4 : says_so ? 2 : 1;
  if (named) return says_so ? 7 : 6;
  return says_so ? 5 : 1;
}

}  // namespace

double TimeForm::seconds(const ColumnSample& c, size_t value) const {
  int64_t date = 0;
  const std::string& text = c.values[value];
  if (!written.format.empty()) {
    return parse_time(text, written.format, date) ? static_cast<double>(date) : std::nan("");
  }
  const bool dates = c.type == ColumnSample::Type::kTime && c.unit_seconds == 1;
  if (!dates) return c.number(value) * unit_seconds;
  return parse_iso_time(text, date) ? static_cast<double>(date) : std::nan("");
}

TimeForm time_form(const ColumnSample& c, bool numbers) {
  TimeForm form{.written = written_times(c, numbers)};
  const double unit = form.written.format.empty() ? unit_of(c) : 0;
  form.known = unit > 0 || !form.written.format.empty();
  if (unit > 0) form.unit_seconds = unit;
  return form;
}

bool has_whole_days(const ColumnSample& c, const TimeForm& form) {
  return form.known && almost_all(c, [&](size_t value) {
           return std::fmod(form.seconds(c, value), kDaySeconds) == 0;
         });
}

bool is_time_of_day(const ColumnSample& c) {
  if (c.type == ColumnSample::Type::kInteger) {
    return any_word(c.name, kHourWords) && words_of(c.name).back() == "hour" && c.min >= 0 &&
           c.max <= 23 && c.values.size() > 2;
  }
  return c.type == ColumnSample::Type::kText && almost_all(c, [&](size_t value) {
           int64_t ignored = 0;
           const std::string& text = c.values[value];
           return text.find(':') != std::string::npos &&
                  (parse_iso_time("2000-01-01 " + text, ignored) ||
                   parse_time("2000-01-01 " + text, "%Y-%m-%d %I:%M:%S %p", ignored) ||
                   parse_time("2000-01-01 " + text, "%Y-%m-%d %I:%M %p", ignored));
         });
}

std::vector<const ColumnSample*> find_times(const TableSample& table) {
  std::vector<std::pair<int, const ColumnSample*>> scores;
  for (const ColumnSample& c : table.columns) {
    if (const int score = time_score(c); score > 0) scores.emplace_back(score, &c);
  }
  std::ranges::stable_sort(scores, std::greater<>(), [](const auto& s) { return s.first; });
  std::vector<const ColumnSample*> times;
  times.reserve(scores.size());
  for (const auto& [score, column] : scores) times.push_back(column);
  return times;
}

}  // namespace segue::data
