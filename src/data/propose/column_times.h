#pragma once

#include <vector>

#include "data/propose/column_shapes.h"
#include "data/propose/table_sample.h"

namespace segue::data {

/// How the values of a column say times.
struct TimeForm {
  WrittenTimes written;     // if not as numbers of a unit or ISO dates
  double unit_seconds = 1;  // of numbers
  bool known = false;       // almost all are times of our days

  /// Of one of the values of `c`, since 1970; NaN: prep would not take it for a time.
  double seconds(const ColumnSample& c, size_t value) const;
};
TimeForm time_form(const ColumnSample& c, bool numbers);

/// Midnights and nothing else.
bool has_whole_days(const ColumnSample& c, const TimeForm& form);

/// Texts such as 22:13:05, or the hours of a day.
bool is_time_of_day(const ColumnSample& c);

/// Columns that may be the time of events, the likeliest first.
std::vector<const ColumnSample*> find_times(const TableSample& table);

}  // namespace segue::data
