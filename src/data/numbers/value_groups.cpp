#include "data/numbers/value_groups.h"

#include <algorithm>
#include <bitset>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"
#include "data/numbers/known_at.h"
#include "data/numbers/taste_groups.h"

namespace segue::data {
namespace {

constexpr int64_t kMostTries = int64_t{1} << 24;   // of a sample of users; 32 bytes each at most
constexpr int64_t kMostValues = int64_t{1} << 24;  // larger ids are in no group
constexpr int64_t kFewestTries = 16;               // of a user of the sample

// Sections: number of the first period, its days, then the groups of each kind.
constexpr size_t kFirstPeriod = 0, kBegins = 1, kFirstGroups = 2;

}  // namespace

class ValueGroups::Builder {
 public:
  Builder(const EventLog& log, std::span<const DayCounts> days, const ValueGroups* before)
      : log_(log),
        days_(days),
        piece_(days.size() - 1),
        schema_(log.piece(0).schema()),
        success_(success_pool(schema_)),
        wait_(outcome_wait(schema_)),
        before_(before),
        users_(log.users()) {
    for (const int64_t kind : schema_.anchor_kinds) tried_.set(static_cast<size_t>(kind));
    int64_t items = 0;
    for (size_t p = 0; p <= piece_; ++p) {
      for (const int64_t item : log.piece(p).items()) {
        items = std::max(items, std::min(item, kMostValues - 1) + 1);
      }
    }
    values_.push_back(items);
    for (size_t a = 0; a < schema_.attributes.size(); ++a) {
      const std::span<const int32_t> map = log.piece(0).attribute_map(a);
      const int64_t largest = map.empty() ? 0 : std::ranges::max(map);
      values_.push_back(std::clamp<int64_t>(largest + 1, 1, kMostValues));
    }
    begin_periods();
  }

  void write(const std::string& path, uint64_t fingerprint) const {
    const int64_t periods = std::ssize(begins_);
    std::vector<int64_t> sizes = {sizeof(int64_t), periods * 8};
    for (const int64_t values : values_) sizes.push_back(periods * values);
    IndexWriter writer(path, fingerprint, sizes);
    writer.write_items(kFirstPeriod, 0, std::span<const int64_t>(&first_period_, 1));
    writer.write_items(kBegins, 0, std::span<const int64_t>(begins_));
    std::vector<int64_t> work;  // of each period
    for (const int64_t day : begins_) work.push_back(std::min(tries_before(day), kMostTries));
    if (carried_) work[0] = 0;
    BuildProgress progress(
        "groups", std::accumulate(work.begin(), work.end(), int64_t{0}) * std::ssize(values_),
        "tries");
    for (size_t k = 0; k < values_.size(); ++k) {
      std::vector<uint8_t> groups(static_cast<size_t>(values_[k]));
      for (int64_t period = 0; period < periods; ++period) {
        if (period == 0 && carried_) {
          for (int64_t id = 0; id < values_[k]; ++id) {
            groups[static_cast<size_t>(id)] =
                before_->group(first_period_, DayCounts::kItem + k, id);
          }
        } else {
          find_taste_groups(tallies(k, begins_[static_cast<size_t>(period)]), groups);
        }
        writer.write_items(kFirstGroups + k, period * values_[k], std::span<const uint8_t>(groups));
        progress.add(work[static_cast<size_t>(period)]);
      }
    }
    writer.commit();
  }

 private:
  /// The last period in which the pieces before have events, and those that begin behind it: each
  /// when the days on which something was tried are a quarter more.
  void begin_periods() {
    std::set<int64_t> days;
    for (const DayCounts& of_piece : days_) {
      for (const int64_t day : of_piece.days()) days.insert(day);
    }
    int64_t carried_from = std::numeric_limits<int64_t>::min();
    if (before_ != nullptr) {
      const int64_t period = before_->period(day_of(log_.piece(piece_ - 1).last_time()));
      carried_ = period > 0;
      if (carried_) {
        first_period_ = period;
        carried_from = before_->begins_[static_cast<size_t>(period - before_->first_period_)];
      }
    }
    int64_t known = 0, due = 1;
    for (const int64_t day : days) {
      if (++known < due) continue;
      due = known + (known + 3) / 4;
      if (day + 1 >= carried_from) begins_.push_back(day + 1);
    }
  }

  int64_t tries_before(int64_t day) const {
    int64_t sum = 0;
    for (const DayCounts& days : days_) sum += days.before(DayCounts::kAll, 0, day).all;
    return sum;
  }

