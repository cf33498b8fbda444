#include "data/propose/column_roles.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "base/config_tree.h"
#include "data/log/iso_time.h"
#include "data/log/log_schema.h"
#include "data/log/time_format.h"

namespace segue::data {
namespace {

using Words = std::set<std::string, std::less<>>;
using Type = ColumnSample::Type;

const Words kUserWords = {"user",    "uid",     "customer", "visitor",  "member",   "account",
                          "client",  "reader",  "player",   "buyer",    "listener", "subscriber",
                          "person",  "viewer",  "cookie",   "device",   "profile",  "usr",
                          "student", "learner", "pupil",    "reviewer", "patient"};
const Words kItemWords = {"item",     "iid",     "product", "movie",     "track",   "song",
                          "video",    "article", "sku",     "content",   "doc",     "document",
                          "ad",       "news",    "listing", "book",      "game",    "offer",
                          "asin",     "film",    "show",    "post",      "page",    "hotel",
                          "episode",  "course",  "recipe",  "business",  "problem", "exercise",
                          "question", "isbn",    "venue",   "restaurant"};
const Words kTimeWords = {"time", "timestamp", "ts", "date", "datetime", "created", "unix", "at"};
const Words kHourWords = {"hour", "day", "month", "week", "when"};
const Words kKindWords = {"event", "action",      "behavior", "behaviour", "type",
                          "kind",  "interaction", "activity", "operation"};
const Words kValueWords = {"rating", "rate",  "score", "stars",   "value",    "played", "ratio",
                           "dwell",  "watch", "pct",   "percent", "strength", "weight", "grade"};
const Words kLabelWords = {"click",  "clicked",   "label",     "target",     "purchase",
                           "bought", "buy",       "converted", "conversion", "like",
                           "liked",  "purchased", "install",   "watched",    "finished",
                           "long",   "success",   "response",  "y",          "correct"};
const Words kOtherWords = {"session", "request", "row", "index", "query"};
const std::vector<Words> kSteps = {
    {"view", "pv", "impression", "show", "shown", "detail", "visit", "expose", "seen", "pageview"},
    {"click", "open", "play", "listen", "start", "clickout"},
    {"like", "fav", "favorite", "favourite", "wish", "wishlist", "save", "share", "follow"},
    {"cart", "addtocart", "add", "basket", "checkout", "book"},
    {"buy", "purchase", "order", "transaction", "pay", "conversion", "subscribe", "sale"}};

bool any_word(const ColumnSample& column, const Words& of) {
  return std::ranges::any_of(words_of(column.name),
                             [&](const std::string& word) { return of.contains(word); });
}

bool may_be_id(const ColumnSample& c) {
  return (c.type == Type::kInteger || c.type == Type::kText) && !c.values.empty() &&
         !holds_several_items(c);
}

/// How well a column is called an id of this kind.
int id_score(const ColumnSample& c, const Words& words) {
  if (!may_be_id(c) || !any_word(c, words)) return 0;
  int score = 4;
  const std::vector<std::string> of_name = words_of(c.name);
  if (std::ranges::find(of_name, "id") != of_name.end()) score += 2;
  if (of_name.size() == 1) score += 1;
  if (any_word(c, kOtherWords) || any_word(c, kTimeWords)) score -= 3;
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

/// The unit in which almost all of a column are times of our days; 0: none.
double unit_of(const ColumnSample& c) {
  if (c.type == Type::kTime) return c.unit_seconds;
  if (c.type == Type::kText || c.values.empty()) return 0;
  constexpr double kFirst = 631152000, kLast = 4102444800;  // 1990, 2100
  constexpr double kMost = 0.99;                            // a few values may be wrong
  for (const double unit : {1.0, 1e-3, 1e-6, 1e-9}) {
    int64_t fit = 0;
    for (size_t v = 0; v < c.values.size(); ++v) {
      const double seconds = c.number(v) * unit;
      fit += seconds >= kFirst && seconds < kLast ? c.counts[v] : 0;
    }
    if (static_cast<double>(fit) >= kMost * static_cast<double>(c.present())) return unit;
  }
  return 0;
}

void guess_time(const TableSample& table, ColumnRoles& roles) {
  roles.time = best_of(table, [](const ColumnSample& c) {
    const bool named = any_word(c, kTimeWords) && !any_word(c, kUserWords);
    const bool written = !written_times(c, named).format.empty();
    const bool fits = (unit_of(c) > 0 || written) && c.values.size() > 1;
    if (c.type == Type::kText && !written) return 0;
    // A number may be a time by its size alone only if nothing is called one.
    return (named ? 4 : 0) + (fits ? (c.type == Type::kTime || written ? 3 : 2) : 0) -
           (!named && !fits ? 9 : 0);
  });
  // Avazu's "hour" is 14102100; hours of a day are not.
  if (roles.time == nullptr) {
    roles.time = best_of(table, [](const ColumnSample& c) {
      return any_word(c, kHourWords) && !written_times(c, true).format.empty() ? 1 : 0;
    });
  }
  if (roles.time == nullptr) return;
  roles.written = written_times(*roles.time, true);
  if (!roles.written.format.empty()) {
    roles.time_unit_known = true;
    return;
  }
  const double unit = unit_of(*roles.time);
  roles.time_unit_known = unit > 0;
  roles.time_unit_seconds = unit > 0 ? unit : 1;
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

void guess_rest(const TableSample& table, ColumnRoles& roles) {
  const auto free = [&](const ColumnSample& c) {
    return &c != roles.time && &c != roles.user && &c != roles.item && !c.values.empty();
  };
  roles.kind = best_of(table, [&](const ColumnSample& c) {
    if (!free(c) || c.values.size() < 2 || c.values.size() > kMaxKinds || c.is_flag() ||
        (c.type != Type::kText && c.type != Type::kInteger) ||
        !std::ranges::all_of(c.values, base::detail::is_utf8)) {  // a schema lists them
      return 0;
    }
    const auto known = std::ranges::count_if(
        c.values, [](const std::string& value) { return step_of(value) >= 0; });
    if (known * 2 >= std::ssize(c.values)) return 5;
    const bool of_item = roles.item != nullptr && is_function_of(*roles.item, c);
    // "yes" and "no", or 1 and -1, are a success and what is none.
    if (c.values.size() == 2 && any_word(c, kLabelWords) && !of_item) return 4;
    return any_word(c, kKindWords) && !of_item ? 2 : 0;
  });
  for (const ColumnSample& c : table.columns) {
    if (!free(c) || &c == roles.kind) continue;
    const std::vector<std::string> words = words_of(c.name);
    if (c.is_flag()) {
      const bool organic = std::ranges::find(words, "organic") != words.end();
      if (organic) {
        roles.organic = &c;
        continue;
      }
      const bool label = roles.label_flag.empty() && any_word(c, kLabelWords);
      if (label) roles.label_flag = c.name;
      if (roles.flags.size() < kMaxPools - 1) {
        roles.flags.push_back(&c);
      } else if (label) {
        roles.flags.back() = &c;
      }
    } else if (roles.value == nullptr && any_word(c, kValueWords) && c.has_numbers() &&
               c.min >= 0 && (c.type == Type::kInteger || c.type == Type::kNumber)) {
      roles.value = &c;
    }
  }
  // Nothing is called a success: a few different numbers look most like ratings.
  if (roles.kind == nullptr && roles.flags.empty() && roles.value == nullptr) {
    constexpr size_t kMostRatings = 101;
    for (const ColumnSample& c : table.columns) {
      const bool numbers = c.type == Type::kInteger || c.type == Type::kNumber;
      const bool of_item = roles.item != nullptr && is_function_of(*roles.item, c);
      if (roles.value == nullptr && free(c) && numbers && !of_item && c.has_numbers() &&
          c.min >= 0 && c.values.size() > 2 && c.values.size() <= kMostRatings) {
        roles.value = &c;
      }
    }
  }
  if (roles.label_flag.empty() && !roles.flags.empty()) roles.label_flag = roles.flags[0]->name;
  if (!roles.flags.empty()) roles.value = nullptr;  // flags make the value
}

}  // namespace

std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    const bool upper = std::isupper(c) != 0;
    const bool after_lower = i > 0 && std::islower(static_cast<unsigned char>(name[i - 1])) != 0;
    if (std::isalnum(c) == 0 || (upper && after_lower)) words.emplace_back();
    if (std::isalnum(c) != 0) words.back() += static_cast<char>(std::tolower(c));
  }
  // userid is user, id
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string stem =
        words[i].substr(0, words[i].size() - std::min<size_t>(2, words[i].size()));
    const bool known = kUserWords.contains(stem) || kItemWords.contains(stem);
    if (known && words[i].ends_with("id")) {
      words[i] = stem;
      words.emplace_back("id");
    }
  }
  std::erase(words, "");
  return words;
}

