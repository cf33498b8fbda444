#include "sparse/key_table.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "sparse/hash_index_rules.h"

namespace segue::sparse {
namespace {

constexpr int64_t kIdGrain = 1 << 16;
constexpr int64_t kStamps = 3;     // step, score, time
constexpr int64_t kCandidate = 4;  // key and stamps
constexpr int64_t kTotals = 5;     // the counts of TableStats that only rise
constexpr int64_t kLoadBytes = 16 << 20;

/// The first key of a shard.
int64_t first_key(int64_t shard, int64_t shards) {
  const auto width = std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(shards) + 1;
  const uint64_t from = shards == 1 ? 0 : static_cast<uint64_t>(shard) * width;
  return static_cast<int64_t>(from ^ (uint64_t{1} << 63));
}

/// First and one past the last shard of a rank.
std::pair<int64_t, int64_t> shards_at(const TablePlacement& placement, int64_t shards, int rank) {
  const int64_t place = placement.place_of(rank);
  const auto owners = static_cast<int64_t>(placement.ranks.size());
  if (place >= owners) return {0, 0};
  return {shards * place / owners, shards * (place + 1) / owners};
}

/// Of what this rank keeps.
HashIndexConfig index_config(const TableSpec& spec) {
  constexpr int64_t kStartShare = 16;
  const TableConfig& c = spec.config;
  HashIndexConfig config{.max_rows = spec.rows,
                         .start_rows = c.start_rows > 0
                                           ? std::min(c.start_rows, spec.rows)
                                           : std::max<int64_t>(1, spec.rows / kStartShare),
                         .evict = c.evict,
                         .admit_after = c.admit_after,
                         .admit_share = c.admit_share,
                         .ttl_seconds = c.ttl_seconds,
                         .seed = base::splitmix64(spec.seed) ^ base::xxh64(c.name)};
  std::tie(config.first_shard, config.end_shard) =
      shards_at(spec.placement, num_shards(config), spec.rank);
  return config;
}

}  // namespace

int64_t KeyTable::most_rows_of(const TableSpec& spec) {
  const detail::IndexRules rules = detail::rules_of(index_config(spec));
  return rules.shards_here() * rules.max_buckets * rules.rows_per_bucket;
}

KeyTable::KeyTable(TableSpec given, IndexAt index_at) : Table(std::move(given)) {
  const HashIndexConfig config = index_config(spec());
  num_shards_ = num_shards(config);
  if (config.first_shard == config.end_shard) return;
  index_ = make_hash_index(config, index_at == IndexAt::kHost ? Device::cpu() : spec().device);
  most_rows_ = most_rows_of(spec());
}

int64_t KeyTable::check(const Lookup& /*lookup*/) const { return 0; }

void KeyTable::make_keys(std::span<const int64_t> ids, int64_t* keys) const {
  if (!mixes_early()) {
    std::ranges::copy(ids, keys);
    return;
  }
  base::parallel_for(std::ssize(ids), kIdGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) keys[i] = key_of_id(ids[static_cast<size_t>(i)]);
  });
}

std::pair<int64_t, int64_t> KeyTable::shards_of(int rank) const {
  return shards_at(spec().placement, num_shards_, rank);
}

Share KeyTable::share_of(int rank) const {
  const auto [first, end] = shards_of(rank);
  if (first == end) return {};
  return {
      first_key(first, num_shards_),
      end == num_shards_ ? std::numeric_limits<int64_t>::max() : first_key(end, num_shards_) - 1,
      {0, spec().dim}};
}

void KeyTable::find_slots(std::span<int64_t> /*keys*/, Mode /*mode*/) {}

bool KeyTable::counts_uses() const {
  const TableConfig& c = spec().config;
  return c.evict == Evict::kLfu || c.admit_after > 1 || c.admit_share < 1;
}

void KeyTable::count_batch(Mode mode) {
  saved_ = {};
  if (mode == Mode::kTraining) ++clock_;
}

