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
constexpr int64_t kPlacesPerId = 16;                // 8 bytes each; ids further apart are listed
constexpr size_t kEventsPerPass = size_t{1} << 20;  // whose pages stay

constexpr size_t kListed = 0;  // how many ids are listed, of each that is counted
constexpr size_t offsets_section(size_t of) { return 1 + 2 * of; }  // behind the ids
constexpr size_t cells_section(size_t of) { return 2 + 2 * of; }

/// Raised whenever the file gets another form.
constexpr uint64_t kFileForm = 1;

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

uint64_t fingerprint_of_maps(const EventStore& maps, int64_t items_end, uint64_t seed) {
  for (size_t a = 0; a < maps.schema().attributes.size(); ++a) {
    std::span<const int32_t> map = maps.attribute_map(a);
    map = map.first(std::min(map.size(), static_cast<size_t>(items_end)));
    while (!map.empty() && map.back() == 0) map = map.first(map.size() - 1);  // as if not there
    seed = fingerprint_of_map(map, seed);
  }
  return seed;
}

void require_intact(const EventStore& piece, std::initializer_list<const char*> columns) {
  const SampleSchema& schema = piece.schema();
  std::vector<std::string> files = {
      piece.column_path("flat_is_" + schema.pools[success_pool(schema)].name)};
  for (const char* const name : columns) files.push_back(piece.column_path(name));
  piece.require_intact(files);
}

namespace {

/// Elements of a section, one after the other.
template <class T>
class Items {
 public:
  Items(const IndexWriter& writer, size_t section, int64_t first = 0)
      : writer_(writer), section_(section), first_(first) {}
  void add(const T& item) {
    block_.push_back(item);
    ++count_;
    if (block_.size() == kTogether) flush();
  }
  int64_t count() const { return count_; }
  void flush() {
    const int64_t begin = first_ + count_ - std::ssize(block_);
    writer_.write_items(section_, begin, std::span<const T>(block_));
    block_.clear();
  }

 private:
  static constexpr size_t kTogether = size_t{1} << 16;
  const IndexWriter& writer_;
  size_t section_;
  int64_t first_, count_ = 0;
  std::vector<T> block_;
};

}  // namespace

/// Ids in ranges of as many events as are sorted at a time; of one range everything may fit, and
/// the words that were counted are the ones that are written. Where a few ids have more, such as
/// everyone, their days are counted instead.
class DayCounts::Builder {
 public:
  Builder(const EventStore& store, const EventStore& maps, const DayCountLimits& limits)
      : store_(store),
        maps_(maps),
        limits_(limits),
        success_(store.in_pool(success_pool(store.schema()))),
        wait_(outcome_wait(store.schema())),
        progress_(
            "counts",
            kStages * store.num_events() * static_cast<int64_t>(kinds_counted(store.schema())),
            "events") {
    for (const int64_t kind : store.schema().anchor_kinds) tried_.set(static_cast<size_t>(kind));
  }

  template <class C>
  void write(const std::string& path, uint64_t key) {
    const size_t kinds = kinds_counted(store_.schema());
    plans_.reserve(kinds);
    std::vector<int64_t> listed, sizes = {static_cast<int64_t>(kinds * sizeof(int64_t))};
    for (size_t of = 0; of < kinds; ++of) {
      const Plan& plan = plans_.emplace_back(plan_for(of));
      listed.push_back(plan.listed);
      const int64_t offsets = plan.listed > 0 ? 2 * plan.listed + 1 : plan.ranges.back().end + 1;
      sizes.push_back(offsets * static_cast<int64_t>(sizeof(int64_t)));
      sizes.push_back(plan.cells * static_cast<int64_t>(sizeof(C)));
    }
    IndexWriter writer(path, key, sizes);
    writer.write_items(kListed, 0, std::span<const int64_t>(listed));
    for (size_t of = 0; of < kinds; ++of) write_counts<C>(of, plans_[of], writer);
    writer.commit();
  }

 private:
  static constexpr int64_t kStages = 3;  // count events, sort them, write

