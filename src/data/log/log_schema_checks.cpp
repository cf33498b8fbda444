// What is wrong with a schema, all of it at once.

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "data/log/log_schema.h"
#include "data/log/time_format.h"

namespace segue::data {
namespace {

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// Collects what is wrong, so that one run of the program shows all of it.
class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    list_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  void check(bool fine, const std::string& text) {
    if (!fine) list_.push_back(text);
  }
  void throw_if_any() const {
    if (!list_.empty()) {
      fail(ErrorCode::kConfig, fmt::format("event log schema: {}", fmt::join(list_, "\n")));
    }
  }

 private:
  std::vector<std::string> list_;
};

bool is_unit(double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return false;
  const double whole = seconds >= 1 ? seconds : 1 / seconds;
  return std::abs(whole - std::round(whole)) < 1e-6 * whole && whole < 1e12;
}

/// Names become parts of file names.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                              "XYZ0123456789_") == std::string_view::npos;
}

void check_distinct(Problems& problems, const std::vector<std::string>& names, const char* what) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) problems.add("{} \"{}\" appears twice", what, name);
  }
}

/// `there is no flag "x"`, and what was probably meant.
std::string unknown_name(const char* what, const std::string& name,
                         const std::vector<std::string>& known) {
  std::string text = fmt::format("there is no {} \"{}\"", what, name);
  const std::string nearest = base::nearest_name(name, known);
  if (!nearest.empty()) return fmt::format("{}; did you mean \"{}\"?", text, nearest);
  if (known.empty()) return fmt::format("{}; the schema has no {}s", text, what);
  return fmt::format("{}; there are: {}", text, fmt::join(known, ", "));
}

void check_columns(Problems& problems, const LogSchema& c) {
  problems.check(!c.events.empty(), "events: say which file (or pattern) holds the events");
  problems.check(c.events.empty() || base::is_confined(c.events),
                 "events: files of a log lie in its folder; \"..\", absolute paths and control "
                 "characters are not taken");
  const std::pair<const char*, const std::string*> ids[] = {
      {"user", &c.user}, {"item", &c.item}, {"time", &c.time}};
  for (const auto& [key, column] : ids) {
    problems.check(!column->empty(),
                   fmt::format("{} = \"\": name the column that has it; user, item and time are "
                               "needed (`segue init --raw` lists the columns)",
                               key));
  }
  problems.check(is_unit(c.time_unit_seconds),
                 fmt::format("time_unit_seconds = {}: must be a whole number or one over a whole "
                             "number, such as 0.001",
                             c.time_unit_seconds));
  const std::string format_problem =
      c.time_format.empty() ? "" : time_format_problem(c.time_format);
  problems.check(format_problem.empty(),
                 fmt::format("time_format = \"{}\": {}", c.time_format, format_problem));
  problems.check(is_unit(c.length_unit_seconds),
                 fmt::format("length_unit_seconds = {}: must be a whole number or one over a "
                             "whole number, such as 0.001",
                             c.length_unit_seconds));
  problems.check(!c.csv_separator.empty(), "csv_separator must not be empty");
  problems.check(c.csv_separator.find_first_of("\"\r\n") == std::string::npos,
                 "csv_separator must not hold quotes or line ends");
  problems.check(c.flags.empty() || c.value.empty(),
                 "value and flags exclude each other: flags make the value");
  problems.check(c.flags.size() <= kMaxFlags,
                 fmt::format("{} flags; at most {} fit into a value", c.flags.size(), kMaxFlags));
  check_distinct(problems, c.flags, "flag");
  check_distinct(problems, c.csv_columns, "column");
}

void check_kinds(Problems& problems, const LogSchema& c) {
  problems.check(
      !c.kinds.empty() && c.kinds.size() <= kMaxKinds,
      fmt::format("kinds: {} of them; there must be 1 to {}", c.kinds.size(), kMaxKinds));
  check_distinct(problems, c.kinds, "kind");
  problems.check(!c.anchor_kinds.empty(),
                 "anchor_kinds: say which kinds of events are to be predicted");
  for (const std::string& name : c.anchor_kinds) {
    if (!has(c.kinds, name)) {
      problems.add("anchor_kinds: {}", unknown_name("kind", name, c.kinds));
    }
  }
}

/// Names and bits of pools and later labels, which share both.
class PoolNames {
 public:
  PoolNames(Problems& problems, const LogSchema& schema) : problems_(problems), schema_(schema) {}

