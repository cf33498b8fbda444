#include "data/numbers/day_counts.h"

#include <algorithm>
#include <bitset>
#include <iterator>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "data/numbers/known_at.h"

namespace segue::data {
namespace {

constexpr int64_t kLargestId = std::numeric_limits<int32_t>::max();
constexpr size_t kEventsPerPass = size_t{1} << 20;  // whose pages stay

constexpr size_t offsets_section(size_t of) { return 2 * of; }
constexpr size_t cells_section(size_t of) { return 2 * of + 1; }

size_t kinds_counted(const SampleSchema& schema) {
  return DayCounts::kFirstAttribute + schema.attributes.size();
}

}  // namespace

size_t success_pool(const SampleSchema& schema) { return schema.label_place().value_or(0); }

int64_t outcome_wait(const SampleSchema& schema) {
  return schema.pools[success_pool(schema)].known_after_seconds;
}

int64_t day_of(int64_t time) {
  const int64_t day = time / kSecondsPerDay - (time % kSecondsPerDay < 0 ? 1 : 0);
  return std::clamp<int64_t>(day, std::numeric_limits<int32_t>::min(),
                             std::numeric_limits<int32_t>::max());
}

int64_t attribute_of(const EventStore& maps, size_t attribute, int64_t item) {
  if (item < 0 || item >= maps.num_items()) return 0;
  return maps.attribute_map(attribute)[static_cast<size_t>(item)];
}

/// Ids in ranges of as many events as are sorted at a time; of one range everything fits, and the
/// words that were counted are the ones that are written. Where a few ids have more, such as
/// everyone, their days are counted instead.
class DayCounts::Builder {
 public:
  Builder(const EventStore& store, const EventStore& maps, const DayCountLimits& limits)
      : store_(store),
        maps_(maps),
        limits_(limits),
        success_(store.in_pool(success_pool(store.schema()))),
        wait_(outcome_wait(store.schema())),
        progress_("counts",
                  2 * store.num_events() * static_cast<int64_t>(kinds_counted(store.schema())),
                  "events") {
    for (const int64_t kind : store.schema().anchor_kinds) tried_.set(static_cast<size_t>(kind));
  }

  template <class C>
  void write(const std::string& path, uint64_t key) {
    std::vector<int64_t> sizes;
    std::vector<std::vector<Range>> plans;
    for (size_t of = 0; of < kinds_counted(store_.schema()); ++of) {
      const std::vector<Range>& ranges = plans.emplace_back(plan_for(of));
      int64_t cells = 0;
      for (const Range& range : ranges) cells += range.cells;
      sizes.push_back((ranges.back().end + 1) * static_cast<int64_t>(sizeof(int64_t)));
      sizes.push_back(cells * static_cast<int64_t>(sizeof(C)));
    }
    IndexWriter writer(path, key, sizes);
    for (size_t of = 0; of < plans.size(); ++of) write_counts<C>(of, plans[of], writer);
    writer.commit();
  }

 private:
  /// Of ids.
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t events = 0, cells = 0;
    std::vector<uint64_t> words;  // sorted; of the only range
  };

  /// f(id, event) for everything that was tried.
  template <class F>
  void for_events(size_t of, const F& f) {
    const auto events = static_cast<size_t>(store_.num_events());
    for (size_t first = 0; first < events; first += kEventsPerPass) {
      const size_t count = std::min(kEventsPerPass, events - first);
      for (size_t i = first; i < first + count; ++i) {
        const auto kind = static_cast<uint64_t>(store_.kinds()[i]);
        if (kind >= tried_.size() || !tried_[kind]) continue;
        const int64_t item = store_.items()[i];
        const int64_t id = of == kAll    ? 0
                           : of == kItem ? item
                                         : attribute_of(maps_, of - kFirstAttribute, item);
        if (id >= 0 && id <= kLargestId) f(id, i);
      }
      forget(store_.kinds().subspan(first, count));
      forget(store_.items().subspan(first, count));
      forget(store_.timestamps().subspan(first, count));
      forget(success_.subspan(first, count));
      progress_.add(static_cast<int64_t>(count));
    }
  }