int step_of(const std::string& kind) {
  const std::vector<std::string> words = words_of(kind);
  for (int step = static_cast<int>(kSteps.size()) - 1; step >= 0; --step) {
    const bool found = std::ranges::any_of(words, [&](const std::string& word) {
      return kSteps[static_cast<size_t>(step)].contains(word);
    });
    if (found) return step;
  }
  return -1;
}

namespace {

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

}  // namespace

bool is_function_of(const ColumnSample& item, const ColumnSample& column) {
  const Repeats repeats = count_repeats(item, column);
  return repeats.enough() && repeats.alike();
}

bool differs_within(const ColumnSample& item, const ColumnSample& column) {
  const Repeats repeats = count_repeats(item, column);
  return repeats.enough() && !repeats.alike();
}

std::string attribute_objection(const ColumnSample& item, const ColumnSample& c, bool of_log,
                                int64_t room) {
  if (c.values.size() < 2) return "has one value";
  if (holds_several_items(c)) return "holds several items a row, and a row of a log is one event";
  if (has_decimal_commas(c)) return "has decimal commas; write numbers with a point";
  if (of_log && !is_function_of(item, c)) {
    const bool number = c.type == Type::kNumber && c.has_numbers();
    return std::string("changes from row to row of an item") +
           (number ? "; [[numbers]] takes a number of every event" : "");
  }
  if (!of_log && differs_within(item, c)) {
    return "differs between rows of an item; an attribute has one row an item";
  }
  if (c.type == Type::kNumber || c.type == Type::kTime) return "is a number, not a category";
  if (c.type == Type::kInteger && c.min < 0) return "has negative numbers";
  const SeveralValues several = several_values(c, room);
  const size_t values = several.separator.empty() ? c.values.size() : several.values.size();
  if (values * 10 > item.values.size() * 9) return "has about as many values as items";
  return "";
}

double ColumnRoles::seconds(size_t code) const {
  int64_t date = 0;
  const std::string& text = time->values[code];
  if (!written.format.empty()) {
    return parse_time(text, written.format, date) ? static_cast<double>(date) : std::nan("");
  }
  return parse_iso_time(text, date) ? static_cast<double>(date)
                                    : time->number(code) * time_unit_seconds;
}

double followed_share(const ColumnRoles& roles, size_t from, size_t to, double seconds) {
  const bool alike = roles.kind == nullptr;                          // all events
  std::vector<std::tuple<uint32_t, uint32_t, double, bool>> events;  // user, item, time, is `to`
  for (size_t row = 0; row < roles.time->codes.size(); ++row) {
    const size_t kind = alike ? from : roles.kind->codes[row];
    const uint32_t time = roles.time->codes[row];
    if ((kind != from && kind != to) || time == ColumnSample::kMissing) continue;
    const double at = roles.seconds(time);
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
    const double seconds = roles.seconds(v);
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
  guess_time(table, roles);
  guess_ids(table, roles);
  guess_rest(table, roles);
  return roles;
}

}  // namespace segue::data