  /// Of ids.
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t events = 0;
    std::vector<uint64_t> words;  // sorted; may be kept from one stage to the next
  };
  struct Plan {
    std::vector<Range> ranges;
    int64_t cells = 0, listed = 0;
  };

  /// A stage counts as one pass over the events, however many it takes.
  void begin_stage(size_t passes) {
    passes_ = static_cast<int64_t>(passes);
    passes_done_ = reported_ = 0;
  }
  void end_pass() {
    report(store_.num_events());
    ++passes_done_;
  }
  void report(int64_t events) {
    const int64_t now = (passes_done_ * store_.num_events() + events) / passes_;
    progress_.add(now - reported_);
    reported_ = now;
  }

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
      report(static_cast<int64_t>(first + count));
    }
  }

  Plan plan_for(size_t of) {
    std::vector<int64_t> buckets;
    int64_t end = 0;
    begin_stage(1);
    for_events(of, [&](int64_t id, size_t) {
      const auto bucket = static_cast<size_t>(id / limits_.ids_together);
      if (bucket >= buckets.size()) buckets.resize(bucket + 1);
      ++buckets[bucket];
      end = std::max(end, id + 1);
    });
    end_pass();
    Plan plan;
    std::vector<Range>& ranges = plan.ranges;
    ranges.resize(1);
    for (size_t b = 0; b < buckets.size(); ++b) {
      const int64_t events = ranges.back().events;
      if (events > 0 && events + buckets[b] > limits_.events_together) {
        ranges.back().end = static_cast<int64_t>(b) * limits_.ids_together;
        ranges.push_back({.begin = ranges.back().end});
      }
      ranges.back().events += buckets[b];
    }
    ranges.back().end = end;
    int64_t ids = 0, last = -1;
    begin_stage(ranges.size());
    for (Range& range : ranges) {
      for_days(of, range, [&](uint64_t day, const Tally&) {
        ++plan.cells;
        if (std::exchange(last, id_of(day)) != id_of(day)) ++ids;
      });
      if (ranges.size() > 1) drop(range);
      end_pass();
    }
    if (end > std::max(limits_.places, kPlacesPerId * ids)) plan.listed = ids;
    return plan;
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
      if (kept_ + range.events > limits_.events_together) drop_all();
      kept_ += range.events;
      words.reserve(static_cast<size_t>(range.events));
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

  void drop(Range& range) {
    kept_ -= std::ssize(range.words);
    std::vector<uint64_t>().swap(range.words);
  }
  void drop_all() {
    for (Plan& plan : plans_) {
      for (Range& range : plan.ranges) drop(range);
    }
  }

  template <class C>
  void write_counts(size_t of, Plan& plan, const IndexWriter& writer) {
    using Count = decltype(C::all);
    Items<int64_t> ids(writer, offsets_section(of));
    Items<int64_t> offsets(writer, offsets_section(of), plan.listed);
    Items<C> cells(writer, cells_section(of));
    C sum;
    int64_t last = -1;
    begin_stage(plan.ranges.size());
    for (Range& range : plan.ranges) {
      for_days(of, range, [&](uint64_t day, const Tally& tally) {
        if (std::exchange(last, id_of(day)) != id_of(day)) {
          sum = {};
          const int64_t end = plan.listed > 0 ? offsets.count() + 1 : last + 1;
          if (plan.listed > 0) ids.add(last);
          while (offsets.count() < end) offsets.add(cells.count());
        }
        sum.day = day_of_id(day);
        sum.positive += static_cast<Count>(tally.positive);
        sum.all += static_cast<Count>(tally.all);
        cells.add(sum);
      });
      drop(range);
      end_pass();
    }
    const int64_t end = (plan.listed > 0 ? plan.listed : plan.ranges.back().end) + 1;
    while (offsets.count() < end) offsets.add(cells.count());
    ids.flush();
    offsets.flush();
    cells.flush();
  }

  const EventStore &store_, &maps_;
  const DayCountLimits limits_;
  std::span<const uint8_t> success_;
  int64_t wait_;
  std::bitset<256> tried_;
  std::vector<Plan> plans_;
  int64_t kept_ = 0;  // words, of all plans
  BuildProgress progress_;
  int64_t passes_ = 1, passes_done_ = 0, reported_ = 0;  // of the stage
};

