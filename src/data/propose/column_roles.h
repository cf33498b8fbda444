#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/propose/column_shapes.h"
#include "data/propose/column_times.h"
#include "data/propose/table_sample.h"

namespace segue::data {

/// What the columns of a log seem to be. Pointers go into the sample; null: none was found.
struct ColumnRoles {
  enum class Success { kNone, kKinds, kFlags, kValue };

  const ColumnSample *user = nullptr, *item = nullptr, *time = nullptr;
  bool ids_by_name = false;  // user and item are called so; else it is a guess
  TimeForm form;             // of `time`
  bool whole_days = false;   // it has no time of day
  std::vector<const ColumnSample*> other_times;

  Success success = Success::kNone;                      // which of these say what a success is:
  const ColumnSample *kind = nullptr, *value = nullptr;  // null unless it does
  std::vector<const ColumnSample*> flags;                // empty unless they do
  std::string label_flag;                                // looks like what is to be predicted
  bool label_by_name = false;                            // because it is called so
  std::vector<const ColumnSample*> other_outcomes;       // that may be a success, too
  const ColumnSample* organic = nullptr;
};
ColumnRoles guess_roles(const TableSample& table);

/// Whether every item has one value of `column`, as far as rows tell: of those whose item was seen
/// before, almost all have the value that it had.
bool is_function_of(const ColumnSample& item, const ColumnSample& column);

/// Whether rows of an item that was seen before often have another value of `column` than it had.
bool differs_within(const ColumnSample& item, const ColumnSample& column);

/// Why a column is no attribute of the items of its table, the log or one that tells of items;
/// empty: it is one. Of several values in a field there is `room` for so many.
std::string attribute_objection(const ColumnRoles& roles, const ColumnSample& item,
                                const ColumnSample& c, bool of_log, int64_t room);

/// Share of the events of kind `from` that one of kind `to` of the same user and item follows
/// within `seconds`. Kinds are places among the values of theirs, and without kinds all events are
/// both; user, item and time must be known.
double followed_share(const ColumnRoles& roles, size_t from, size_t to, double seconds);

/// What follows events of kind `seen` most often, in the shortest time in which anything does.
struct Following {
  size_t kind = 0;
  int64_t within_seconds = 0;
  double share = -1;  // of those of kind `seen`
};
/// `kinds` are all there are, in the order in which they are tried.
Following choose_following(const ColumnRoles& roles, size_t seen, const std::vector<size_t>& kinds);

/// How long to wait for the user to come back to the same item, so that about half of them do.
struct ReturnShare {
  int64_t within_seconds = 0;  // 0: hardly any come back, or almost all, or the log is too short
  double share = 0;
};
ReturnShare choose_return(const ColumnRoles& roles);

}  // namespace segue::data
