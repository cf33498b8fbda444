#include "data/inspect/inspect.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <mutex>
#include <numeric>
#include <unordered_set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/npy.h"
#include "base/parallel.h"
#include "data/numbers/day_counts.h"
#include "data/store/cache_folder.h"
#include "data/store/event_log.h"
#include "data/store/windows.h"

namespace segue::data {
namespace {

constexpr int64_t kEventsPerChunk = 1 << 20;
constexpr int64_t kWindowSeconds = 86400;
constexpr int64_t kMaxWindows = WindowIndex::kMaxWindows;

/// One bit per item, set from many threads. Items that nobody knows are left out.
class ItemSet {
 public:
  explicit ItemSet(int64_t items) : items_(items), words_(static_cast<size_t>(items / 64 + 1)) {}
  void insert(int64_t item) {
    if (item < 0 || item >= items_) return;
    std::atomic<uint64_t>& word = words_[static_cast<size_t>(item / 64)];
    const uint64_t bit = uint64_t{1} << (item % 64);
    // Most are there already: reading does not disturb the other cores.
    if ((word.load(std::memory_order_relaxed) & bit) == 0) {
      word.fetch_or(bit, std::memory_order_relaxed);
    }
  }
  int64_t count() const {
    int64_t n = 0;
    for (const auto& word : words_) n += std::popcount(word.load(std::memory_order_relaxed));
    return n;
  }

 private:
  int64_t items_;
  std::vector<std::atomic<uint64_t>> words_;
};

/// A store without attributes has no maps that tell how many items there are.
int64_t known_items(const EventStore& store) {
  int64_t items = store.num_items();
  const EventLog log(store);
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    const std::string popularity = log.piece(p).folder() + "/" + kPopularityFile;
    if (base::exists(popularity)) items = std::max(items, base::NpyFile(popularity).elements());
  }
  return items;
}

/// What one pass over the events counts.
struct EventCounts {
  std::vector<int64_t> kinds, pools, attributes;
  int64_t organic = 0, in_no_pool = 0, predicted = 0, positive = 0, same_time = 0;
  int64_t first_time = std::numeric_limits<int64_t>::max();
  int64_t last_time = std::numeric_limits<int64_t>::min();

  EventCounts(size_t num_kinds, size_t num_pools, size_t num_attributes)
      : kinds(num_kinds), pools(num_pools), attributes(num_attributes) {}

  void add(const EventCounts& other) {
    const auto sum = [](std::vector<int64_t>& to, const std::vector<int64_t>& from) {
      std::transform(from.begin(), from.end(), to.begin(), to.begin(), std::plus<>());
    };
    sum(kinds, other.kinds);
    sum(pools, other.pools);
    sum(attributes, other.attributes);
    organic += other.organic;
    in_no_pool += other.in_no_pool;
    predicted += other.predicted;
    positive += other.positive;
    same_time += other.same_time;
    first_time = std::min(first_time, other.first_time);
    last_time = std::max(last_time, other.last_time);
  }
};

/// Events in no pool of histories, and what the label says of those that are predicted.
void count_labels(const EventStore& piece, size_t begin, size_t end, EventCounts& counts) {
  const SampleSchema& schema = piece.schema();
  const std::optional<size_t> label = schema.label_place();
  const size_t history_pools = schema.num_history_pools();
  for (size_t i = begin; i < end; ++i) {
    bool pooled = false;
    for (size_t p = 0; p < history_pools; ++p) pooled |= piece.in_pool(p)[i] != 0;
    counts.in_no_pool += pooled ? 0 : 1;
    if (std::ranges::find(schema.anchor_kinds, piece.kinds()[i]) == schema.anchor_kinds.end()) {
      continue;
    }
    ++counts.predicted;
    counts.positive += label && piece.in_pool(*label)[i] != 0 ? 1 : 0;
    const bool same_time = i > 0 && piece.users()[i] == piece.users()[i - 1] &&
                           piece.timestamps()[i] == piece.timestamps()[i - 1];
    counts.same_time += same_time ? 1 : 0;
  }
}

void count_chunk(const EventStore& store, const EventStore& piece, size_t begin, size_t end,
                 EventCounts& counts, ItemSet& seen) {
  count_labels(piece, begin, end, counts);
  for (size_t i = begin; i < end; ++i) {
    const auto kind = static_cast<uint64_t>(piece.kinds()[i]);
    if (kind < counts.kinds.size()) ++counts.kinds[kind];
    counts.organic += piece.organic()[i] != 0 ? 1 : 0;
    counts.first_time = std::min(counts.first_time, piece.timestamps()[i]);
    counts.last_time = std::max(counts.last_time, piece.timestamps()[i]);
    const int64_t item = piece.items()[i];
    seen.insert(item);
    if (item < 0 || item >= store.num_items()) continue;
    for (size_t a = 0; a < counts.attributes.size(); ++a) {
      counts.attributes[a] += store.attribute_map(a)[static_cast<size_t>(item)] != 0 ? 1 : 0;
    }
  }
  for (size_t p = 0; p < counts.pools.size(); ++p) {
    const auto pool = piece.in_pool(p).subspan(begin, end - begin);
    counts.pools[p] = std::accumulate(pool.begin(), pool.end(), int64_t{0});
  }
}

EventCounts count_events(const EventStore& store, size_t num_kinds, ItemSet& seen) {
  const EventCounts none(num_kinds, store.schema().pools.size(), store.schema().attributes.size());
  EventCounts total = none;
  std::mutex mutex;  // sums of integers do not depend on the order
  const EventLog log(store);
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    const EventStore& piece = log.piece(p);
    base::parallel_for(piece.num_events(), kEventsPerChunk, [&](int64_t begin, int64_t end) {
      EventCounts part = none;
      count_chunk(store, piece, static_cast<size_t>(begin), static_cast<size_t>(end), part, seen);
      const std::lock_guard lock(mutex);
      total.add(part);
    });
  }
  return total;
}

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

