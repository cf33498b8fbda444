#include "data/inspect/baselines.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/npy.h"
#include "base/parallel.h"
#include "data/numbers/day_counts.h"
#include "data/numbers/known_at.h"
#include "data/numbers/tally.h"
#include "data/store/event_log.h"
#include "data/synth/synth_output.h"

namespace segue::data {
namespace {

constexpr double kItemPrior = 10, kUserPrior = 5, kAttributePrior = 2;
constexpr int64_t kEarliest = std::numeric_limits<int64_t>::min();
constexpr int64_t kUsersPerChunk = 64;
constexpr size_t kNowhere = std::numeric_limits<size_t>::max();
constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

std::vector<size_t> label_pool(const SampleSchema& schema) {
  const std::optional<size_t> label = schema.label_place();
  if (!label) fail(ErrorCode::kUnsupported, "baselines need a schema with one label pool");
  return {*label};
}

void require_events(const EventLog& log, std::span<const int64_t> positions) {
  for (const int64_t p : positions) {
    if (p >= 0 && p < log.num_events()) continue;
    fail(ErrorCode::kCorrupt, fmt::format("{}: there is no event {} among its {}",
                                          log.piece(0).folder(), p, log.num_events()));
  }
}

int64_t first_time(const EventLog& log, std::span<const int64_t> positions) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const int64_t p : positions) first = std::min(first, log.at(p, &EventStore::timestamps));
  return first;
}

/// One use of the rules.
class HistoryRules {
 public:
  HistoryRules(const EventStore& store, const RuleQuery& query)
      : store_(store),
        query_(query),
        log_(store),
        positive_(query.positive.empty() ? label_pool(store.schema()) : query.positive) {
    for (const size_t pool : positive_) {
      wait_ = std::max(wait_, store.schema().pools[pool].known_after_seconds);
    }
    const int64_t most = std::max<int64_t>(1, query.most_events);
    out_.sampled_every = std::max<int64_t>(1, (log_.num_events() + most - 1) / most);
    const std::vector<int64_t> all = log_.users();
    for (size_t u = 0; u < all.size(); u += static_cast<size_t>(out_.sampled_every)) {
      users_.push_back(all[u]);
    }
  }

  Predictions predict() {
    if (query_.positions) {
      take_asked();
    } else {
      take_all();
    }
    for (const int64_t p : out_.positions) out_.labels.push_back(is_positive(p) ? 1.f : 0.f);
    add_rule("item");
    add_rule("user");
    for (const AttributeConfig& attribute : store_.schema().attributes) {
      add_rule("user-" + attribute.stem());
    }
    if (out_.positions.empty()) return std::move(out_);
    predict_items();
    predict_users();
    return std::move(out_);
  }

 private:
  void add_rule(std::string name) {
    out_.rules.push_back({std::move(name), std::vector<float>(out_.positions.size(), kNone)});
  }
  bool is_positive(int64_t position) const {
    return std::ranges::any_of(positive_,
                               [&](size_t pool) { return log_.in_pool(pool, position); });
  }
  int64_t time_of(int64_t position) const { return log_.at(position, &EventStore::timestamps); }
  /// Whether what became of an event at `time` is known at `now`.
  bool is_known(int64_t time, int64_t now) const { return known_at(time, wait_) < now; }
  int64_t user_of(size_t place) const { return log_.at(out_.positions[place], &EventStore::users); }
  /// Calls `each` with every event of a user that may be predicted, in order.
  template <class Each>
  void for_events(int64_t user, Each each) const {
    const std::vector<int64_t>& kinds = store_.schema().anchor_kinds;
    for (const int64_t p : log_.events_of(user)) {
      if (std::ranges::find(kinds, log_.at(p, &EventStore::kinds)) != kinds.end()) each(p);
    }
  }