  std::vector<Range> plan_for(size_t of) {
    std::vector<int64_t> buckets;
    int64_t end = 0;
    for_events(of, [&](int64_t id, size_t) {
      const auto bucket = static_cast<size_t>(id / limits_.ids_together);
      if (bucket >= buckets.size()) buckets.resize(bucket + 1);
      ++buckets[bucket];
      end = std::max(end, id + 1);
    });
    std::vector<Range> ranges(1);
    for (size_t b = 0; b < buckets.size(); ++b) {
      const int64_t events = ranges.back().events;
      if (events > 0 && events + buckets[b] > limits_.events_together) {
        ranges.back().end = static_cast<int64_t>(b) * limits_.ids_together;
        ranges.push_back({.begin = ranges.back().end});
      }
      ranges.back().events += buckets[b];
    }
    ranges.back().end = end;
    for (Range& range : ranges) {
      for_days(of, range, [&](uint64_t, const Tally&) { ++range.cells; });
      if (ranges.size() > 1) range.words = {};
    }
    return ranges;
  }

  // A word of what is sorted: id, day, success. Without the last it is a day of an id.
  static uint64_t word(int64_t id, int64_t day, bool success) {
    const auto from_first = static_cast<uint64_t>(day - std::numeric_limits<int32_t>::min());
    return static_cast<uint64_t>(id) << 33 | from_first << 1 | (success ? 1 : 0);
  }
  static int64_t id_of(uint64_t id_day) { return static_cast<int64_t>(id_day >> 32); }
  static int32_t day_of_id(uint64_t id_day) {
    return static_cast<int32_t>(static_cast<int64_t>(id_day & 0xffffffffu) +
                                std::numeric_limits<int32_t>::min());
  }

  /// f(word) for everything of a range, in the order of the store.
  template <class F>
  void for_words(size_t of, const Range& range, const F& f) {
    for_events(of, [&](int64_t id, size_t i) {
      if (id < range.begin || id >= range.end) return;
      f(word(id, day_of(known_at(store_.timestamps()[i], wait_)), success_[i] != 0));
    });
  }

  /// f(day of an id, what it had then), in their order.
  template <class F>
  void for_days(size_t of, Range& range, const F& f) {
    if (range.events == 0) return;
    if (range.events > limits_.events_together) {
      std::unordered_map<uint64_t, Tally> tallies;
      for_words(of, range, [&](uint64_t w) { tallies[w >> 1].add((w & 1) != 0); });
      std::vector<uint64_t> days;
      days.reserve(tallies.size());
      for (const auto& [day, tally] : tallies) days.push_back(day);
      std::ranges::sort(days);
      for (const uint64_t day : days) f(day, tallies[day]);
      return;
    }
    std::vector<uint64_t>& words = range.words;
    if (words.empty()) {
      for_words(of, range, [&](uint64_t w) { words.push_back(w); });
      std::ranges::sort(words);
    }
    for (size_t i = 0; i < words.size();) {
      const uint64_t day = words[i] >> 1;
      Tally tally;
      for (; i < words.size() && words[i] >> 1 == day; ++i) tally.add((words[i] & 1) != 0);
      f(day, tally);
    }
  }

  template <class C>
  void write_counts(size_t of, std::vector<Range>& ranges, const IndexWriter& writer) {
    using Count = decltype(C::all);
    std::vector<int64_t> offsets;
    std::vector<C> cells;
    int64_t written = 0;
    for (Range& range : ranges) {
      offsets.clear();
      cells.clear();
      C sum;
      const auto begin_ids = [&](int64_t end) {
        if (range.begin + std::ssize(offsets) < end) sum = {};
        offsets.resize(static_cast<size_t>(end - range.begin), written + std::ssize(cells));
      };
      for_days(of, range, [&](uint64_t day, const Tally& tally) {
        begin_ids(id_of(day) + 1);
        sum.day = day_of_id(day);
        sum.positive += static_cast<Count>(tally.positive);
        sum.all += static_cast<Count>(tally.all);
        cells.push_back(sum);
      });
      begin_ids(range.end);
      writer.write_items(offsets_section(of), range.begin, std::span<const int64_t>(offsets));
      writer.write_items(cells_section(of), written, std::span<const C>(cells));
      written += std::ssize(cells);
      range.words = {};
    }
    writer.write_items(offsets_section(of), ranges.back().end,
                       std::span<const int64_t>(&written, 1));
  }