WindowSummary summarize_windows(const EventStore& store, int64_t min_history) {
  WindowSummary w{.min_history = min_history};
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  std::vector<std::span<const int64_t>> pieces;
  const EventLog log(store);
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    const std::span<const int64_t> times = log.piece(p).anchors(min_history).timestamps;
    if (times.empty()) continue;
    const auto [low, high] = std::ranges::minmax(times);
    first = std::min(first, low);
    last = std::max(last, high);
    w.anchors += static_cast<int64_t>(times.size());
    pieces.push_back(times);
  }
  if (pieces.empty()) return w;
  w.first_time = first;
  w.last_time = last;
  int64_t span = 0;
  if (__builtin_sub_overflow(last, first, &span) || span / kWindowSeconds >= kMaxWindows) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: anchors from {} to {} s are further apart than any log; was "
                     "time_unit_seconds of its schema right?",
                     store.folder(), first, last));
  }
  std::vector<int64_t> sizes(static_cast<size_t>(span / kWindowSeconds + 1));
  for (const std::span<const int64_t> times : pieces) {
    for (const int64_t time : times) ++sizes[static_cast<size_t>((time - first) / kWindowSeconds)];
  }
  w.windows = static_cast<int64_t>(sizes.size());
  w.empty = std::ranges::count(sizes, 0);
  w.sizes = spread_of(std::move(sizes));
  return w;
}

/// Length of the history of an event: interleaved, and of the newest events of any pool.
struct HistoryLengths {
  int64_t interleaved = 0, newest = 0;
};

/// Counted from the newest event before `position` on.
HistoryLengths history_lengths(const EventLog& log, int64_t position, int64_t wanted,
                               int64_t window) {
  const size_t num_pools = log.piece(0).schema().num_history_pools();
  const int64_t before = log.events_before(position);
  const std::vector<int64_t> events = log.events_of(log.at(position, &EventStore::users));
  std::vector<int64_t> room(num_pools,
                            std::max<int64_t>(1, wanted / static_cast<int64_t>(num_pools)));
  HistoryLengths lengths;
  auto open = static_cast<int64_t>(num_pools);
  for (int64_t i = before - 1; i >= std::max<int64_t>(0, before - window); --i) {
    bool taken = false, pooled = false;
    for (size_t p = 0; p < num_pools; ++p) {
      if (!log.in_pool(p, events[static_cast<size_t>(i)])) continue;
      pooled = true;
      if (room[p] == 0) continue;
      taken = true;
      if (--room[p] == 0) --open;
    }
    lengths.interleaved += taken ? 1 : 0;
    lengths.newest += pooled && lengths.newest < wanted ? 1 : 0;
    if (open == 0 && lengths.newest == wanted) break;
  }
  return lengths;
}

HistorySummary summarize_histories(const EventStore& store, int64_t min_history,
                                   const InspectConfig& config) {
  HistorySummary h{.history_length = config.history_length};
  const EventLog log(store);
  std::vector<int64_t> ends;  // of the anchors of each piece, in the list of all
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    const auto count = static_cast<int64_t>(log.piece(p).anchors(min_history).positions.size());
    ends.push_back(count + (p > 0 ? ends.back() : 0));
  }
  const auto anchor_at = [&](int64_t i) {
    const auto p = static_cast<size_t>(std::ranges::upper_bound(ends, i) - ends.begin());
    const auto own = static_cast<size_t>(p > 0 ? i - ends[p - 1] : i);
    return log.first(p) + log.piece(p).anchors(min_history).positions[own];
  };
  const int64_t all = ends.back();
  std::vector<int64_t> lengths(static_cast<size_t>(std::min(all, config.history_samples)));
  std::vector<int64_t> newest(lengths.size());
  const auto samples = static_cast<int64_t>(lengths.size());
  base::parallel_for(samples, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // In the middle of its part of the list.
      const int64_t anchor = anchor_at((2 * i + 1) * all / (2 * samples));
      const HistoryLengths of_anchor =
          history_lengths(log, anchor, config.history_length, config.scan_window);
      lengths[static_cast<size_t>(i)] = of_anchor.interleaved;
      newest[static_cast<size_t>(i)] = of_anchor.newest;
    }
  });
  h.lengths = spread_of(std::move(lengths));
  h.newest = spread_of(std::move(newest));
  h.fill = h.lengths.mean / static_cast<double>(config.history_length);
  return h;
}

