#include "data/numbers/day_counts.h"

#include <algorithm>
#include <bitset>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "data/numbers/known_at.h"

namespace segue::data {
namespace {

constexpr int64_t kLargestId = std::numeric_limits<int32_t>::max();
constexpr int64_t kEventsTogether = int64_t{1} << 25;  // sorted at a time, 8 bytes each
constexpr size_t kEventsPerPass = size_t{1} << 20;     // whose pages stay
constexpr int64_t kIdsPerBucket = 1 << 12;

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
/// cells that were counted are the ones that are written.
class DayCounts::Builder {
 public:
  Builder(const EventStore& store, const EventStore& maps)
      : store_(store),
        maps_(maps),
        success_(store.in_pool(success_pool(store.schema()))),
        wait_(outcome_wait(store.schema())),
        progress_("counts",
                  2 * store.num_events() * static_cast<int64_t>(kinds_counted(store.schema())),
                  "events") {
    for (const int64_t kind : store.schema().anchor_kinds) tried_.set(static_cast<size_t>(kind));
  }

  void write(const std::string& path, uint64_t key) {
    std::vector<int64_t> sizes;
    std::vector<Plan> plans;
    for (size_t of = 0; of < kinds_counted(store_.schema()); ++of) {
      Plan& plan = plans.emplace_back(plan_for(of));
      sizes.push_back((plan.largest + 2) * static_cast<int64_t>(sizeof(int64_t)));
      sizes.push_back(plan.total() * static_cast<int64_t>(sizeof(Cell)));
    }
    IndexWriter writer(path, key, sizes);
    for (size_t of = 0; of < plans.size(); ++of) write_counts(of, plans[of], writer);
    writer.commit();
  }

 private:
  struct Plan {
    int64_t largest = -1;          // id
    std::vector<int64_t> first;    // id of every range, one more at the end
    std::vector<int64_t> cells;    // of every range
    std::vector<uint64_t> sorted;  // of the only range
    int64_t total() const {
      int64_t sum = 0;
      for (const int64_t c : cells) sum += c;
      return sum;
    }
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

  Plan plan_for(size_t of) {
    Plan plan;
    std::vector<int64_t> buckets;
    for_events(of, [&](int64_t id, size_t) {
      const auto bucket = static_cast<size_t>(id / kIdsPerBucket);
      if (bucket >= buckets.size()) buckets.resize(bucket + 1);
      ++buckets[bucket];
      plan.largest = std::max(plan.largest, id);
    });
    int64_t events = 0;
    plan.first.push_back(0);
    for (size_t b = 0; b < buckets.size(); ++b) {
      if (events > 0 && events + buckets[b] > kEventsTogether) {
        plan.first.push_back(static_cast<int64_t>(b) * kIdsPerBucket);
        events = 0;
      }
      events += buckets[b];
    }
    plan.first.push_back(plan.largest + 1);
    for (size_t r = 0; r + 1 < plan.first.size(); ++r) {
      std::vector<uint64_t> sorted = sort_range(of, plan, r);
      int64_t cells = 0;
      for (size_t i = 0; i < sorted.size(); ++i) {
        cells += i == 0 || sorted[i] >> 1 != sorted[i - 1] >> 1 ? 1 : 0;
      }
      plan.cells.push_back(cells);
      if (plan.first.size() == 2) plan.sorted = std::move(sorted);
    }
    return plan;
  }

  // A word of what is sorted: id, day, success.
  static uint64_t word(int64_t id, int64_t day, bool success) {
    const auto from_first = static_cast<uint64_t>(day - std::numeric_limits<int32_t>::min());
    return static_cast<uint64_t>(id) << 33 | from_first << 1 | (success ? 1 : 0);
  }
  static int64_t id_of(uint64_t word) { return static_cast<int64_t>(word >> 33); }
  static int32_t day_of_word(uint64_t word) {
    return static_cast<int32_t>(static_cast<int64_t>(word >> 1 & 0xffffffffu) +
                                std::numeric_limits<int32_t>::min());
  }

