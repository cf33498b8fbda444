#include "data/numbers/event_numbers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::data {
namespace {

constexpr int64_t kEventsPerRun = int64_t{1} << 17;
/// Raised whenever the same log gets other numbers or groups, so that old files are made again.
constexpr uint64_t kMadeBy = 2;

/// What numbers are made from, but for columns and maps.
uint64_t key_of_schema(const SampleSchema& schema) {
  uint64_t key = kMadeBy;
  for (const std::string& name : count_names(schema)) {
    key = fingerprint_of(std::span<const char>(name), key);
  }
  key = fingerprint_of(std::span<const int64_t>(schema.anchor_kinds), key);
  const int64_t wait = outcome_wait(schema);
  return fingerprint_of(std::span<const int64_t>(&wait, 1), key);
}

/// Rows of one event after the other, written some together: a user may have any number.
class Rows {
 public:
  Rows(const EventStore& store, size_t width, const IndexWriter& writer, BuildProgress& progress)
      : store_(store), width_(width), writer_(writer), progress_(progress) {}

  std::span<float> of_event(int64_t position) {
    if (count_ == kEventsPerRun) write();
    if (count_ == 0) first_ = position;
    const size_t at = static_cast<size_t>(count_++) * width_;
    if (rows_.size() < at + width_) rows_.resize(at + width_);
    return std::span(rows_).subspan(at, width_);
  }
  void write() {
    const auto first = static_cast<size_t>(first_), count = static_cast<size_t>(count_);
    writer_.write_items(0, first_ * static_cast<int64_t>(width_),
                        std::span<const float>(rows_).first(count * width_));
    forget(store_.items().subspan(first, count));
    forget(store_.timestamps().subspan(first, count));
    progress_.add(count_);
    count_ = 0;
  }

 private:
  const EventStore& store_;
  const size_t width_;
  const IndexWriter& writer_;
  BuildProgress& progress_;
  std::vector<float> rows_;
  int64_t first_ = 0, count_ = 0;
};

}  // namespace

EventNumbers::EventNumbers(const EventLog& log)
    : log_(log),
      schema_(log.piece(0).schema()),
      success_(success_pool(schema_)),
      width_(count_names(schema_).size()) {
  uint64_t columns = key_of_schema(schema_);
  int64_t items_end = 0;
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    days_.push_back(DayCounts::open_or_build(log.piece(p), log.piece(0)));
    columns = with_columns(log.piece(p), columns);  // and those of the pieces before it
    items_end = std::max(items_end, log.piece(p).items_end());
    const uint64_t key = fingerprint_of_maps(log.piece(0), items_end, columns);
    groups_.push_back(
        ValueGroups::open_or_build(log, days_, p == 0 ? nullptr : &groups_[p - 1], key));
    IndexFile file = open_or_build(log.piece(p).index_folder(), kNumbersFile, key,
                                   [&](const std::string& path) { build(p, path, key); });
    const std::span<const float> rows = file.section<float>(0);
    if (rows.size() != static_cast<size_t>(log.piece(p).num_events()) * width_) {
      file.fail_senseless("it has not a row for every event");
    }
    pieces_.push_back({std::move(file), rows});
  }
}

uint64_t EventNumbers::with_columns(const EventStore& piece, uint64_t key) const {
  key = piece.fingerprint_of_column("flat_uid", piece.users(), key);
  key = piece.fingerprint_of_column("flat_item_ids", piece.items(), key);
  key = piece.fingerprint_of_column("flat_timestamps", piece.timestamps(), key);
  key = piece.fingerprint_of_column("flat_event_types", piece.kinds(), key);
  key = piece.fingerprint_of_column("flat_is_organic", piece.organic(), key);
  return piece.fingerprint_of_column("flat_is_" + schema_.pools[success_].name,
                                     piece.in_pool(success_), key);
}

void EventNumbers::set_attributes(CountedEvent& event) const {
  for (size_t a = 0; a < schema_.attributes.size(); ++a) {
    event.attributes[a] = attribute_of(log_.piece(0), a, event.item);
  }
}

