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
constexpr uint64_t kMadeBy = 1;

/// What numbers are made from, but for the columns.
uint64_t key_of_schema(const EventStore& store) {
  const SampleSchema& schema = store.schema();
  uint64_t key = kMadeBy;
  for (const std::string& name : count_names(schema)) {
    key = fingerprint_of(std::span<const char>(name), key);
  }
  key = fingerprint_of(std::span<const int64_t>(schema.anchor_kinds), key);
  const int64_t wait = outcome_wait(schema);
  key = fingerprint_of(std::span<const int64_t>(&wait, 1), key);
  for (size_t a = 0; a < schema.attributes.size(); ++a) {
    key = fingerprint_of_map(store.attribute_map(a), key);
  }
  return key;
}

}  // namespace

EventNumbers::EventNumbers(const EventLog& log)
    : log_(log),
      schema_(log.piece(0).schema()),
      success_(success_pool(schema_)),
      width_(count_names(schema_).size()) {
  uint64_t key = key_of_schema(log.piece(0));
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    days_.push_back(DayCounts::open_or_build(log.piece(p), log.piece(0)));
    key = with_columns(log.piece(p), key);  // and those of the pieces before it
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
  key = fingerprint_of(piece.users(), key);
  key = fingerprint_of(piece.items(), key);
  key = fingerprint_of(piece.timestamps(), key);
  key = fingerprint_of(piece.kinds(), key);
  key = fingerprint_of(piece.organic(), key);
  return fingerprint_of(piece.in_pool(success_), key);
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
  const EventStore& store = log_.piece(piece);
  std::vector<std::string> made_from;
  for (const char* const name : {"flat_uid", "flat_item_ids", "flat_timestamps", "flat_event_types",
                                 "flat_is_organic", "user_start", "user_end"}) {
    made_from.push_back(store.column_path(name));
  }
  made_from.push_back(store.column_path("flat_is_" + schema_.pools[success_].name));
  store.require_intact(made_from);

  const std::vector<size_t> runs = store.user_runs(kEventsPerRun);
  const int64_t sizes[] = {store.num_events() * static_cast<int64_t>(width_ * sizeof(float))};
  IndexWriter writer(path, key, sizes);
  BuildProgress progress("numbers", store.num_events(), "events");
  base::parallel_for(static_cast<int64_t>(runs.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    UserCounts counts(schema_.attributes.size(), outcome_wait(schema_));
    std::vector<float> rows;
    for (int64_t r = begin; r < end; ++r) {
      const auto users = store.unique_users().subspan(
          runs[static_cast<size_t>(r)],
          runs[static_cast<size_t>(r) + 1] - runs[static_cast<size_t>(r)]);
      const int64_t first = store.events_of(users.front()).begin;
      const int64_t count = store.events_of(users.back()).end - first;
      rows.resize(static_cast<size_t>(count) * width_);
      for (const int64_t user : users) {
        const UserEvents of = store.events_of(user);
        counts.clear();
        if (piece > 0) replay(user, piece - 1, std::numeric_limits<int64_t>::max(), counts);
        for (int64_t i = of.begin; i < of.end; ++i) {
          const CountedEvent event = event_at(piece, i);
          const EveryonesCounts known = everyone(event, piece);
          counts.write(event, known,
                       std::span(rows).subspan(static_cast<size_t>(i - first) * width_, width_));
          counts.add(event, known);
        }
      }
      writer.write_items(0, first * static_cast<int64_t>(width_), std::span<const float>(rows));
      const auto from = static_cast<size_t>(first), n = static_cast<size_t>(count);
      forget(store.items().subspan(from, n));
      forget(store.timestamps().subspan(from, n));
      progress.add(count);
    }
  });
  writer.commit();
}

}  // namespace segue::data