DayCounts::DayCounts(IndexFile file, size_t of, bool wide) : file_(std::move(file)) {
  const std::span<const int64_t> listed = file_.section<int64_t>(kListed);
  if (listed.size() != of) file_.fail_senseless("it counts other things");
  for (size_t k = 0; k < of; ++k) {
    Counts& c = counts_.emplace_back();
    c.offsets = file_.section<int64_t>(offsets_section(k));
    if (listed[k] < 0 || listed[k] > std::ssize(c.offsets)) {
      file_.fail_senseless("its lists of ids are wrong");
    }
    c.ids = c.offsets.first(static_cast<size_t>(listed[k]));
    c.offsets = c.offsets.subspan(c.ids.size());
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
    if (!c.ids.empty() &&
        (c.ids.size() + 1 != c.offsets.size() || !std::ranges::is_sorted(c.ids))) {
      file_.fail_senseless("its lists of ids are wrong");
    }
  }
}

DayCounts DayCounts::open_or_build(const EventStore& piece, const EventStore& maps,
                                   const DayCountLimits& limits) {
  const SampleSchema& schema = piece.schema();
  const bool wide = piece.num_events() > limits.narrow_events;
  const size_t success = success_pool(schema);
  uint64_t key = kFileForm << 32 | kinds_counted(schema);
  key = piece.fingerprint_of_column("flat_item_ids", piece.items(), key);
  key = piece.fingerprint_of_column("flat_timestamps", piece.timestamps(), key);
  key = piece.fingerprint_of_column("flat_event_types", piece.kinds(), key);
  key = piece.fingerprint_of_column("flat_is_" + schema.pools[success].name, piece.in_pool(success),
                                    key);
  key = fingerprint_of(std::span<const int64_t>(schema.anchor_kinds), key);
  const int64_t wait = outcome_wait(schema);
  if (wait > 0) key = fingerprint_of(std::span<const int64_t>(&wait, 1), key);
  key = fingerprint_of_maps(maps, piece.items_end(), key);
  constexpr std::string_view kWide = "wide";
  if (wide) key = fingerprint_of(std::span<const char>(kWide), key);
  return {data::open_or_build(
              piece.index_folder(), "counts.idx", key,
              [&](const std::string& path) {
                require_intact(piece, {"flat_item_ids", "flat_timestamps", "flat_event_types"});
                Builder builder(piece, maps, limits);
                if (wide) return builder.write<WideCell>(path, key);
                builder.write<Cell>(path, key);
              }),
          kinds_counted(schema), wide};
}

Tally DayCounts::before(size_t of, int64_t id, int64_t day) const {
  const Counts& c = counts_[of];
  size_t place = static_cast<size_t>(id);
  if (!c.ids.empty()) {
    const auto found = std::ranges::lower_bound(c.ids, id);
    if (found == c.ids.end() || *found != id) return {};
    place = static_cast<size_t>(found - c.ids.begin());
  } else if (id < 0 || id >= std::ssize(c.offsets) - 1) {
    return {};  // candidates may have any
  }
  const auto begin = static_cast<size_t>(c.offsets[place]);
  const auto end = static_cast<size_t>(c.offsets[place + 1]);
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

int64_t DayCounts::end(size_t of, int64_t most) const {
  const Counts& c = counts_[of];
  if (c.ids.empty()) return std::min(std::ssize(c.offsets) - 1, most);
  const auto beyond = std::ranges::lower_bound(c.ids, most);
  return beyond == c.ids.begin() ? 0 : *std::prev(beyond) + 1;
}

std::vector<int64_t> DayCounts::days() const {
  std::vector<int64_t> days;
  for (const Cell& cell : counts_[kAll].cells) days.push_back(cell.day);
  for (const WideCell& cell : counts_[kAll].wide) days.push_back(cell.day);
  return days;
}

}  // namespace segue::data