  const EventStore &store_, &maps_;
  const DayCountLimits limits_;
  std::span<const uint8_t> success_;
  int64_t wait_;
  std::bitset<256> tried_;
  BuildProgress progress_;
};

DayCounts::DayCounts(IndexFile file, size_t of, bool wide) : file_(std::move(file)) {
  for (size_t k = 0; k < of; ++k) {
    Counts& c = counts_.emplace_back();
    c.offsets = file_.section<int64_t>(offsets_section(k));
    if (wide) {
      c.wide = file_.section<WideCell>(cells_section(k));
    } else {
      c.cells = file_.section<Cell>(cells_section(k));
    }
    // Look-ups trust them.
    if (c.offsets.empty() || c.offsets.front() != 0 || !std::ranges::is_sorted(c.offsets) ||
        c.offsets.back() != static_cast<int64_t>(c.cells.size() + c.wide.size())) {
      file_.fail_senseless("its offsets are wrong");
    }
  }
}

DayCounts DayCounts::open_or_build(const EventStore& piece, const EventStore& maps,
                                   const DayCountLimits& limits) {
  const SampleSchema& schema = piece.schema();
  const bool wide = piece.num_events() > limits.narrow_events;
  const std::string& pool = schema.pools[success_pool(schema)].name;
  uint64_t key = fingerprint_of(piece.items(), kinds_counted(schema));
  key = fingerprint_of(piece.timestamps(), key);
  key = fingerprint_of(piece.kinds(), key);
  key = fingerprint_of(piece.in_pool(success_pool(schema)), key);
  key = fingerprint_of(std::span<const int64_t>(schema.anchor_kinds), key);
  const int64_t wait = outcome_wait(schema);
  if (wait > 0) key = fingerprint_of(std::span<const int64_t>(&wait, 1), key);
  for (size_t a = 0; a < schema.attributes.size(); ++a) {
    key = fingerprint_of_map(maps.attribute_map(a), key);
  }
  constexpr std::string_view kWide = "wide";
  if (wide) key = fingerprint_of(std::span<const char>(kWide), key);
  return {data::open_or_build(
              piece.index_folder(), "counts.idx", key,
              [&](const std::string& path) {
                const std::string made_from[] = {
                    piece.column_path("flat_item_ids"), piece.column_path("flat_timestamps"),
                    piece.column_path("flat_event_types"), piece.column_path("flat_is_" + pool)};
                piece.require_intact(made_from);
                Builder builder(piece, maps, limits);
                if (wide) return builder.write<WideCell>(path, key);
                builder.write<Cell>(path, key);
              }),
          kinds_counted(schema), wide};
}

Tally DayCounts::before(size_t of, int64_t id, int64_t day) const {
  const Counts& c = counts_[of];
  if (id < 0 || id >= std::ssize(c.offsets) - 1) return {};  // candidates may have any
  const auto begin = static_cast<size_t>(c.offsets[static_cast<size_t>(id)]);
  const auto end = static_cast<size_t>(c.offsets[static_cast<size_t>(id) + 1]);
  const auto newest = [&](const auto& cells) -> Tally {
    const auto of_id = cells.subspan(begin, end - begin);
    const auto found = std::ranges::lower_bound(
        of_id, day, {}, [](const auto& cell) -> int64_t { return cell.day; });
    if (found == of_id.begin()) return {};
    const auto& cell = *std::prev(found);
    return {static_cast<int64_t>(cell.positive), static_cast<int64_t>(cell.all)};
  };
  return c.wide.empty() ? newest(c.cells) : newest(c.wide);
}

std::vector<int64_t> DayCounts::days() const {
  std::vector<int64_t> days;
  for (const Cell& cell : counts_[kAll].cells) days.push_back(cell.day);
  for (const WideCell& cell : counts_[kAll].wide) days.push_back(cell.day);
  return days;
}

}  // namespace segue::data
