// The anchor lists of a store: those that it has, and those that are derived from it.

#include <algorithm>
#include <bitset>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "data/store/event_store.h"

namespace segue::data {
namespace {

constexpr int64_t kEventsPerRun = int64_t{1} << 20;
constexpr int64_t kAnchorChecks = 64;
constexpr int64_t kWord = sizeof(int64_t);

}  // namespace

Anchors EventStore::anchors(int64_t min_history) const {
  if (min_history < 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("the minimum history must not be negative ({})", min_history));
  }
  const std::lock_guard lock(anchors_mutex_);
  std::unique_ptr<AnchorFiles>& files = anchors_[min_history];
  if (!files) {
    auto opened = open_anchors(min_history);
    if (!opened) opened = derive_anchors(min_history);
    check_anchors(opened->anchors);
    files = std::move(opened);
  }
  return files->anchors;
}

std::unique_ptr<EventStore::AnchorFiles> EventStore::open_anchors(int64_t min_history) const {
  const std::string ending = min_history == history_length_
                                 ? fmt::format("_L{}", history_length_)
                                 : fmt::format("_L{}_m{}", history_length_, min_history);
  const std::string positions = column_path("positions" + ending);
  const std::string timestamps = column_path("anchor_ts" + ending);
  if (!base::exists(positions) || !base::exists(timestamps)) return nullptr;
  auto files = std::make_unique<AnchorFiles>();
  for (const std::string& path : {positions, timestamps}) {
    files->npy.emplace_back(path);
    note_opened(path, files->npy.back().identity());
  }
  files->anchors = {files->npy[0].as<int64_t>("<i8"), files->npy[1].as<int64_t>("<i8"), positions,
                    timestamps};
  return files;
}

/// Events of the user in pieces before this one count as history.
int64_t EventStore::first_anchor(const UserEvents& events, int64_t min_history) const {
  for (const EventStore* piece : earlier_) {
    const UserEvents before = piece->events_of(events.user);
    min_history -= before.end - before.begin;
  }
  return events.begin + std::clamp<int64_t>(min_history, 0, events.end - events.begin);
}

std::unique_ptr<EventStore::AnchorFiles> EventStore::derive_anchors(int64_t min_history) const {
  uint64_t key = fingerprint_of_column("flat_event_types", kinds_, previous_);
  key = fingerprint_of_column("flat_timestamps", timestamps_, key);
  key = fingerprint_of_column("user_start", user_start_, key);
  key = fingerprint_of(std::span<const int64_t>(schema_.anchor_kinds), key);
  auto files = std::make_unique<AnchorFiles>();
  files->derived.push_back(open_or_build(
      index_folder_, fmt::format("anchors_m{}.idx", min_history), key,
      [&](const std::string& path) {
        const std::string made_from[] = {column_path("flat_event_types"),
                                         column_path("flat_timestamps"), column_path("user_start")};
        require_intact(made_from);
        make_anchors(min_history, path, key);
      }));
  const IndexFile& file = files->derived.back();
  {
    const std::lock_guard lock(opened_mutex_);
    opened_.push_back(file.checked());
  }
  files->anchors = {file.section<int64_t>(0), file.section<int64_t>(1), file.path(), file.path()};
  return files;
}

/// Two passes over the kinds: count the anchors of every run of users, then write each run's slice.
void EventStore::make_anchors(int64_t min_history, const std::string& path, uint64_t key) const {
  const std::vector<size_t> runs = user_runs(kEventsPerRun);
  const auto num_runs = static_cast<int64_t>(runs.size()) - 1;
  std::bitset<256> is_anchor_kind;
  for (const int64_t kind : schema_.anchor_kinds) is_anchor_kind.set(static_cast<size_t>(kind));
  const auto for_anchors = [&](size_t run, auto&& action) {
    for (size_t u = runs[run]; u < runs[run + 1]; ++u) {
      const UserEvents events = events_of(unique_users_[u]);
      for (int64_t event = first_anchor(events, min_history); event < events.end; ++event) {
        const auto kind = static_cast<size_t>(kinds_[static_cast<size_t>(event)]);
        if (kind < is_anchor_kind.size() && is_anchor_kind[kind]) action(event);
      }
    }
  };
  BuildProgress progress("anchors", 2 * num_events(), "events");
  const auto finish_run = [&](size_t run) {
    const int64_t first = user_start_[static_cast<size_t>(unique_users_[runs[run]])];
    const int64_t end = user_end_[static_cast<size_t>(unique_users_[runs[run + 1] - 1])];
    const auto begin = static_cast<size_t>(first), count = static_cast<size_t>(end - first);
    forget(kinds_.subspan(begin, count));
    forget(timestamps_.subspan(begin, count));
    progress.add(end - first);
  };

  std::vector<int64_t> first(runs.size(), 0);  // number of a run's first anchor
  base::parallel_for(num_runs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto run = static_cast<size_t>(r);
      for_anchors(run, [&](int64_t) { ++first[run + 1]; });
      finish_run(run);
    }
  });
  for (size_t r = 1; r < first.size(); ++r) first[r] += first[r - 1];

  const int64_t total = first.back();
  const int64_t sizes[] = {total * kWord, total * kWord};
  IndexWriter writer(path, key, sizes);
  base::parallel_for(num_runs, 1, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> positions, timestamps;
    for (int64_t r = begin; r < end; ++r) {
      const auto run = static_cast<size_t>(r);
      positions.clear();
      timestamps.clear();
      for_anchors(run, [&](int64_t event) {
        positions.push_back(event);
        timestamps.push_back(timestamps_[static_cast<size_t>(event)]);
      });
      writer.write_items(0, first[run], std::span<const int64_t>(positions));
      writer.write_items(1, first[run], std::span<const int64_t>(timestamps));
      finish_run(run);
    }
  });
  writer.commit();
}

void EventStore::check_anchors(const Anchors& anchors) const {
  const auto count = static_cast<int64_t>(anchors.positions.size());
  if (anchors.positions.size() != anchors.timestamps.size()) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{} has {} anchors, but {} has {}", anchors.positions_file, count,
                     anchors.timestamps_file, anchors.timestamps.size()));
  }
  const int64_t spots = std::min(count, kAnchorChecks);
  int64_t last = -1;
  for (int64_t i = 0; i < spots; ++i) {
    const auto anchor = static_cast<size_t>(spots == 1 ? 0 : i * (count - 1) / (spots - 1));
    const int64_t position = anchors.positions[anchor];
    if (position <= last || position >= num_events()) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}: anchor {} is event {}: not one of {} events in ascending order",
                       anchors.positions_file, anchor, position, num_events()));
    }
    last = position;
    if (timestamps_[static_cast<size_t>(position)] != anchors.timestamps[anchor]) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{} says that anchor {} is event {}, but the times in {} and {} differ",
                       anchors.positions_file, anchor, position, anchors.timestamps_file,
                       column_path("flat_timestamps")));
    }
  }
}

}  // namespace segue::data
