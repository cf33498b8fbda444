#include "data/numbers/user_counts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"
#include "data/numbers/known_at.h"
#include "data/numbers/taste_groups.h"

namespace segue::data {
namespace {

// Tries of the wider share that a rate begins with.
constexpr double kUserWeight = 5, kPairWeight = 2, kEveryoneWeight = 10;
constexpr double kGroupWeight = 4, kInGroupWeight = 3;
constexpr double kLiftWeight = 2;  // one over the variance of a session's log-odds
constexpr double kNoPrior = 0.5;

constexpr size_t kGroupPlaces = kMostTasteGroups + 1;  // 0: of those in none

constexpr size_t kItem = 0;
constexpr size_t attribute_key(size_t a) { return 1 + a; }

int64_t second_of_day(int64_t time) {
  const int64_t second = time % kSecondsPerDay;
  return second < 0 ? second + kSecondsPerDay : second;
}

double log_odds(double share) {
  constexpr double kLeast = 1e-3;
  const double p = std::clamp(share, kLeast, 1 - kLeast);
  return std::log(p / (1 - p));
}

float log_count(int64_t n) {
  constexpr double kScale = 0.25;  // thousands are about as large as other numbers
  return static_cast<float>(kScale * std::log1p(static_cast<double>(n)));
}

}  // namespace

std::vector<std::string> count_names(const SampleSchema& schema) {
  std::vector<std::string> names = {"user_rate",       "user_count",   "user_item_rate",
                                    "user_item_count", "item_rate",    "item_count",
                                    "recent_plays",    "session_rate", "session_count",
                                    "user_hour_rate",  "hour_sin",     "hour_cos",
                                    "organic",         "gap"};
  for (size_t i = 1; i <= UserCounts::kLastOutcomes; ++i) {
    names.push_back("last_" + std::to_string(i));
  }
  for (const char* const name : {"session_lift", "user_item_taste", "user_item_taste_count"}) {
    names.emplace_back(name);
  }
  for (const AttributeConfig& attribute : schema.attributes) {
    const std::string name = attribute.stem();
    for (const std::string& number :
         {"user_" + name + "_rate", "user_" + name + "_count", name + "_rate", name + "_count",
          "same_" + name, "user_" + name + "_taste", "user_" + name + "_taste_count"}) {
      names.push_back(number);
    }
  }
  return names;
}

void UserCounts::clear() {
  pending_.clear();
  seen_ = 0;
  user_ = session_ = {};
  session_excess_ = session_information_ = 0;
  by_id_.clear();
  by_group_.assign((1 + num_attributes_) * kGroupPlaces, {});
  by_hour_ = {};
  num_events_ = num_tried_ = 0;
  session_number_ = counted_session_ = 0;
}

void UserCounts::add(CountedEvent event, const EveryonesCounts& everyone) {
  settle(event.time);
  use_groups(everyone);
  if (event.tried) event.expected = expected(event, everyone);
  pending_.push_back(event);
}

/// Events before `now` are seen from now on, and their outcomes if they are known.
void UserCounts::settle(int64_t now) {
  for (; seen_ < pending_.size() && pending_[seen_].time < now; ++seen_) see(pending_[seen_]);
  while (seen_ > 0 && known_at(pending_.front().time, wait_) < now) {
    count(pending_.front());
    pending_.pop_front();
    --seen_;
  }
}

void UserCounts::see(CountedEvent& e) {
  ++num_events_;
  last_event_ = e.time;
  if (!e.tried) return;
  if (num_tried_++ > 0 && seconds_between(last_tried_, e.time) > kSessionGap) ++session_number_;
  last_tried_ = e.time;
  e.session = session_number_;
}

void UserCounts::count(const CountedEvent& e) {
  if (!e.tried) return;
  if (e.session != counted_session_) {
    session_ = {};
    session_excess_ = session_information_ = 0;
  }
  counted_session_ = e.session;
  recent_[static_cast<size_t>(user_.all) % kRecentItems] = e.item;
  outcomes_[static_cast<size_t>(user_.all) % kLastOutcomes] = e.success;
  user_.add(e.success);
  session_.add(e.success);
  session_excess_ += (e.success ? 1 : 0) - e.expected;
  session_information_ += e.expected * (1 - e.expected);
  by_hour_[static_cast<size_t>(second_of_day(e.time) / kSecondsPerHour)].add(e.success);
  const auto add_to = [&](size_t of, int64_t id) {
    const std::optional<uint64_t> key = key_of(of, id);
    if (!key) return;
    by_id_[*key].add(e.success);
    by_group_[group_of(of, id)].add(e.success);
  };
  add_to(kItem, e.item);
  for (size_t a = 0; a < num_attributes_; ++a) add_to(attribute_key(a), e.attributes[a]);
  last_attributes_ = e.attributes;
}

/// None for ids that no table has, which are not counted of everyone either: candidates may have
/// any.
std::optional<uint64_t> UserCounts::key_of(size_t of, int64_t id) {
  if (id < 0 || id > std::numeric_limits<int32_t>::max()) return std::nullopt;
  return static_cast<uint64_t>(id) << 8 | of;
}

Tally UserCounts::look(size_t of, int64_t id) const {
  const std::optional<uint64_t> key = key_of(of, id);
  const auto found = key ? by_id_.find(*key) : by_id_.end();
  return found == by_id_.end() ? Tally() : found->second;
}

/// A place in by_group_.
size_t UserCounts::group_of(size_t of, int64_t id) const {
  const size_t group = groups_ == nullptr ? 0 : groups_->group(period_, DayCounts::kItem + of, id);
  return of * kGroupPlaces + group;
}

/// Groups change with their period: the user's counts are put into the new ones.
void UserCounts::use_groups(const EveryonesCounts& everyone) {
  const bool same = everyone.period == period_;
  groups_ = everyone.groups;
  period_ = everyone.period;
  if (same) return;
  std::ranges::fill(by_group_, Tally());
  for (const auto& [key, tally] : by_id_) {
    by_group_[group_of(key & 0xff, static_cast<int64_t>(key >> 8))] += tally;
  }
}

UserCounts::Shares UserCounts::shares(const EveryonesCounts& everyone) const {
  const double prior = everyone.all.all > 0 ? everyone.all.share(kNoPrior, 1) : kNoPrior;
  return {prior, user_.share(prior, kUserWeight)};
}

UserCounts::Taste UserCounts::taste(size_t of, int64_t id, double own) const {
  const size_t place = group_of(of, id);
  const Tally with_it = look(of, id);
  Tally others;
  if (place % kGroupPlaces != 0) {
    others = {by_group_[place].positive - with_it.positive, by_group_[place].all - with_it.all};
  }
  return {others, with_it.share(others.share(own, kGroupWeight), kInGroupWeight)};
}

/// From the user's taste for what the event is about, and what everyone did with the item.
double UserCounts::expected(const CountedEvent& e, const EveryonesCounts& everyone) const {
  const auto [prior, own] = shares(everyone);
  double sum = log_odds(taste(kItem, e.item, own).share);
  for (size_t a = 0; a < num_attributes_; ++a) {
    sum += log_odds(taste(attribute_key(a), e.attributes[a], own).share);
  }
  const double odds = sum / static_cast<double>(1 + num_attributes_) - log_odds(prior) +
                      log_odds(everyone.item.share(prior, kEveryoneWeight));
  return 1 / (1 + std::exp(-odds));
}

void UserCounts::write(const CountedEvent& e, const EveryonesCounts& everyone,
                       std::span<float> out) {
  settle(e.time);
  use_groups(everyone);
  auto to = out.begin();
  const auto put = [&](double value) { *to++ = static_cast<float>(value); };
  const auto put_pair = [&](const Tally& tally, double prior, double weight) {
    put(log_odds(tally.share(prior, weight)));
    put(log_count(tally.all));
  };
  const auto put_taste = [&](const Taste& taste) {
    put(log_odds(taste.share));
    put(log_count(taste.others.all));
  };
  const auto [prior, own] = shares(everyone);
  const bool in_session = num_tried_ > 0 && seconds_between(last_tried_, e.time) <= kSessionGap &&
                          counted_session_ == session_number_;
  const Tally session = in_session ? session_ : Tally();
  const int64_t second = second_of_day(e.time);
  const double angle =
      2 * std::numbers::pi * static_cast<double>(second) / static_cast<double>(kSecondsPerDay);

  put_pair(user_, prior, kUserWeight);
  put_pair(look(kItem, e.item), own, kPairWeight);
  put_pair(everyone.item, prior, kEveryoneWeight);
  const auto recent = std::min<size_t>(static_cast<size_t>(user_.all), kRecentItems);
  put(log_count(
      std::count(recent_.begin(), recent_.begin() + static_cast<int64_t>(recent), e.item)));
  put_pair(session, own, kPairWeight);
  put(log_odds(by_hour_[static_cast<size_t>(second / kSecondsPerHour)].share(own, kUserWeight)));
  put(std::sin(angle));
  put(std::cos(angle));
  put(e.organic != 0 ? 1 : 0);
  put(num_events_ > 0 ? log_count(seconds_between(last_event_, e.time)) : 0);
  for (int64_t i = 1; i <= static_cast<int64_t>(kLastOutcomes); ++i) {
    const bool known = user_.all >= i;
    const auto place = static_cast<size_t>(known ? user_.all - i : 0) % kLastOutcomes;
    put(!known ? 0 : outcomes_[place] ? 1 : -1);
  }
  put(in_session ? session_excess_ / (session_information_ + kLiftWeight) : 0);
  put_taste(taste(kItem, e.item, own));
  for (size_t a = 0; a < num_attributes_; ++a) {
    put_pair(look(attribute_key(a), e.attributes[a]), own, kPairWeight);
    put_pair(everyone.attributes[a], prior, kEveryoneWeight);
    put(user_.all > 0 && last_attributes_[a] == e.attributes[a] ? 1 : 0);
    put_taste(taste(attribute_key(a), e.attributes[a], own));
  }
  SEGUE_ASSERT(to == out.end(), "as many numbers as names");
}

}  // namespace segue::data
