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

constexpr int64_t kMostValues = int64_t{1} << 24;  // larger ids are in no group
constexpr int64_t kManyTries = 16;                 // of a user

// Sections: number of the first period, its days, then the groups of each kind.
constexpr size_t kFirstPeriod = 0, kBegins = 1, kFirstGroups = 2;

}  // namespace

class ValueGroups::Builder {
 public:
  Builder(const EventLog& log, std::span<const DayCounts> days, const ValueGroups* before,
          const ValueGroupLimits& limits)
      : log_(log),
        days_(days),
        piece_(days.size() - 1),
        schema_(log.piece(0).schema()),
        success_(success_pool(schema_)),
        wait_(outcome_wait(schema_)),
        before_(before),
        limits_(limits),
        users_(log.users()) {
    for (const int64_t kind : schema_.anchor_kinds) tried_.set(static_cast<size_t>(kind));
    for (size_t k = 0; k < 1 + schema_.attributes.size(); ++k) {
      int64_t end = 0;
      for (const DayCounts& of_piece : days) {
        end = std::max(end, of_piece.end(DayCounts::kItem + k, kMostValues));
      }
      values_.push_back(end);
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
    for (const int64_t day : begins_) work.push_back(std::min(tries_before(day), limits_.tries));
    if (carried_) work[0] = 0;
    std::vector<Sample> samples;
    for (const int64_t day : begins_) {
      samples.push_back(samples.empty() && carried_ ? Sample() : sample_of(day));
    }
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
          const auto p = static_cast<size_t>(period);
          find_taste_groups(tallies(k, begins_[p], samples[p]), groups);
        }
        writer.write_items(kFirstGroups + k, period * values_[k], std::span<const uint8_t>(groups));
        progress.add(work[static_cast<size_t>(period)]);
      }
    }
    writer.commit();
  }

 private:
  struct Sample {
    uint64_t one_of = 1;  // so many users
    int64_t fewest_tries = 0;
  };

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
  std::vector<UserValueTally> tallies(size_t k, int64_t day, const Sample& sample) const {
    std::vector<UserValueTally> by_user, by_value;
    std::vector<std::pair<int64_t, bool>> tries;  // of a user
    int32_t users = 0;
    for (const int64_t user : users_) {
      if (!in_sample(user, sample.one_of)) continue;
      tries.clear();
      add_tries(user, k, day, tries);
      if (std::ssize(tries) < sample.fewest_tries) continue;
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

  /// f(store, event) for the user's tries that were known before a day, newest first, up to the
  /// limit.
  template <class F>
  void for_tries(int64_t user, int64_t day, int64_t limit, const F& f) const {
    for (size_t p = piece_ + 1; p-- > 0;) {
      const EventStore& store = log_.piece(p);
      const UserEvents events = store.events_of(user);
      const auto begin = static_cast<size_t>(events.begin);
      const auto times =
          store.timestamps().subspan(begin, static_cast<size_t>(events.end - events.begin));
      const auto known = std::ranges::partition_point(
          times, [&](int64_t time) { return day_of(known_at(time, wait_)) < day; });
      for (size_t i = begin + static_cast<size_t>(known - times.begin()); i-- > begin;) {
        const auto kind = static_cast<uint64_t>(store.kinds()[i]);
        if (kind >= tried_.size() || !tried_[kind]) continue;
        if (limit-- == 0) return;
        f(store, i);
      }
    }
  }

  void add_tries(int64_t user, size_t k, int64_t day,
                 std::vector<std::pair<int64_t, bool>>& tries) const {
    for_tries(user, day, limits_.tries_of_user, [&](const EventStore& store, size_t i) {
      const int64_t item = store.items()[i];
      const int64_t id = k == 0 ? item : attribute_of(log_.piece(0), k - 1, item);
      if (id >= 0 && id < values_[k]) tries.emplace_back(id, store.in_pool(success_)[i] != 0);
    });
  }

  bool in_sample(int64_t user, uint64_t one_of) const {
    return base::splitmix64(static_cast<uint64_t>(user)) % one_of == 0;
  }

  /// Users of a few tries say little, and are left out unless they have most of the tries.
  Sample sample_of(int64_t day) const {
    const auto one_of = static_cast<uint64_t>(tries_taken(day) / limits_.tries + 1);
    int64_t users = 0, tries = 0, tries_of_many = 0;
    for (const int64_t user : users_) {
      if (!in_sample(user, one_of)) continue;
      const int64_t own = count_tries(user, day, limits_.tries_of_user);
      users += own > 0 ? 1 : 0;
      tries += own;
      tries_of_many += own >= kManyTries ? own : 0;
    }
    if (2 * tries_of_many >= tries) return {one_of, kManyTries};
    return {one_of * static_cast<uint64_t>((users - 1) / limits_.users + 1), 1};
  }

  int64_t count_tries(int64_t user, int64_t day, int64_t limit) const {
    int64_t tries = 0;
    for_tries(user, day, limit, [&](const EventStore&, size_t) { ++tries; });
    return tries;
  }

  /// Of all users, none of whom has more than are taken of one.
  int64_t tries_taken(int64_t day) const {
    int64_t sum = tries_before(day);
    for (const int64_t user : users_) {
      int64_t events = 0;
      for (size_t p = 0; p <= piece_; ++p) {
        const UserEvents of = log_.piece(p).events_of(user);
        events += of.end - of.begin;
      }
      if (events <= limits_.tries_of_user) continue;
      sum -= std::max<int64_t>(0, count_tries(user, day, events) - limits_.tries_of_user);
    }
    return sum;
  }

  const EventLog& log_;
  std::span<const DayCounts> days_;
  size_t piece_;
  const SampleSchema& schema_;
  size_t success_;
  int64_t wait_;
  std::bitset<256> tried_;
  const ValueGroups* before_;
  const ValueGroupLimits limits_;
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
    if (begins_.empty() ? !groups_[k].empty() : groups_[k].size() % begins_.size() != 0) {
      file_.fail_senseless("its groups are wrong");
    }
  }
}

ValueGroups ValueGroups::open_or_build(const EventLog& log, std::span<const DayCounts> days,
                                       const ValueGroups* before, uint64_t fingerprint,
                                       const ValueGroupLimits& limits) {
  const auto build = [&](const std::string& path) {
    for (size_t p = 0; p < days.size(); ++p) {
      require_intact(log.piece(p), {"flat_item_ids", "flat_timestamps", "flat_event_types",
                                    "user_start", "user_end"});
    }
    Builder(log, days, before, limits).write(path, fingerprint);
  };
  const EventStore& piece = log.piece(days.size() - 1);
  return {data::open_or_build(piece.index_folder(), "groups.idx", fingerprint, build),
          1 + piece.schema().attributes.size()};
}

int64_t ValueGroups::period(int64_t day) const {
  const auto found = std::ranges::upper_bound(begins_, day);
  return found == begins_.begin() ? 0 : first_period_ + (found - begins_.begin()) - 1;
}

}  // namespace segue::data