/// Of the columns [first, end), of which the first has a value wherever one has.
AttributeSummary summarize_attribute(const EventStore& store, size_t first, size_t end,
                                     int64_t events) {
  std::unordered_set<int32_t> values;
  for (size_t a = first; a < end; ++a) {
    const std::span<const int32_t> map = store.attribute_map(a);
    values.insert(map.begin(), map.end());
  }
  values.erase(0);
  const int64_t without = std::ranges::count(store.attribute_map(first), 0);
  const AttributeConfig& a = store.schema().attributes[first];
  return {.name = a.bag.empty() ? a.name : a.bag,
          .values = static_cast<int64_t>(values.size()),
          .item_share = 1 - ratio(without, store.num_items()),
          .event_share = ratio(events, EventLog(store).num_events()),
          .of_one = static_cast<int64_t>(end - first)};
}

}  // namespace

Spread spread_of(std::vector<int64_t> values) {
  Spread s{.count = static_cast<int64_t>(values.size())};
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  // Nearest rank: the smallest value that at least this share of all values does not exceed.
  const auto rank = [&](int64_t per_cent) {
    return values[static_cast<size_t>((s.count * per_cent + 99) / 100 - 1)];
  };
  s.min = values.front();
  s.median = rank(50);
  s.p90 = rank(90);
  s.max = values.back();
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  s.mean = sum / static_cast<double>(s.count);
  return s;
}

LogSchema schema_for(const std::string& store) {
  const std::string folder = store_folder(store);
  if (base::exists(folder + "/" + kSchemaFile)) return read_store_schema(folder);
  find_cache_folder(store);  // what is no store at all has no columns that others could lack
  return LogSchema::preset("yambda-5b");
}

StoreSummary summarize(const EventStore& store, const LogSchema& schema,
                       const InspectConfig& given) {
  const EventLog log(store);
  const std::vector<int64_t> users = log.users();
  StoreSummary s{.folder = store.folder(),
                 .cache_folder = store.cache_folder(),
                 .history_length = store.history_length(),
                 .events = log.num_events(),
                 .users = static_cast<int64_t>(users.size()),
                 .items = known_items(store)};
  if (base::exists(s.folder + "/" + kManifestFile)) {
    const auto segments = static_cast<int64_t>(store.segments().size());
    s.segments = read_manifests(s.folder, segments);
    s.manifest = s.segments.front();
    s.segments.erase(s.segments.begin());
  }
  for (size_t p = 0; p < log.num_pieces(); ++p) s.rows += RowCounts::read(log.piece(p).folder());

  std::vector<int64_t> lengths;
  for (const int64_t user : users) {
    lengths.push_back(0);
    for (size_t p = 0; p < log.num_pieces(); ++p) {
      const UserEvents events = log.piece(p).events_of(user);
      lengths.back() += events.end - events.begin;
    }
  }
  s.events_per_user = spread_of(std::move(lengths));

  ItemSet seen(s.items);
  const EventCounts counts = count_events(store, schema.kinds.size(), seen);
  s.items_seen = seen.count();
  s.organic_share = ratio(counts.organic, s.events);
  s.in_no_pool = counts.in_no_pool;
  s.predicted = counts.predicted;
  if (outcome_wait(store.schema()) == 0) s.same_time = counts.same_time;
  if (!store.schema().label_pool.empty()) s.positive = counts.positive;
  if (s.events > 0) {
    s.first_time = counts.first_time;
    s.last_time = counts.last_time;
  }
  for (size_t i = 0; i < counts.kinds.size(); ++i) {
    s.kinds.push_back({schema.kinds[i], counts.kinds[i], ratio(counts.kinds[i], s.events)});
  }
  for (size_t i = 0; i < counts.pools.size(); ++i) {
    s.pools.push_back(
        {store.schema().pools[i].name, counts.pools[i], ratio(counts.pools[i], s.events)});
  }
  const std::vector<AttributeConfig>& attributes = store.schema().attributes;
  for (size_t i = 0, end = 0; i < counts.attributes.size(); i = end) {
    end = i + columns_of(attributes, i);
    s.attributes.push_back(summarize_attribute(store, i, end, counts.attributes[i]));
  }

  InspectConfig config = given;
  if (config.history_length == 0) config.history_length = store.history_length();
  std::vector<int64_t> floors = {store.history_length()};
  if (s.manifest) floors = s.manifest->min_history;
  if (config.min_history >= 0) floors = {config.min_history};
  for (const int64_t floor : floors) s.windows.push_back(summarize_windows(store, floor));
  s.history = summarize_histories(store, floors.front(), config);
  return s;
}

}  // namespace segue::data