ops::MissingRows KeyTable::missing_rows() const {
  ops::MissingRows missing;
  missing.init = spec().init();
  missing.mixed = mixes_early();
  return missing;
}

Resident KeyTable::rows_at(void* weights, void* state, int64_t rows, Device device) const {
  return {Tensor(weights, spec().dtype, device, {rows, spec().dim}),
          Tensor(state, spec().dtype, device, {rows, state_columns()})};
}

std::shared_ptr<KeyTable::Saved> KeyTable::begin_snapshot(Extent extent) {
  auto saved = std::make_shared<Saved>();
  SEGUE_ASSERT(extent == Extent::kAll || marked_ != nullptr, "changes since nothing was saved");
  saved->extent = extent;
  saved->before = marked_;
  saved->now = shown_ = std::make_shared<Mark>();
  saved->now->clock = clock_;
  saved->clock = {clock_};
  const TableStats now = *KeyTable::stats();
  saved->totals = {now.inserted, now.evicted, now.expired, now.refused, now.growths};
  return saved;
}

/// In the order of keys: the same on any number of ranks, whatever the numbers of rows.
void KeyTable::add_entries(Saved& saved, const HashIndex::Entries& entries) const {
  const bool changes = saved.extent == Extent::kChanges;
  const auto at = [](const std::vector<int64_t>& v, size_t i) { return v.empty() ? 0 : v[i]; };
  for (size_t i = 0; i < entries.keys.size(); ++i) {
    const int64_t stamps[kStamps] = {entries.steps[i], at(entries.scores, i), at(entries.times, i)};
    const bool has_row = entries.rows[i] >= 0;
    if (has_row) saved.now->keys.push_back(entries.keys[i]);
    // Every use of training leaves its step.
    if (has_row && changes && entries.steps[i] <= saved.before->clock) continue;
    (has_row ? saved.keys : saved.candidates).push_back(entries.keys[i]);
    std::vector<int64_t>& to = has_row ? saved.stamps : saved.candidates;
    to.insert(to.end(), stamps, stamps + kStamps);
    if (has_row) saved.order.push_back(entries.rows[i]);
  }
  saved.buckets = entries.buckets;
  if (changes) {
    std::ranges::set_difference(saved.before->keys, saved.now->keys,
                                std::back_inserter(saved.removed));
  }
}

std::vector<TableArray> KeyTable::arrays_of(Saved& saved, const Resident& rows) const {
  const auto matrix = [](std::vector<int64_t>& values, int64_t columns) {
    return Tensor(values.data(), DType::kI64, Device::cpu(),
                  {std::ssize(values) / columns, columns});
  };
  std::vector<TableArray> arrays;
  const auto add = [&](const char* name, const Tensor& value, std::span<const int64_t> order = {}) {
    TableArray array{.name = name, .value = value, .any_rows = true, .order = order};
    if (spec().ranks > 1) {
      array.part = ArrayPart::stack(value, spec().rank);
      array.saved_here = index_ != nullptr;
    }
    arrays.push_back(std::move(array));
  };
  const auto saved_rows = [&](const Tensor& all) {
    return Tensor(all.data, all.dtype, all.device, {std::ssize(saved.order), all.size(1)});
  };
  add("weight", saved_rows(rows.weights), saved.order);
  add("state", saved_rows(rows.state), saved.order);
  add("key", host_view(std::span<int64_t>(saved.keys)));
  add("stamp", matrix(saved.stamps, kStamps));
  add("candidate", matrix(saved.candidates, kCandidate));
  add("buckets", host_view(std::span<int64_t>(saved.buckets)));
  add("totals", matrix(saved.totals, kTotals));
  if (saved.extent == Extent::kChanges) {
    add("removed", host_view(std::span<int64_t>(saved.removed)));
  }
  arrays.push_back(
      {.name = "clock", .value = host_view(std::span<int64_t>(saved.clock)), .any_rows = true});
  return arrays;
}