  void add(const std::string& name, int64_t bit) {
    names_.push_back(name);
    if (!is_plain_name(name)) {
      problems_.add("pool name \"{}\": use letters, digits and underscores", name);
    }
    if (bit <= 0 || !std::has_single_bit(static_cast<uint64_t>(bit))) {
      problems_.add("pool \"{}\": bit = {} is no power of two", name, bit);
    } else if ((bits_ & bit) != 0) {
      problems_.add("pool \"{}\": bit = {} belongs to another pool already", name, bit);
    }
    bits_ |= bit;
  }
  void check_kinds(const std::string& name, const std::vector<std::string>& kinds) {
    for (const std::string& kind : kinds) {
      if (!has(schema_.kinds, kind)) {
        problems_.add("pool \"{}\": {}", name, unknown_name("kind", kind, schema_.kinds));
      }
    }
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  Problems& problems_;
  const LogSchema& schema_;
  std::vector<std::string> names_;
  int64_t bits_ = 0;
};

void check_later(Problems& problems, const LogSchema& c, PoolNames& pools) {
  constexpr int64_t kLongest = int64_t{1} << 32;
  problems.check(c.later.size() <= kMaxLater,
                 fmt::format("{} later labels; there are at most {}", c.later.size(), kMaxLater));
  for (const LaterRule& later : c.later) {
    pools.add(later.name, later.bit);
    pools.check_kinds(later.name, later.kinds);
    pools.check_kinds(later.name, later.followed_by);
    if (later.kinds.empty() || later.followed_by.empty() || later.within_seconds < 1 ||
        later.within_seconds > kLongest) {
      problems.add(
          "later \"{}\": needs kinds, followed_by (kinds too) and within_seconds of 1 or more",
          later.name);
    }
    for (const std::string& kind : c.anchor_kinds) {
      if (c.label_pool == later.name && !has(later.kinds, kind)) {
        problems.add(
            "label_pool \"{}\" is about {} alone, so every predicted \"{}\" would be a failure; "
            "take it out of anchor_kinds",
            later.name, fmt::join(later.kinds, ", "), kind);
      }
    }
  }
}

void check_pools(Problems& problems, const LogSchema& c) {
  problems.check(!c.pools.empty(), "pools: at least one is needed, histories are made of them");
  PoolNames pools(problems, c);
  for (const PoolRule& pool : c.pools) {
    pools.add(pool.name, pool.bit);
    pools.check_kinds(pool.name, pool.kinds);
    if (pool.min_value < 0 || pool.below_value < 0 ||
        (pool.below_value > 0 && pool.below_value <= pool.min_value)) {
      problems.add("pool \"{}\": values from {} to below {} are none", pool.name, pool.min_value,
                   pool.below_value);
    }
    if (!pool.flag.empty() && !has(c.flags, pool.flag)) {
      problems.add("pool \"{}\": {}", pool.name, unknown_name("flag", pool.flag, c.flags));
    }
  }
  check_later(problems, c, pools);
  check_distinct(problems, pools.names(), "pool");
  if (!c.label_pool.empty() && !has(pools.names(), c.label_pool)) {
    problems.add("label_pool: {}", unknown_name("pool", c.label_pool, pools.names()));
  }
}

/// What stands between values can be no part of one.
bool may_separate(std::string_view text) {
  return std::ranges::none_of(text, [](unsigned char c) {
    return (c < ' ' && c != '\t') || c == '"' || c == '-' || std::isalnum(c) != 0;
  });
}

void check_values(Problems& problems, const AttributeFile& a) {
  if (!may_separate(a.separator)) {
    problems.add(
        "attribute \"{}\": separator = \"{}\" may be part of a value; use what stands between "
        "values, such as \"|\", without letters, digits, \"-\", quotes and line ends",
        a.name, a.separator);
  }
  if (!a.several() && a.max_values != 1) {
    problems.add(
        "attribute \"{}\": max_values = {} needs separator, what stands between the values of a "
        "field, such as \"|\"; without one {} has one value",
        a.name, a.max_values, a.of_users ? "a user" : "an item");
  }
  if (a.several() && (a.max_values < 2 || a.max_values > int64_t{kMaxAttributes})) {
    problems.add(
        "attribute \"{}\": separator = \"{}\" needs max_values, how many values of {} are kept: 2 "
        "to {}, not {}",
        a.name, a.separator, a.of_users ? "a user" : "an item", kMaxAttributes, a.max_values);
  }
}

void check_attributes(Problems& problems, const LogSchema& c) {
  std::vector<std::string> names, files;
  for (const AttributeFile* const attribute : c.all_attributes()) {
    const AttributeFile& a = *attribute;
    check_values(problems, a);
    if (a.several()) names.push_back(a.name);
    if (!is_plain_name(a.name)) {
      problems.add("attribute name \"{}\": use letters, digits and underscores", a.name);
    }
    if (a.name == "user" || a.name == "item") {  // their files would be taken for the ids' own
      problems.add("attribute name \"{}\" is taken", a.name);
    }
    if (a.file.empty() || a.item.empty() || a.value.empty()) {
      problems.add("attribute \"{}\": needs file, {} and value", a.name, a.whose());
    } else if (!base::is_confined(a.file)) {
      problems.add("attribute \"{}\": its file lies in the folder of the log", a.name);
    }
  }
  for (const AttributeColumn& column : c.attribute_columns()) {
    names.push_back(column.name);
    files.push_back(column.file);
  }
  check_distinct(problems, names, "attribute");
  check_distinct(problems, files, "file of an attribute");
}

void check_numbers(Problems& problems, const LogSchema& c) {
  std::vector<std::string> names;
  for (const NumberColumn& n : c.numbers) {
    names.push_back(n.name);
    if (!is_plain_name(n.name)) {
      problems.add(
          "number \"{}\": a name has letters, digits and underscores; `column` says what the log "
          "calls it",
          n.name);
    }
  }
  check_distinct(problems, names, "number");
}

void check_split(Problems& problems, const LogSchema& c) {
  problems.check(
      c.test_seconds >= 0 && c.gap_seconds >= 0 && c.train_days >= 0 && c.session_gap_seconds >= 0,
      "test_seconds, gap_seconds, train_days and session_gap_seconds must not be "
      "negative");
  constexpr int64_t kLongest = int64_t{1} << 40;
  problems.check(
      c.test_seconds < kLongest && c.gap_seconds < kLongest && c.train_days < kLongest / 86400,
      "test_seconds, gap_seconds or train_days is longer than any log");
}

}  // namespace

void LogSchema::validate() const {
  Problems problems;
  check_columns(problems, *this);
  check_kinds(problems, *this);
  check_pools(problems, *this);
  check_attributes(problems, *this);
  check_numbers(problems, *this);
  check_split(problems, *this);
  problems.throw_if_any();
  samples().validate();
}

}  // namespace segue::data