  void take_asked() {
    out_.positions = *query_.positions;
    require_events(log_, out_.positions);
    begin_ = first_time(log_, out_.positions);
    for (const int64_t p : out_.positions) end_ = std::max(end_, time_of(p));
    order_.resize(out_.positions.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::sort(order_, {},
                      [&](size_t i) { return std::pair(user_of(i), out_.positions[i]); });
  }
  void take_all() {
    int64_t positives = 0;
    for (const int64_t user : users_) {
      for_events(user, [&](int64_t p) {
        out_.positions.push_back(p);
        positives += is_positive(p) ? 1 : 0;
      });
    }
    order_.resize(out_.positions.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    end_ = std::numeric_limits<int64_t>::max();
    if (out_.positions.empty()) return;
    prior_ = static_cast<double>(positives) / static_cast<double>(out_.positions.size());
  }

  /// What was known before all that is asked for is counted in any order, the rest in that of time;
  /// both only of items that are asked about.
  void predict_items() {
    struct Late {
      int64_t time = 0, position = 0;
      size_t place = kNowhere;
    };
    std::unordered_map<int64_t, Tally> by_item;
    for (const int64_t p : out_.positions) by_item[log_.at(p, &EventStore::items)];
    std::vector<Late> late;
    Tally before;
    size_t next = 0;  // of order_: users and their events come in that order
    for (const int64_t user : users_) {
      if (query_.stop.stop_requested()) return;
      while (next < order_.size() && user_of(order_[next]) < user) ++next;
      for_events(user, [&](int64_t p) {
        const int64_t time = time_of(p);
        const bool early = is_known(time, begin_);
        if (early) before.add(is_positive(p));
        const auto tally = by_item.find(log_.at(p, &EventStore::items));
        if (tally == by_item.end() || time > end_) return;
        if (early) return tally->second.add(is_positive(p));
        late.push_back({time, p, asked(user, p, next)});
      });
    }
    if (query_.positions) prior_ = before.all > 0 ? before.share(0, 0) : 0.5;
    std::ranges::stable_sort(late, {}, &Late::time);
    const auto tally_of = [&](const Late& event) -> Tally& {
      return by_item[log_.at(event.position, &EventStore::items)];
    };
    auto known = late.begin();
    for (auto event = late.begin(); event != late.end(); ++event) {
      for (; known < event && is_known(known->time, event->time); ++known) {
        tally_of(*known).add(is_positive(known->position));
      }
      if (event->place == kNowhere) continue;
      out_.rules[0].predictions[event->place] =
          static_cast<float>(tally_of(*event).share(prior_, kItemPrior));
    }
  }

  /// The place of a user's event among the predictions; `next`, of order_, moves on to it.
  size_t asked(int64_t user, int64_t position, size_t& next) const {
    const auto is_user = [&] { return next < order_.size() && user_of(order_[next]) == user; };
    while (is_user() && out_.positions[order_[next]] < position) ++next;
    return is_user() && out_.positions[order_[next]] == position ? order_[next] : kNowhere;
  }

  void predict_users() {
    std::vector<size_t> starts;  // of users in order_
    for (size_t i = 0; i < order_.size(); ++i) {
      if (i == 0 || user_of(order_[i]) != user_of(order_[i - 1])) starts.push_back(i);
    }
    const int64_t users = std::ssize(starts), grain = query_.one_thread ? users : kUsersPerChunk;
    base::parallel_for(users, grain, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end && !query_.stop.stop_requested(); ++u) {
        predict_user(starts[static_cast<size_t>(u)]);
      }
    });
  }

  /// Of the user whose events begin at order_[next].
  void predict_user(size_t next) {
    const int64_t user = user_of(order_[next]);
    if (!std::ranges::binary_search(users_, user)) return;
    Tally of_user;
    std::vector<std::unordered_map<int64_t, Tally>> by_attribute(store_.schema().attributes.size());
    const auto tally_of = [&](size_t a, int64_t p) -> Tally& {
      return by_attribute[a][attribute_of(store_, a, log_.at(p, &EventStore::items))];
    };
    const auto count = [&](int64_t p) {
      const bool positive = is_positive(p);
      of_user.add(positive);
      for (size_t a = 0; a < by_attribute.size(); ++a) tally_of(a, p).add(positive);
    };
    std::vector<int64_t> seen;
    size_t known = 0;  // of them
    for_events(user, [&](int64_t p) {
      for (; known < seen.size() && is_known(time_of(seen[known]), time_of(p)); ++known) {
        count(seen[known]);
      }
      seen.push_back(p);
      const size_t place = asked(user, p, next);
      if (place == kNowhere) return;
      const auto put = [&](size_t rule, double value) {
        out_.rules[rule].predictions[place] = static_cast<float>(value);
      };
      const double share = of_user.share(prior_, kUserPrior);
      put(1, share);
      for (size_t a = 0; a < by_attribute.size(); ++a) {
        put(2 + a, tally_of(a, p).share(share, kAttributePrior));
      }
    });
  }