  /// What users did with values before a day, by value.
  std::vector<UserValueTally> tallies(size_t k, int64_t day) const {
    // Of all users, or of one of so many.
    const auto one_of = static_cast<uint64_t>(tries_before(day) / kMostTries + 1);
    std::vector<UserValueTally> by_user, by_value;
    std::vector<std::pair<int64_t, bool>> tries;  // of a user
    int32_t users = 0;
    for (const int64_t user : users_) {
      if (base::splitmix64(static_cast<uint64_t>(user)) % one_of != 0) continue;
      tries.clear();
      for (size_t p = 0; p <= piece_; ++p) add_tries(p, user, k, day, tries);
      if (std::ssize(tries) < kFewestTries) continue;
      std::ranges::sort(tries);
      for (size_t i = 0; i < tries.size(); ++i) {
        if (i == 0 || tries[i].first != tries[i - 1].first) {
          by_user.push_back({users, static_cast<int32_t>(tries[i].first), 0, 0});
        }
        by_user.back().positive += tries[i].second ? 1 : 0;
        ++by_user.back().all;
      }
      ++users;
    }
    std::vector<size_t> place(static_cast<size_t>(values_[k]) + 1);
    for (const UserValueTally& t : by_user) ++place[static_cast<size_t>(t.value) + 1];
    for (size_t v = 1; v < place.size(); ++v) place[v] += place[v - 1];
    by_value.resize(by_user.size());
    for (const UserValueTally& t : by_user) by_value[place[static_cast<size_t>(t.value)]++] = t;
    return by_value;
  }

  void add_tries(size_t piece, int64_t user, size_t k, int64_t day,
                 std::vector<std::pair<int64_t, bool>>& tries) const {
    const EventStore& store = log_.piece(piece);
    const UserEvents events = store.events_of(user);
    for (int64_t e = events.begin; e < events.end; ++e) {
      const auto i = static_cast<size_t>(e);
      const auto kind = static_cast<uint64_t>(store.kinds()[i]);
      if (kind >= tried_.size() || !tried_[kind]) continue;
      if (day_of(known_at(store.timestamps()[i], wait_)) >= day) break;  // times rise
      const int64_t item = store.items()[i];
      const int64_t id = k == 0 ? item : attribute_of(log_.piece(0), k - 1, item);
      if (id >= 0 && id < values_[k]) tries.emplace_back(id, store.in_pool(success_)[i] != 0);
    }
  }

  const EventLog& log_;
  std::span<const DayCounts> days_;
  size_t piece_;
  const SampleSchema& schema_;
  size_t success_;
  int64_t wait_;
  std::bitset<256> tried_;
  const ValueGroups* before_;
  std::vector<int64_t> users_;
  bool carried_ = false;         // the first period is one of the piece before
  std::vector<int64_t> values_;  // by kind: items, then attributes
  int64_t first_period_ = 1;
  std::vector<int64_t> begins_;
};

ValueGroups::ValueGroups(IndexFile file, size_t kinds) : file_(std::move(file)) {
  const std::span<const int64_t> first = file_.section<int64_t>(kFirstPeriod);
  begins_ = file_.section<int64_t>(kBegins);
  if (first.size() != 1 || first[0] < 1 || !std::ranges::is_sorted(begins_)) {
    file_.fail_senseless("its periods are wrong");
  }
  first_period_ = first[0];
  for (size_t k = 0; k < kinds; ++k) {
    groups_.push_back(file_.section<uint8_t>(kFirstGroups + k));
    const bool whole =
        begins_.empty() ? groups_[k].empty() : groups_[k].size() % begins_.size() == 0;
    if (!whole || std::ranges::any_of(groups_[k], [](uint8_t g) { return g > kMostTasteGroups; })) {
      file_.fail_senseless("its groups are wrong");
    }
  }
}

ValueGroups ValueGroups::open_or_build(const EventLog& log, std::span<const DayCounts> days,
                                       const ValueGroups* before, uint64_t fingerprint) {
  const EventStore& piece = log.piece(days.size() - 1);
  return {data::open_or_build(piece.index_folder(), "groups.idx", fingerprint,
                              [&](const std::string& path) {
                                const SampleSchema& schema = piece.schema();
                                const std::string pool =
                                    "flat_is_" + schema.pools[success_pool(schema)].name;
                                std::vector<std::string> made_from;
                                for (const char* const name :
                                     {"flat_item_ids", "flat_timestamps", "flat_event_types",
                                      "user_start", "user_end", pool.c_str()}) {
                                  made_from.push_back(piece.column_path(name));
                                }
                                piece.require_intact(made_from);
                                Builder(log, days, before).write(path, fingerprint);
                              }),
          1 + log.piece(0).schema().attributes.size()};
}

int64_t ValueGroups::period(int64_t day) const {
  const auto found = std::ranges::upper_bound(begins_, day);
  return found == begins_.begin() ? 0 : first_period_ + (found - begins_.begin()) - 1;
}

}  // namespace segue::data
