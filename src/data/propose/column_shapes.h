#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "data/propose/table_sample.h"

namespace segue::data {

/// In decimal, finite; false if `text` is no number.
bool parse_number(std::string_view text, double& value);

/// How the times of a column are written, where they are no numbers of seconds and no ISO dates.
struct WrittenTimes {
  std::string format;  // of time_format.h; empty: none that is known
  std::string other;   // another that fits as well, where days are all below 13
};
/// Numbers such as 20260131 are looked at if `numbers` is set: any id may look like that.
WrittenTimes written_times(const ColumnSample& c, bool numbers);

/// Whether a text is a time in one of the known forms.
bool is_written_time(std::string_view text);

/// Another value in every row: the number of a row, not a user or an item.
bool is_row_number(const ColumnSample& c);

/// Fields such as "N12-1 N7-0": several items of one row.
bool holds_several_items(const ColumnSample& c);

/// What stands between several values in a field, and what they are then.
struct SeveralValues {
  std::string separator;  // empty: fields have one value
  double share = 0;       // of the different fields have it
  std::set<std::string> values;
  int64_t most = 0, kept = 0;  // values of a row, of which so many are kept
  double enough = 0;           // share of rows that have no more
};
/// Many fields have it, and they are made of fewer values than there are of them: genres are,
/// "Paris, France" is not. At most `room` are kept.
SeveralValues several_values(const ColumnSample& c, int64_t room);

/// The number at or above which about half of the rows are.
struct Threshold {
  double value = 0;
  double share = 1;  // of the rows with a number
};
Threshold most_even_threshold(const ColumnSample& c);

/// Lists such as "[12, 7]", whose brackets would be part of their values.
bool has_brackets(const ColumnSample& c);

/// Numbers such as "3,5", which nothing reads as such.
bool has_decimal_commas(const ColumnSample& c);

}  // namespace segue::data