std::vector<int64_t> KeyTable::load_entries(const SavedArrays& saved,
                                            HashIndex::Entries& entries) const {
  const auto read = [&](const char* name, int64_t columns) {
    return saved_integers(saved, name, columns);
  };
  // A static table has no keys: its rows, all or those that were touched, are the ids.
  const int64_t rows = saved.shape("weight").value().front();
  const bool was_static = !saved.shape("key");
  std::vector<int64_t> keys = read("key", 1), stamps = read("stamp", kStamps);
  const std::vector<int64_t> candidates = read("candidate", kCandidate);
  if (was_static) {
    std::vector<int64_t> ids = read("row", 1);
    if (!saved.shape("row")) {
      ids.resize(static_cast<size_t>(rows));
      std::iota(ids.begin(), ids.end(), int64_t{0});
    }
    std::ranges::transform(ids, std::back_inserter(keys), key_of_id);
    stamps.assign(ids.size() * kStamps, 0);
  }
  if (std::ssize(keys) != rows || std::ssize(stamps) != rows * kStamps) {
    fail(ErrorCode::kCorrupt,
         fmt::format("table `{}` of the checkpoint has {} rows, {} keys and {} stamps",
                     spec().config.name, rows, keys.size(), stamps.size() / kStamps));
  }

  const Share share = share_of(spec().rank);
  struct Entry {
    int64_t key, place;  // place -1: a candidate
    const int64_t* stamps;
  };
  std::vector<Entry> mine;
  const auto add = [&](int64_t key, int64_t place, const int64_t* of) {
    if (key >= share.first_key && key <= share.last_key) mine.push_back({key, place, of});
  };
  for (int64_t r = 0; r < rows; ++r) {
    add(keys[static_cast<size_t>(r)], r, &stamps[static_cast<size_t>(r * kStamps)]);
  }
  for (size_t i = 0; i < candidates.size(); i += kCandidate) {
    add(candidates[i], -1, &candidates[i + 1]);
  }
  std::ranges::sort(mine, {}, &Entry::key);
  std::vector<int64_t> places;
  for (const Entry& entry : mine) {
    if (!entries.keys.empty() && entries.keys.back() == entry.key) {
      fail(ErrorCode::kCorrupt,
           fmt::format("table `{}` of the checkpoint has a key twice", spec().config.name));
    }
    entries.keys.push_back(entry.key);
    entries.rows.push_back(entry.place < 0 ? -1 : std::ssize(places));
    entries.steps.push_back(entry.stamps[0]);
    entries.scores.push_back(entry.stamps[1]);
    entries.times.push_back(entry.stamps[2]);
    if (entry.place >= 0) places.push_back(entry.place);
  }
  // The sizes of shards decide what will be forgotten next; with other shards they say nothing.
  const std::vector<int64_t> buckets = read("buckets", 1);
  if (std::ssize(buckets) == num_shards_) {
    const HashIndexConfig& kept = index_->config();
    entries.buckets.assign(buckets.begin() + kept.first_shard, buckets.begin() + kept.end_shard);
  }
  return places;
}

void KeyTable::read_rows(const SavedArrays& saved, std::span<const int64_t> places,
                         const Resident& rows) const {
  const auto read = [&](const char* name, const Tensor& to) {
    const int64_t columns = to.size(1), row_bytes = columns * size_of(to.dtype);
    if (columns == 0 || places.empty()) return;
    const int64_t chunk = std::max<int64_t>(1, kLoadBytes / row_bytes);
    const Buffer staging(Device::cpu(), std::min(chunk, std::ssize(places)) * row_bytes,
                         Purpose::kScratch);
    const Stream stream(to.device);
    for (int64_t first = 0; first < std::ssize(places); first += chunk) {
      const int64_t count = std::min(chunk, std::ssize(places) - first);
      auto* const host = static_cast<char*>(staging.data());
      base::parallel_for(count, 1 << 10, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          saved.read(name, to.dtype, places[static_cast<size_t>(first + i)], 1,
                     host + i * row_bytes);
        }
      });
      copy(to.rows(first, count), Tensor(host, to.dtype, Device::cpu(), {count, columns}), &stream);
      stream.synchronize();
    }
  };
  read("weight", rows.weights);
  read("state", rows.state);
}