  std::vector<uint64_t> sort_range(size_t of, const Plan& plan, size_t range) {
    const int64_t first = plan.first[range], end = plan.first[range + 1];
    std::vector<uint64_t> words;
    for_events(of, [&](int64_t id, size_t i) {
      if (id < first || id >= end) return;
      words.push_back(word(id, day_of(known_at(store_.timestamps()[i], wait_)), success_[i] != 0));
    });
    std::ranges::sort(words);
    return words;
  }

  void write_counts(size_t of, Plan& plan, const IndexWriter& writer) {
    std::vector<int64_t> offsets;
    std::vector<Cell> cells;
    int64_t written = 0;
    for (size_t r = 0; r + 1 < plan.first.size(); ++r) {
      const std::vector<uint64_t> words =
          plan.first.size() == 2 ? std::move(plan.sorted) : sort_range(of, plan, r);
      const int64_t first_id = plan.first[r], count = plan.first[r + 1] - first_id;
      offsets.assign(static_cast<size_t>(count), 0);
      cells.clear();
      size_t at = 0;
      for (int64_t id = first_id; id < first_id + count; ++id) {
        offsets[static_cast<size_t>(id - first_id)] = written + static_cast<int64_t>(cells.size());
        Cell sum;
        for (; at < words.size() && id_of(words[at]) == id; ++at) {
          const bool new_day = sum.all == 0 || sum.day != day_of_word(words[at]);
          sum.day = day_of_word(words[at]);
          sum.positive += static_cast<uint32_t>(words[at] & 1);
          ++sum.all;
          if (new_day) cells.emplace_back();
          cells.back() = sum;
        }
      }
      writer.write_items(offsets_section(of), first_id, std::span<const int64_t>(offsets));
      writer.write_items(cells_section(of), written, std::span<const Cell>(cells));
      written += static_cast<int64_t>(cells.size());
    }
    writer.write_items(offsets_section(of), plan.largest + 1,
                       std::span<const int64_t>(&written, 1));
  }

  const EventStore &store_, &maps_;
  std::span<const uint8_t> success_;
  int64_t wait_;
  std::bitset<256> tried_;
  BuildProgress progress_;
};

DayCounts::DayCounts(IndexFile file, size_t of) : file_(std::move(file)) {
  for (size_t k = 0; k < of; ++k) {
    counts_.push_back(
        {file_.section<int64_t>(offsets_section(k)), file_.section<Cell>(cells_section(k))});
    const std::span<const int64_t> offsets = counts_[k].offsets;  // look-ups trust them
    if (offsets.empty() || offsets.front() != 0 || !std::ranges::is_sorted(offsets) ||
        offsets.back() != static_cast<int64_t>(counts_[k].cells.size())) {
      file_.fail_senseless("its offsets are wrong");
    }
  }
}

DayCounts DayCounts::open_or_build(const EventStore& piece, const EventStore& maps) {
  const SampleSchema& schema = piece.schema();
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
  return {data::open_or_build(
              piece.index_folder(), "counts.idx", key,
              [&](const std::string& path) {
                const std::string made_from[] = {
                    piece.column_path("flat_item_ids"), piece.column_path("flat_timestamps"),
                    piece.column_path("flat_event_types"), piece.column_path("flat_is_" + pool)};
                piece.require_intact(made_from);
                Builder(piece, maps).write(path, key);
              }),
          kinds_counted(schema)};
}

Tally DayCounts::before(size_t of, int64_t id, int64_t day) const {
  const Counts& c = counts_[of];
  if (id < 0 || id >= std::ssize(c.offsets) - 1) return {};  // candidates may have any
  const auto begin = c.cells.begin() + c.offsets[static_cast<size_t>(id)];
  const auto end = c.cells.begin() + c.offsets[static_cast<size_t>(id) + 1];
  const auto found =
      std::lower_bound(begin, end, day, [](const Cell& cell, int64_t d) { return cell.day < d; });
  if (found == begin) return {};
  return {std::prev(found)->positive, std::prev(found)->all};
}

}  // namespace segue::data