CountedEvent EventNumbers::event_at(size_t piece, int64_t position) const {
  const EventStore& store = log_.piece(piece);
  const auto at = static_cast<size_t>(position);
  CountedEvent event;
  event.item = store.items()[at];
  event.time = store.timestamps()[at];
  event.organic = store.organic()[at];  // NOLINT(bugprone-signed-char-misuse): a number
  event.tried =
      std::ranges::find(schema_.anchor_kinds, store.kinds()[at]) != schema_.anchor_kinds.end();
  event.success = store.in_pool(success_)[at] != 0;
  set_attributes(event);
  return event;
}

EveryonesCounts EventNumbers::everyone(const CountedEvent& event, size_t piece) const {
  EveryonesCounts sum;
  const int64_t day = day_of(event.time);
  for (size_t p = 0; p <= piece; ++p) {
    const DayCounts& days = days_[p];
    sum.all += days.before(DayCounts::kAll, 0, day);
    sum.item += days.before(DayCounts::kItem, event.item, day);
    for (size_t a = 0; a < schema_.attributes.size(); ++a) {
      sum.attributes[a] += days.before(DayCounts::kFirstAttribute + a, event.attributes[a], day);
    }
  }
  // Days of earlier pieces are in periods of theirs: a candidate may be of any time.
  for (size_t p = piece + 1; p-- > 0 && sum.period == 0;) {
    sum.groups = &groups_[p];
    sum.period = groups_[p].period(day);
  }
  return sum;
}

void EventNumbers::replay(int64_t user, size_t piece, int64_t end, UserCounts& counts) const {
  for (size_t p = 0; p <= piece; ++p) {
    const UserEvents of = log_.piece(p).events_of(user);
    const std::span<const int64_t> times = log_.piece(p).timestamps();
    for (int64_t i = of.begin; i < of.end && times[static_cast<size_t>(i)] < end; ++i) {
      const CountedEvent event = event_at(p, i);
      counts.add(event, everyone(event, p));
    }
  }
}

void EventNumbers::of_candidate(AskedUser& asked, int64_t user, CountedEvent candidate,
                                std::span<float> out) const {
  set_attributes(candidate);
  const size_t last = log_.num_pieces() - 1;
  if (!asked.counts || asked.user != user || asked.time != candidate.time) {
    asked.user = user;
    asked.time = candidate.time;
    asked.counts.emplace(schema_.attributes.size(), outcome_wait(schema_));
    replay(user, last, candidate.time, *asked.counts);
  }
  asked.counts->write(candidate, everyone(candidate, last), out);
}

/// Runs of whole users, each on one thread, written where they belong.
void EventNumbers::build(size_t piece, const std::string& path, uint64_t key) const {
  for (size_t p = 0; p <= piece; ++p) {
    require_intact(log_.piece(p),
                   {"flat_uid", "flat_item_ids", "flat_timestamps", "flat_event_types",
                    "flat_is_organic", "user_start", "user_end"});
  }
  const EventStore& store = log_.piece(piece);
  const std::vector<size_t> runs = store.user_runs(kEventsPerRun);
  const int64_t sizes[] = {store.num_events() * static_cast<int64_t>(width_ * sizeof(float))};
  IndexWriter writer(path, key, sizes);
  BuildProgress progress("numbers", store.num_events(), "events");
  base::parallel_for(static_cast<int64_t>(runs.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    Rows rows(store, width_, writer, progress);
    UserCounts counts(schema_.attributes.size(), outcome_wait(schema_));
    for (int64_t r = begin; r < end; ++r) {
      const auto users = store.unique_users().subspan(
          runs[static_cast<size_t>(r)],
          runs[static_cast<size_t>(r) + 1] - runs[static_cast<size_t>(r)]);
      for (const int64_t user : users) {
        const UserEvents of = store.events_of(user);
        counts.clear();
        if (piece > 0) replay(user, piece - 1, std::numeric_limits<int64_t>::max(), counts);
        for (int64_t i = of.begin; i < of.end; ++i) {
          const CountedEvent event = event_at(piece, i);
          const EveryonesCounts known = everyone(event, piece);
          counts.write(event, known, rows.of_event(i));
          counts.add(event, known);
        }
      }
      rows.write();
    }
  });
  writer.commit();
}

}  // namespace segue::data