void KeyTable::load(const SavedArrays& saved) {
  const std::string& name = spec().config.name;
  int64_t rows = -1;
  const auto check_columns = [&](const char* array, int64_t columns) {
    const std::optional<std::vector<int64_t>> shape = saved.shape(array);
    if (shape && shape->size() == 2 && (*shape)[1] == columns) {
      if (rows >= 0 && (*shape)[0] != rows) {
        fail(ErrorCode::kCorrupt,
             fmt::format("table `{}` of the checkpoint has {} rows and {} of {}", name, rows,
                         (*shape)[0], array));
      }
      rows = (*shape)[0];
      return;
    }
    fail(ErrorCode::kConfig,
         fmt::format("table `{}` was saved with {} columns of {}, here it has {}; resume with the "
                     "`dim` and `optimizer` of that run",
                     name, shape && shape->size() == 2 ? (*shape)[1] : 0, array, columns));
  };
  check_columns("weight", spec().dim);
  check_columns("state", state_columns());
  if (saved.shape("clock")) {
    const std::vector<int64_t> clock = saved_integers(saved, "clock", 1);
    if (clock.size() != 1 || clock[0] < 0 || clock[0] > detail::kMostSteps / 2) {
      fail(ErrorCode::kCorrupt,
           fmt::format("table `{}` of the checkpoint has no count of batches", name));
    }
    clock_ = clock[0];
  }
  load_totals(saved);
  if (index_ == nullptr) return;
  HashIndex::Entries entries;
  const std::vector<int64_t> places = load_entries(saved, entries);
  try {
    index_->load(entries);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfig) throw;
    fail(ErrorCode::kConfig,
         fmt::format("table `{}`: {} rows of the checkpoint do not fit; raise `max_rows`, best to "
                     "at least {}",
                     name, places.size(), 2 * std::ssize(places) * spec().ranks));
  }
  std::vector<int64_t> keys;
  for (size_t i = 0; i < entries.keys.size(); ++i) {
    if (entries.rows[i] >= 0) keys.push_back(entries.keys[i]);
  }
  load_rows(saved, places, keys);
}

/// Each owner goes on with its own, or the first one with those of all where there are others now.
void KeyTable::load_totals(const SavedArrays& saved) {
  before_ = {};
  const std::optional<std::vector<int64_t>> shape = saved.shape("totals");
  if (!shape) return;
  const std::vector<int64_t> all = saved_integers(saved, "totals", kTotals);
  const int64_t owners = shape->front();
  const int64_t place = spec().placement.place_of(spec().rank);
  const bool same = owners == std::ssize(spec().placement.ranks);
  for (int64_t owner = 0; owner < owners; ++owner) {
    if (same ? owner != place : place != 0) continue;
    const int64_t* of = &all[static_cast<size_t>(owner * kTotals)];
    before_.inserted += of[0];
    before_.evicted += of[1];
    before_.expired += of[2];
    before_.refused += of[3];
    before_.growths += of[4];
  }
}

std::optional<TableStats> KeyTable::stats() const {
  TableStats s = before_;
  s.dynamic = true;
  if (index_ == nullptr) return s;
  const HashIndex::Counts c = index_->counts();
  s.rows = c.rows;
  s.capacity = most_rows_;
  s.candidates = c.candidates;
  s.inserted += c.inserted;
  s.evicted += c.evicted;
  s.expired += c.expired;
  s.refused += c.refused;
  s.growths += c.growths;
  return s;
}

}  // namespace segue::sparse
