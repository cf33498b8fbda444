#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/propose/column_shapes.h"
#include "data/propose/table_sample.h"

namespace segue::data {

/// What the columns of a log seem to be. Pointers go into the sample; null: none was found.
struct ColumnRoles {
  const ColumnSample *user = nullptr, *item = nullptr, *time = nullptr;
  const ColumnSample *kind = nullptr, *value = nullptr, *organic = nullptr;
  std::vector<const ColumnSample*> flags;
  std::string label_flag;    // the flag that looks like what is to be predicted
  bool ids_by_name = false;  // user and item are called so; else it is a guess
  double time_unit_seconds = 1;
  bool time_unit_known = false;  // times are of our century in that unit
  WrittenTimes written;  // how they are written, if not as numbers of that unit or ISO dates

  /// Of one of the values of `time`, since 1970; NaN: it is none.
  double seconds(size_t code) const;
};
ColumnRoles guess_roles(const TableSample& table);

/// Whether every item has one value of `column`, as far as rows tell: of those whose item was seen
/// before, almost all have the value that it had.
bool is_function_of(const ColumnSample& item, const ColumnSample& column);

/// Whether rows of an item that was seen before often have another value of `column` than it had.
bool differs_within(const ColumnSample& item, const ColumnSample& column);

/// Why a column is no attribute of the items of its table, the log or one that tells of items;
/// empty: it is one. Of several values in a field there is `room` for so many.
std::string attribute_objection(const ColumnSample& item, const ColumnSample& c, bool of_log,
                                int64_t room);

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

/// Words of a name: "userId" and "user_id" are user, id.
std::vector<std::string> words_of(const std::string& name);

/// How far an event is on the way from seeing to buying: 0 a view, 4 a purchase; -1: unknown.
int step_of(const std::string& kind);

}  // namespace segue::data
