#include "data/propose/column_roles.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "data/log/iso_time.h"
#include "data/log/log_schema.h"

namespace segue::data {
namespace {

using Words = std::set<std::string, std::less<>>;
using Type = ColumnSample::Type;

const Words kUserWords = {"user",   "uid",    "customer", "visitor", "member",   "account",
                          "client", "reader", "player",   "buyer",   "listener", "subscriber",
                          "person", "viewer", "cookie",   "device",  "profile",  "usr"};
const Words kItemWords = {"item",    "iid",     "product", "movie",   "track", "song",
                          "video",   "article", "sku",     "content", "doc",   "document",
                          "ad",      "news",    "listing", "book",    "game",  "offer",
                          "asin",    "film",    "show",    "post",    "page",  "hotel",
                          "episode", "course",  "recipe",  "business"};
const Words kTimeWords = {"time", "timestamp", "ts", "date", "datetime", "created", "unix", "at"};
const Words kKindWords = {"event", "action",      "behavior", "behaviour", "type",
                          "kind",  "interaction", "activity", "operation"};
const Words kValueWords = {"rating", "rate",  "score", "stars",   "value",    "played", "ratio",
                           "dwell",  "watch", "pct",   "percent", "strength", "weight", "grade"};
const Words kLabelWords = {"click",  "clicked",   "label",     "target",     "purchase",
                           "bought", "buy",       "converted", "conversion", "like",
                           "liked",  "purchased", "install",   "watched",    "finished",
                           "long",   "success",   "response",  "y"};
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

/// Ids are what a column of many different values holds.
bool may_be_id(const ColumnSample& c) {
  return (c.type == Type::kInteger || c.type == Type::kText) && c.values.size() > 1;
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

/// The unit in which the middle of a column is a time of our days; 0: none.
double unit_of(const ColumnSample& c) {
  if (c.type == Type::kTime) return c.unit_seconds;
  if (c.type == Type::kText || c.values.empty()) return 0;
  constexpr double kFirst = 631152000, kLast = 4102444800;  // 1990, 2100
  for (const double unit : {1.0, 1e-3, 1e-6, 1e-9}) {
    if (c.min * unit >= kFirst && c.max * unit < kLast) return unit;
  }
  return 0;
}

void guess_time(const TableSample& table, ColumnRoles& roles) {
  roles.time = best_of(table, [](const ColumnSample& c) {
    const bool named = any_word(c, kTimeWords) && !any_word(c, kUserWords);
    const bool fits = unit_of(c) > 0 && c.values.size() > 1;
    if (c.type == Type::kText) return 0;
    // A number may be a time by its size alone only if nothing is called one.
    return (named ? 4 : 0) + (fits ? (c.type == Type::kTime ? 3 : 2) : 0) -
           (!named && !fits ? 9 : 0);
  });
  if (roles.time == nullptr) return;
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
      if (*role == nullptr && free(c) && may_be_id(c) && !c.is_flag() && many &&
          c.values.size() > 2) {
        *role = &c;
      }
    }
  }
}

void guess_rest(const TableSample& table, ColumnRoles& roles) {
  const auto free = [&](const ColumnSample& c) {
    return &c != roles.time && &c != roles.user && &c != roles.item && !c.values.empty();
  };
  roles.kind = best_of(table, [&](const ColumnSample& c) {
    if (!free(c) || c.values.size() < 2 || c.values.size() > kMaxKinds || c.is_flag() ||
        (c.type != Type::kText && c.type != Type::kInteger)) {
      return 0;
    }
    const auto known = std::ranges::count_if(
        c.values, [](const std::string& value) { return step_of(value) >= 0; });
    if (known * 2 >= std::ssize(c.values)) return 5;
    const bool of_item = roles.item != nullptr && is_function_of(*roles.item, c);
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

bool is_function_of(const ColumnSample& item, const ColumnSample& column) {
  constexpr int64_t kFewest = 20;
  constexpr double kMost = 0.99;
  std::vector<uint32_t> first(item.values.size(), ColumnSample::kMissing);
  int64_t again = 0, same = 0;
  for (size_t row = 0; row < item.codes.size(); ++row) {
    const uint32_t i = item.codes[row], value = column.codes[row];
    if (i == ColumnSample::kMissing || value == ColumnSample::kMissing) continue;
    if (first[i] == ColumnSample::kMissing) {
      first[i] = value;
      continue;
    }
    ++again;
    same += first[i] == value ? 1 : 0;
  }
  return again >= kFewest && static_cast<double>(same) >= kMost * static_cast<double>(again);
}

double followed_share(const ColumnRoles& roles, size_t from, size_t to, double seconds) {
  std::vector<std::tuple<uint32_t, uint32_t, double, bool>> events;  // user, item, time, is `to`
  for (size_t row = 0; row < roles.kind->codes.size(); ++row) {
    const uint32_t kind = roles.kind->codes[row], time = roles.time->codes[row];
    if ((kind != from && kind != to) || time == ColumnSample::kMissing) continue;
    int64_t date = 0;
    const double at = parse_iso_time(roles.time->values[time], date)
                          ? static_cast<double>(date)
                          : roles.time->number(time) * roles.time_unit_seconds;
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
    if (is_to) {
      next = time;
    } else {
      ++all;
      followed += next - time <= seconds ? 1 : 0;
    }
  }
  return all == 0 ? 0 : static_cast<double>(followed) / static_cast<double>(all);
}

ColumnRoles guess_roles(const TableSample& table) {
  ColumnRoles roles;
  guess_time(table, roles);
  guess_ids(table, roles);
  guess_rest(table, roles);
  return roles;
}

}  // namespace segue::data
