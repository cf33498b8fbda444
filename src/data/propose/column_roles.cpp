#include "data/propose/column_roles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "base/config_tree.h"
#include "data/log/log_schema.h"
#include "data/propose/column_words.h"
#include "data/propose/proposal_words.h"

namespace segue::data {
namespace {

using Type = ColumnSample::Type;

struct Repeats {
  int64_t again = 0, same = 0;  // rows of an item that was seen before; with the value that it had

  bool enough() const { return again >= 20; }
  bool alike() const { return static_cast<double>(same) >= 0.99 * static_cast<double>(again); }
};

Repeats count_repeats(const ColumnSample& item, const ColumnSample& column) {
  Repeats repeats;
  std::vector<uint32_t> first(item.values.size(), ColumnSample::kMissing);
  for (size_t row = 0; row < item.codes.size(); ++row) {
    const uint32_t i = item.codes[row], value = column.codes[row];
    if (i == ColumnSample::kMissing || value == ColumnSample::kMissing) continue;
    if (first[i] == ColumnSample::kMissing) {
      first[i] = value;
      continue;
    }
    ++repeats.again;
    repeats.same += first[i] == value ? 1 : 0;
  }
  return repeats;
}

bool may_be_id(const ColumnSample& c) {
  return (c.type == Type::kInteger || c.type == Type::kText) && !c.values.empty() &&
         !holds_several_items(c);
}

/// How well a column is called an id of this kind.
int id_score(const ColumnSample& c, const Words& words) {
  if (!may_be_id(c) || !any_word(c.name, words)) return 0;
  int score = 4;
  const std::vector<std::string> of_name = words_of(c.name);
  if (std::ranges::find(of_name, "id") != of_name.end()) score += 2;
  if (of_name.size() == 1) score += 1;
  if (any_word(c.name, kOtherWords) || any_word(c.name, kTimeWords)) score -= 3;
  return score;
}

template <class Score>
const ColumnSample* best_of(const TableSample& table, Score score) {
  const ColumnSample* best = nullptr;
  int most = 0;
  for (const ColumnSample& c : table.columns) {
    const int s = score(c);
    if (s > most) {
      best = &c;
      most = s;
    }
  }
  return best;
}

void guess_ids(const TableSample& table, ColumnRoles& roles) {
  const auto free = [&](const ColumnSample& c) {
    return &c != roles.time && &c != roles.user && &c != roles.item;
  };
  roles.user =
      best_of(table, [&](const ColumnSample& c) { return free(c) ? id_score(c, kUserWords) : 0; });
  roles.item =
      best_of(table, [&](const ColumnSample& c) { return free(c) ? id_score(c, kItemWords) : 0; });
  roles.ids_by_name = roles.user != nullptr && roles.item != nullptr;
  // Otherwise the columns with many different values, in their order.
  for (const ColumnSample** const role : {&roles.user, &roles.item}) {
    if (*role != nullptr) continue;
    for (const ColumnSample& c : table.columns) {
      const bool many = static_cast<int64_t>(c.values.size()) * 1000 > c.present();
      if (!free(c) || !may_be_id(c) || c.is_flag() || !many || c.values.size() <= 2 ||
          is_row_number(c)) {
        continue;
      }
      // Ids are there in every row, if any column is.
      if (*role == nullptr || (*role)->present() < c.present() * 99 / 100) *role = &c;
    }
  }
}

/// Whether every row of an owner has its one value: no exception, and not for want of rows.
bool always_of(const ColumnSample* owner, const ColumnSample& c) {
  if (owner == nullptr || owner->values.size() <= 2) return false;
  const Repeats repeats = count_repeats(*owner, c);
  return repeats.enough() && repeats.same == repeats.again;
}

/// How well a column says what happened in a row; 0: not at all.
int kind_score(const ColumnSample& c, const ColumnRoles& roles) {
  if (c.values.size() < 2 || c.values.size() > kMaxKinds || c.is_flag() ||
      (c.type != Type::kText && c.type != Type::kInteger) ||
      !std::ranges::all_of(c.values, base::detail::is_utf8)) {  // a schema lists them
    return 0;
  }
  const auto known =
      std::ranges::count_if(c.values, [](const std::string& value) { return step_of(value) >= 0; });
  // "book" and "show" may also be what an item is.
  if (known * 2 >= std::ssize(c.values) && !always_of(roles.item, c)) return 5;
  const bool time = any_word(c.name, kTimeWords) || !written_times(c, true).format.empty();
  if (time || (roles.item != nullptr && is_function_of(*roles.item, c))) return 0;  // "event_date"
  // "yes" and "no", or 1 and -1, are a success and what is none.
  if (c.values.size() == 2 && any_word(c.name, kLabelWords)) return 4;
  if (any_word(c.name, kEventWords)) return 3;
  const bool answers = c.values.size() == 2 && std::ranges::any_of(c.values, is_yes) &&
                       std::ranges::any_of(c.values, is_no) && !always_of(roles.user, c);
  return answers || any_word(c.name, kTypeWords) ? 2 : 0;
}

/// Of the user or the item, in every row: nothing that happened.
bool is_property(const ColumnSample& c, const ColumnRoles& roles) {
  constexpr double kFewest = 0.05;  // a rare success may just not have come twice
  const int64_t rarest = c.counts.empty() ? 0 : std::ranges::min(c.counts);
  return share(rarest, c.present()) >= kFewest &&
         (always_of(roles.item, c) || always_of(roles.user, c));
}

/// A number of every row that may say how much the user liked it.
bool may_be_value(const ColumnSample& c, const ColumnRoles& roles) {
  const bool of_item = roles.item != nullptr && is_function_of(*roles.item, c);
  return (c.type == Type::kInteger || c.type == Type::kNumber) && c.has_numbers() && c.min >= 0 &&
         c.values.size() > 1 && !c.is_flag() && !of_item;
}

void find_outcomes(const TableSample& table, ColumnRoles& roles) {
  const auto free = [&](const ColumnSample& c) {
    return &c != roles.time && &c != roles.user && &c != roles.item && !c.values.empty();
  };
  roles.kind =
      best_of(table, [&](const ColumnSample& c) { return free(c) ? kind_score(c, roles) : 0; });
  for (const ColumnSample& c : table.columns) {
    if (!free(c) || &c == roles.kind) continue;
    if (c.is_flag()) {
      const std::vector<std::string> words = words_of(c.name);
      if (std::ranges::find(words, "organic") != words.end()) {
        roles.organic = &c;
        continue;
      }
      const bool named = any_word(c.name, kLabelWords);
      if (!named && is_property(c, roles)) continue;
      const bool label = named && !roles.label_by_name;
      if (label) roles.label_flag = c.name;
      roles.label_by_name = roles.label_by_name || named;
      if (roles.flags.size() < kMaxPools - 1) {
        roles.flags.push_back(&c);
      } else if (label) {
        roles.flags.back() = &c;
      }
    } else if (roles.value == nullptr && any_word(c.name, kValueWords) && may_be_value(c, roles)) {
      roles.value = &c;
    }
  }
  // Nothing is called a success: a few different numbers look most like ratings.
  if (roles.kind == nullptr && roles.flags.empty() && roles.value == nullptr) {
    constexpr size_t kMostRatings = 101;
    for (const ColumnSample& c : table.columns) {
      if (roles.value == nullptr && free(c) && may_be_value(c, roles) && c.values.size() > 2 &&
          c.values.size() <= kMostRatings) {
        roles.value = &c;
      }
    }
  }
  if (roles.label_flag.empty() && !roles.flags.empty()) roles.label_flag = roles.flags[0]->name;
}

/// What says most clearly that it is a success: by its values, then by its name.
ColumnRoles::Success choose_success(const ColumnRoles& roles) {
  using Success = ColumnRoles::Success;
  const int kind = roles.kind == nullptr ? 0 : kind_score(*roles.kind, roles);
  const bool steps = kind > 0 && std::ranges::any_of(roles.kind->values, [](const auto& value) {
                       return step_of(value) >= 0;
                     });
  if (steps) return Success::kKinds;
  if (roles.label_by_name) return Success::kFlags;
  if (kind >= 3) return Success::kKinds;
  if (roles.value != nullptr) return Success::kValue;
  if (!roles.flags.empty()) return Success::kFlags;
  return kind > 0 ? Success::kKinds : Success::kNone;
}

/// Two texts that take turns in rows of an item may be a success and what is none, in any language.
void find_pairs(const TableSample& table, ColumnRoles& roles) {
  for (const ColumnSample& c : table.columns) {
    const bool used = &c == roles.time || &c == roles.user || &c == roles.item || &c == roles.kind;
    const bool of_event =
        roles.item != nullptr && differs_within(*roles.item, c) && !always_of(roles.user, c);
    if (!used && c.type == Type::kText && c.values.size() == 2 && of_event &&
        std::ranges::find(roles.other_outcomes, &c) == roles.other_outcomes.end()) {
      roles.other_outcomes.push_back(&c);
    }
  }
}

void guess_outcome(const TableSample& table, ColumnRoles& roles) {
  using Success = ColumnRoles::Success;
  find_outcomes(table, roles);
  roles.success = choose_success(roles);
  // What does not lead is named beside what does, and may be an attribute.
  if (roles.success != Success::kKinds && roles.kind != nullptr) {
    if (kind_score(*roles.kind, roles) > 2) roles.other_outcomes.push_back(roles.kind);
    roles.kind = nullptr;
  }
  if (roles.success != Success::kValue && roles.value != nullptr) {
    roles.other_outcomes.push_back(roles.value);
    roles.value = nullptr;
  }
  if (roles.success != Success::kFlags) {
    roles.other_outcomes.insert(roles.other_outcomes.end(), roles.flags.begin(), roles.flags.end());
    roles.flags.clear();
  }
  if (!roles.label_by_name && roles.success != Success::kKinds) find_pairs(table, roles);
}

}  // namespace

bool is_function_of(const ColumnSample& item, const ColumnSample& column) {
  const Repeats repeats = count_repeats(item, column);
  return repeats.enough() && repeats.alike();
}

bool differs_within(const ColumnSample& item, const ColumnSample& column) {
  const Repeats repeats = count_repeats(item, column);
  return repeats.enough() && !repeats.alike();
}

std::string attribute_objection(const ColumnRoles& roles, const ColumnSample& item,
                                const ColumnSample& c, bool of_log, int64_t room) {
  constexpr double kLargest = std::numeric_limits<int32_t>::max();
  if (c.values.size() < 2) return "has one value";
  if (holds_several_items(c)) return "holds several items a row, and a row of a log is one event";
  if (has_brackets(c)) return "is a list in brackets; write its values alone, such as a|b";
  if (has_decimal_commas(c)) return "has decimal commas; write numbers with a point";
  if (of_log && !is_function_of(item, c)) {
    const char* const changes = "changes from row to row of an item";
    if (c.numbers_as_text) {
      return std::string(changes) +
             "; its numbers are texts in the file, which only a column of "
             "numbers can use as such";
    }
    if (always_of(roles.user, c)) return "is of the user; [[user_attributes]] takes it";
    const bool number = c.type == Type::kNumber && c.has_numbers();
    return std::string(changes) + (number ? "; [[numbers]] takes a number of every event" : "");
  }
  if (!of_log && differs_within(item, c)) {
    return "differs between rows of an item; an attribute has one row an item";
  }
  if (c.type == Type::kNumber || c.type == Type::kTime) return "is a number, not a category";
  if (!time_form(c, false).written.format.empty()) return "is a time, not a category";
  if (c.type == Type::kInteger && c.min < 0) return "has negative numbers";
  if (c.type == Type::kInteger && c.has_numbers() && c.max > kLargest) {
    return "has numbers beyond 2147483647; as texts, such as c123, they would get numbers of "
           "their own";
  }
  const SeveralValues several = several_values(c, room);
  const size_t values = several.separator.empty() ? c.values.size() : several.values.size();
  if (values * 10 > item.values.size() * 9) return "has about as many values as items";
  return "";
}

double followed_share(const ColumnRoles& roles, size_t from, size_t to, double seconds) {
  const bool alike = roles.kind == nullptr;                          // all events
  std::vector<std::tuple<uint32_t, uint32_t, double, bool>> events;  // user, item, time, is `to`
  for (size_t row = 0; row < roles.time->codes.size(); ++row) {
    const size_t kind = alike ? from : roles.kind->codes[row];
    const uint32_t time = roles.time->codes[row];
    if ((kind != from && kind != to) || time == ColumnSample::kMissing) continue;
    const double at = roles.form.seconds(*roles.time, time);
    if (std::isnan(at)) continue;  // a few values may be wrong
    events.emplace_back(roles.user->codes[row], roles.item->codes[row], at, kind == to);
  }
  std::ranges::sort(events);
  int64_t all = 0, followed = 0;
  double next = std::numeric_limits<double>::infinity();
  for (size_t i = events.size(); i-- > 0;) {
    const auto& [user, item, time, is_to] = events[i];
    const bool same = i + 1 < events.size() && std::get<0>(events[i + 1]) == user &&
                      std::get<1>(events[i + 1]) == item;
    if (!same) next = std::numeric_limits<double>::infinity();
    if (!is_to || alike) {
      ++all;
      followed += next - time <= seconds ? 1 : 0;
    }
    if (is_to) next = time;
  }
  return all == 0 ? 0 : static_cast<double>(followed) / static_cast<double>(all);
}

Following choose_following(const ColumnRoles& roles, size_t seen,
                           const std::vector<size_t>& kinds) {
  constexpr double kEnough = 0.005;
  Following best{.kind = seen};
  for (const int64_t seconds : {int64_t{1800}, int64_t{86400}}) {
    if (best.share >= kEnough) break;
    for (const size_t kind : kinds) {
      if (kind == seen) continue;
      const double share = followed_share(roles, seen, kind, static_cast<double>(seconds));
      if (share > best.share) best = {kind, seconds, share};
    }
  }
  return best;
}

ReturnShare choose_return(const ColumnRoles& roles) {
  constexpr int64_t kDay = 86400;
  constexpr double kFewest = 0.02;
  double first = std::numeric_limits<double>::infinity(), last = -first;
  for (size_t v = 0; v < roles.time->values.size(); ++v) {
    const double seconds = roles.form.seconds(*roles.time, v);
    if (std::isnan(seconds)) continue;
    first = std::min(first, seconds);
    last = std::max(last, seconds);
  }
  ReturnShare best;
  for (const int64_t seconds : {kDay, 7 * kDay, 30 * kDay}) {
    // So much of the end of the log has no labels.
    if (static_cast<double>(seconds) * 5 > last - first) break;
    const double s = followed_share(roles, 0, 0, static_cast<double>(seconds));
    if (s < kFewest || s > 1 - kFewest) continue;
    if (best.within_seconds > 0 && std::abs(s - 0.5) >= std::abs(best.share - 0.5)) continue;
    best = {seconds, s};
  }
  return best;
}

ColumnRoles guess_roles(const TableSample& table) {
  ColumnRoles roles;
  // A date of the item or the user, such as a release, is none of the event.
  const auto is_of_event = [&roles](const ColumnSample& time) {
    return (roles.item == nullptr || !is_function_of(*roles.item, time)) &&
           (roles.user == nullptr || !is_function_of(*roles.user, time));
  };
  const std::vector<const ColumnSample*> times = find_times(table);
  bool found = false;
  for (size_t t = 0; !found && t < times.size(); ++t) {
    roles = {.time = times[t]};
    guess_ids(table, roles);
    found = is_of_event(*roles.time);
  }
  if (!found) {
    roles = {.time = times.empty() ? nullptr : times.front()};
    guess_ids(table, roles);
  }
  if (roles.time != nullptr) {
    roles.form = time_form(*roles.time, true);
    roles.whole_days = has_whole_days(*roles.time, roles.form);
  }
  for (const ColumnSample* const time : times) {
    const bool named = any_word(time->name, kTimeWords) || time->type == Type::kTime;
    const bool other = time != roles.time && time != roles.user && time != roles.item;
    if (other && named && is_of_event(*time) && time_form(*time, true).known) {
      roles.other_times.push_back(time);
    }
  }
  guess_outcome(table, roles);
  return roles;
}

}  // namespace segue::data