  const EventStore& store_;
  const RuleQuery& query_;
  const EventLog log_;
  const std::vector<size_t> positive_;
  int64_t wait_ = 0;            // seconds until it is known whether an event is positive
  std::vector<int64_t> users_;  // who take part, ascending
  std::vector<size_t> order_;   // of the predictions: by user, then by position
  int64_t begin_ = kEarliest, end_ = kEarliest;  // times of what is asked for
  double prior_ = 0.5;
  Predictions out_;
};

std::vector<float> stored_truth(const EventStore& store) {
  const std::string path = store.folder() + "/" + kTruthFile;
  if (!base::exists(path)) return {};
  const base::NpyFile file(path);
  if (file.elements() != store.num_events()) {
    fail(ErrorCode::kCorrupt, fmt::format("{} has {} elements, but the store has {} events", path,
                                          file.elements(), store.num_events()));
  }
  const std::span<const float> values = file.as<float>("<f4");
  return {values.begin(), values.end()};
}

/// Both are in order of user and time, and listens of a user have different times.
std::vector<float> matched_truth(const EventStore& store, const std::string& raw_folder) {
  const std::string folder = raw_folder + "/" + kTruthFolder;
  const base::NpyFile user_file(folder + "/uid.npy"), time_file(folder + "/timestamp.npy"),
      probability_file(folder + "/listen_probability.npy");
  const auto users = user_file.as<uint32_t>("<u4");
  const auto times = time_file.as<uint32_t>("<u4");
  const auto probabilities = probability_file.as<float>("<f4");
  if (users.size() != times.size() || users.size() != probabilities.size()) {
    fail(ErrorCode::kCorrupt, folder + ": the three files have different lengths");
  }
  std::vector<float> result(static_cast<size_t>(store.num_events()),
                            std::numeric_limits<float>::quiet_NaN());
  size_t row = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    if (store.kinds()[i] != kListen) continue;
    const auto key = std::pair(store.users()[i], store.timestamps()[i]);
    while (row < users.size() && std::pair(int64_t{users[row]}, int64_t{times[row]}) < key) {
      ++row;
    }
    if (row == users.size() || users[row] != key.first || times[row] != key.second) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}: has no listen of user {} at {}; the store was not made from this log",
                       folder, key.first, key.second));
    }
    result[i] = probabilities[row++];
  }
  return result;
}

}  // namespace

Predictions predict_by_history(const EventStore& store, const RuleQuery& query) {
  return HistoryRules(store, query).predict();
}

std::vector<int64_t> item_events_before(const EventStore& store, std::span<const int64_t> positions,
                                        const std::function<bool(int64_t user)>& counts,
                                        const std::stop_token& stop) {
  if (positions.empty()) return {};
  const EventLog log(store);
  require_events(log, positions);
  const int64_t begin = first_time(log, positions);
  std::unordered_map<int64_t, int64_t> by_item;
  for (const int64_t p : positions) by_item[log.at(p, &EventStore::items)] = 0;
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    const EventStore& piece = log.piece(p);
    for (const int64_t user : piece.unique_users()) {
      if (stop.stop_requested()) return {};
      if (!counts(user)) continue;
      const UserEvents own = piece.events_of(user);
      for (auto i = static_cast<size_t>(own.begin); i < static_cast<size_t>(own.end); ++i) {
        if (piece.timestamps()[i] >= begin) continue;
        const auto found = by_item.find(piece.items()[i]);
        if (found != by_item.end()) ++found->second;
      }
    }
  }
  std::vector<int64_t> result;
  for (const int64_t p : positions) result.push_back(by_item.at(log.at(p, &EventStore::items)));
  return result;
}

std::vector<float> read_truth(const EventStore& store, const std::string& raw_folder) {
  const bool appended = !store.segments().empty();
  if (raw_folder.empty()) return appended ? std::vector<float>() : stored_truth(store);
  if (appended) {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: true probabilities are matched with a store in one piece, and this one "
                     "has {} segments",
                     store.folder(), store.segments().size()));
  }
  return matched_truth(store, raw_folder);
}

}  // namespace segue::data
