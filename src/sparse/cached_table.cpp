#include "sparse/cached_table.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "base/stage.h"
#include "base/time.h"

namespace segue::sparse {
namespace {

constexpr int64_t kGrain = 1 << 12;  // rows, per piece of parallel work

}  // namespace

CachedTable::CachedTable(TableSpec given)
    : RowTable(std::move(given)),
      store_(store_config()),
      index_(planned_rows(), spec().config.cache_policy),
      mover_(store_, spec().init(), shard().columns.begin) {
  // The cache grows where batches in flight need more rows at once than were planned for; the sets
  // may be larger than a small table.
  constexpr int64_t kMostBeyond = int64_t{1} << 26;
  const int64_t most =
      shard().part < 0 ? 0 : index_.set_slots() + std::min(shard().rows(), kMostBeyond);
  const DType dtype = spec().dtype;
  const Device device = spec().device;
  weight_memory_ = GrowingBuffer(device, most * weight_bytes(), Purpose::kTable);
  state_memory_ = GrowingBuffer(device, most * state_bytes(), Purpose::kOptimizer);
  resident_.weights = Tensor(weight_memory_.data(), dtype, device, {most, columns()});
  resident_.state = Tensor(state_memory_.data(), dtype, device, {most, state_columns()});
  mover_.set_resident(resident_);
  if (most > 0) make_room(index_.slots());
}

/// In the cache, of this rank.
int64_t CachedTable::planned_rows() const {
  constexpr double kDefaultShare = 0.1;
  const TableConfig& c = spec().config;
  const int64_t rows = shard().rows();
  if (rows == 0) return 0;
  if (spec().placement.cache_rows > 0) return std::min(rows, spec().placement.cache_rows);
  if (spec().placement.tier == Tier::kHost && c.cache_share == 0) return 1;
  const double share = c.cache_share > 0 ? c.cache_share : kDefaultShare;
  return std::clamp<int64_t>(std::llround(share * static_cast<double>(rows)), 1, rows);
}

RowStoreConfig CachedTable::store_config() const {
  RowStoreConfig c{.table = spec().config.name,
                   .rows = shard().rows(),
                   .weight_bytes = weight_bytes(),
                   .state_bytes = state_bytes(),
                   .device = spec().device};
  if (spec().placement.tier == Tier::kFile) {
    c.folder = spec().spill_folder.empty() ? std::filesystem::temp_directory_path().string()
                                           : spec().spill_folder;
  }
  return c;
}

void CachedTable::make_room(int64_t slots) {
  try {
    if (slots > resident_.weights.size(0)) fail(ErrorCode::kOutOfMemory, "no addresses");
    weight_memory_.grow(slots * weight_bytes());
    state_memory_.grow(slots * state_bytes());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    fail(
        ErrorCode::kOutOfMemory,
        fmt::format("batches in flight use more than {} rows of table `{}` at once, and its cache "
                    "has no memory for more ({}). Raise its `cache_share`, so that room is planned "
                    "for it, or use smaller batches",
                    slots - 1, spec().config.name, error.what()));
  }
  if (static_cast<size_t>(slots) > places_.size()) {
    places_.resize(static_cast<size_t>(slots), RowStore::kNone);
  }
}

void CachedTable::take_releases() {
  std::vector<Release> done;
  {
    const std::lock_guard lock(release_mutex_);
    done.swap(releases_);
  }
  std::vector<int64_t> rows;
  for (const Release& r : done) {
    if (r.wrote && r.number > 0) {
      rows.clear();
      for (const int64_t slot : r.slots.span()) rows.push_back(index_.row_at(slot));
      note_changed(rows);
    }
    index_.release(r.slots.span(), r.wrote, r.number);
  }
  const std::lock_guard lock(release_mutex_);
  std::ranges::move(done, std::back_inserter(spare_));
}

void CachedTable::release(std::span<const int64_t> slots, Mode mode, const Stream* last_use) {
  const std::lock_guard lock(release_mutex_);
  if (last_use != nullptr && mode == Mode::kTraining) {
    dense_weights_ = Buffer();
    dense_state_ = Buffer();
  }
  if (slots.empty()) return;
  Release r;
  if (!spare_.empty()) {
    r = std::move(spare_.back());
    spare_.pop_back();
  }
  r.slots.assign(slots);
  r.wrote = mode == Mode::kTraining;
  r.number = 0;
  if (last_use != nullptr) {
    r.number = ++released_;
    Event& event = events_[static_cast<size_t>(released_) % kEvents];
    event.synchronize();  // so that what has no event any more is known to be over
    event.record(*last_use);
  }
  releases_.push_back(std::move(r));
}

void CachedTable::hold_until_unused(int64_t release, const Stream& stream) {
  const std::lock_guard lock(release_mutex_);
  if (release == 0 || release + static_cast<int64_t>(kEvents) <= released_) return;
  events_[static_cast<size_t>(release) % kEvents].hold(stream);
}

void CachedTable::note_places(Pending& now) {
  const int64_t n = now.changes.size();
  now.place.resize(n);
  now.victim_place.resize(n);
  base::parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const CacheIndex::Change& c = now.changes[i];
      int64_t& place = places_[static_cast<size_t>(c.slot)];
      now.victim_place[i] = c.victim_dirty ? place : RowStore::kNone;
      now.place[i] = place = store_.find(c.row);
    }
  });
}

void CachedTable::add_places(std::span<const int64_t> slots, Pending& now) {
  const auto has_none = [&](int64_t slot) {
    return places_[static_cast<size_t>(slot)] == RowStore::kNone;
  };
  std::atomic<int64_t> missing = 0;
  base::parallel_for(std::ssize(slots), kGrain, [&](int64_t begin, int64_t end) {
    missing += std::count_if(slots.begin() + begin, slots.begin() + end, has_none);
  });
  if (missing == 0) return;
  store_.reserve(missing);
  for (const int64_t slot : slots) {
    if (has_none(slot)) places_[static_cast<size_t>(slot)] = store_.add(index_.row_at(slot));
  }
  for (int64_t i = 0; i < now.changes.size(); ++i) {
    now.place[i] = places_[static_cast<size_t>(now.changes[i].slot)];
  }
}

void CachedTable::find_slots(std::span<int64_t> keys, Mode mode) {
  const std::lock_guard lock(mutex_);
  take_releases();
  if (keys.empty()) return;
  make_local(keys);
  Pending now;
  if (!spare_pending_.empty()) {
    now = std::move(spare_pending_.back());
    spare_pending_.pop_back();
  }
  std::exception_ptr failed;
  try {
    index_.acquire(
        keys, [this](int64_t slots) { make_room(slots); }, now.changes);
  } catch (const Error&) {
    failed = std::current_exception();
  }
  note_places(now);
  // Rows that will be updated get a place to come back to before that: when there is none, nothing
  // has happened yet.
  if (!failed && mode == Mode::kTraining) {
    try {
      add_places(keys, now);
    } catch (const Error&) {
      failed = std::current_exception();
      index_.release(keys, false, 0);
    }
  }
  // Slots that have got other rows have them, whatever became of this batch.
  pending_.push_back(std::move(now));
  if (failed) std::rethrow_exception(failed);
}

bool CachedTable::stage(std::span<const int64_t> /*slots*/, const Stream& copy_stream) {
  const std::lock_guard lock(mutex_);
  const base::Stopwatch watch;
  // Another stage(), maybe on another stream, may have brought rows of this batch.
  staged_.hold(copy_stream);
  bring_all(copy_stream);
  staged_.record(copy_stream);
  stage_seconds_ += watch.seconds();
  return shard().part >= 0;
}

void CachedTable::bring_all(const Stream& stream) {
  for (; !pending_.empty(); pending_.pop_front()) {
    const base::Stage stage("stage rows");
    if (!pending_.front().changes.empty()) bring(pending_.front(), stream);
    spare_pending_.push_back(std::move(pending_.front()));
  }
}

void CachedTable::bring(const Pending& now, const Stream& stream) {
  const int64_t n = now.changes.size();
  RowMoves& moves = mover_.next_moves();
  UploadBlock& block = moves.block;
  moves.slots = block.add<int64_t>(n);
  moves.out = block.add<int64_t>(n);
  moves.in = block.add<int64_t>(n);
  const std::span<int64_t> slots = block.span(moves.slots), out = block.span(moves.out),
                           in = block.span(moves.in);
  std::atomic<int64_t> last_use = 0, rows_out = 0, rows_in = 0;
  base::parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    int64_t latest = 0, leave = 0, come = 0;
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      const CacheIndex::Change& c = now.changes[i];
      const int64_t from = now.place[i], to = now.victim_place[i];
      // A place that nothing was written to belongs to a row that still has its initial values.
      const bool stored = from != RowStore::kNone && store_.written(from);
      slots[at] = c.slot;
      out[at] = to;
      in[at] = stored ? from : RowStore::kNone;
      if (to != RowStore::kNone) store_.set_written(to);
      latest = std::max(latest, c.last_use);
      leave += to != RowStore::kNone;
      come += stored;
    }
    rows_out += leave;
    rows_in += come;
    int64_t known = last_use;
    while (known < latest && !last_use.compare_exchange_weak(known, latest)) {
    }
  });
  moves.rows_out = rows_out;
  moves.rows_in = rows_in;
  if (rows_in < n) {
    moves.new_slots = block.add<int64_t>(n - rows_in);
    moves.new_numbers = block.add<int64_t>(n - rows_in);
    auto slot = block.span(moves.new_slots).begin();
    auto number = block.span(moves.new_numbers).begin();
    const std::span<const int64_t> from = block.span(moves.in);
    for (int64_t i = 0; i < n; ++i) {
      if (from[static_cast<size_t>(i)] != RowStore::kNone) continue;
      *slot++ = now.changes[i].slot;
      *number++ = row_number(now.changes[i].row);
    }
  }
  hold_until_unused(last_use, stream);
  mover_.move(moves, stream);
}

void CachedTable::flush(const Stream& stream) {
  take_releases();
  staged_.hold(stream);
  bring_all(stream);
  {
    const std::lock_guard lock(release_mutex_);
    for (const Event& event : events_) event.hold(stream);
  }
  std::vector<int64_t> slots, places;
  for (int64_t slot = 0; slot < index_.slots(); ++slot) {
    if (!index_.dirty(slot)) continue;
    slots.push_back(slot);
    places.push_back(places_[static_cast<size_t>(slot)]);
    store_.set_written(places.back());
    index_.set_clean(slot);
  }
  RowMoves& moves = mover_.next_moves();
  moves.slots = moves.block.add<int64_t>(slots);
  moves.out = moves.block.add<int64_t>(places);
  moves.in = moves.block.add<int64_t>(std::ssize(slots));
  std::ranges::fill(moves.block.span(moves.in), RowStore::kNone);
  moves.rows_out = std::ssize(slots);
  mover_.move(moves, stream);
  mover_.finish();
  staged_.record(stream);
}

void CachedTable::mark_saved() {
  const std::lock_guard lock(mutex_);
  RowTable::mark_saved();
}

std::vector<TableArray> CachedTable::snapshot(Extent extent) {
  const std::lock_guard lock(mutex_);
  const Stream stream(spec().device);
  flush(stream);
  if (extent == Extent::kChanges) return sparse_snapshot(changed_rows());
  const int64_t values = spec().dim + ops::row_state_size(spec().optimizer, spec().dim);
  const double whole =
      static_cast<double>(spec().config.rows) * static_cast<double>(values * size_of(spec().dtype));
  if (whole > static_cast<double>(dense_bytes_)) {
    std::vector<int64_t> local;
    for (int64_t place = 0; place < store_.size(); ++place) local.push_back(store_.row_at(place));
    std::ranges::sort(local, {}, [this](int64_t row) { return row_number(row); });
    return sparse_snapshot(std::move(local));
  }
  std::vector<TableArray> arrays = dense_snapshot(stream);
  for (TableArray& array : arrays) array.any_rows = true;
  return arrays;
}

std::vector<TableArray> CachedTable::sparse_snapshot(std::vector<int64_t> local) {
  // A batch that was left out may have taken places and written nothing.
  std::erase_if(local, [this](int64_t row) {
    const int64_t place = store_.find(row);
    return place == RowStore::kNone || !store_.written(place);
  });
  saved_rows_ = row_numbers(local);
  saved_order_ = std::move(local);
  for (int64_t& row : saved_order_) row = store_.find(row);
  const int64_t count = std::ssize(saved_rows_);
  const DType dtype = spec().dtype;
  return sparse_arrays(host_view(std::span<int64_t>(saved_rows_)),
                       Tensor(store_.weights(0), dtype, Device::cpu(), {count, columns()}),
                       Tensor(store_.state(0), dtype, Device::cpu(), {count, state_columns()}),
                       saved_order_);
}

std::vector<TableArray> CachedTable::dense_snapshot(const Stream& stream) {
  const DType dtype = spec().dtype;
  const int64_t total = shard().rows();
  dense_weights_ = Buffer(Device::cpu(), total * weight_bytes(), Purpose::kScratch);
  dense_state_ = Buffer(Device::cpu(), total * state_bytes(), Purpose::kScratch);
  const Tensor weights(dense_weights_.data(), dtype, Device::cpu(), {total, columns()});
  const Tensor state(dense_state_.data(), dtype, Device::cpu(), {total, state_columns()});
  // Initial values are those of the device.
  std::vector<int64_t> numbers;
  for (int64_t first = 0; first < total && columns() > 0; first += mover_.chunk_rows()) {
    const int64_t rows = std::min(mover_.chunk_rows(), total - first);
    numbers.clear();
    for (int64_t i = first; i < first + rows; ++i) numbers.push_back(row_number(i));
    mover_.initial_rows(numbers, weights.rows(first, rows), stream);
  }
  base::parallel_for(store_.size(), 1 << 10, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      if (!store_.written(place)) continue;
      const int64_t row = store_.row_at(place);
      std::memcpy(static_cast<std::byte*>(weights.data) + row * weight_bytes(),
                  store_.weights(place), static_cast<size_t>(weight_bytes()));
      if (state_bytes() == 0) continue;
      std::memcpy(static_cast<std::byte*>(state.data) + row * state_bytes(), store_.state(place),
                  static_cast<size_t>(state_bytes()));
    }
  });
  return dense_arrays(weights, state);
}

void CachedTable::load(const SavedArrays& saved) {
  const std::lock_guard lock(mutex_);
  take_releases();
  const Stream stream(spec().device);
  staged_.synchronize();
  for (const Event& event : events_) event.synchronize();
  mover_.finish();
  pending_.clear();
  index_ = CacheIndex(planned_rows(), spec().config.cache_policy);
  std::ranges::fill(places_, RowStore::kNone);
  store_.clear();
  read_rows(saved, [&](const LoadedRows& rows) {
    const int64_t count = std::ssize(rows.local), first = store_.size();
    store_.reserve(count);
    for (const int64_t row : rows.local) store_.set_written(store_.add(row));
    std::memcpy(store_.weights(first), rows.weights, static_cast<size_t>(count * weight_bytes()));
    if (state_bytes() == 0) return;
    std::memcpy(store_.state(first), rows.state, static_cast<size_t>(count * state_bytes()));
  });
}

int64_t CachedTable::bytes() const {
  const std::lock_guard lock(mutex_);
  return weight_memory_.bytes() + state_memory_.bytes();
}

std::optional<TableStats> CachedTable::stats() const {
  const std::lock_guard lock(mutex_);
  TableStats s;
  s.cache.emplace();
  s.cache->rows = index_.rows_held();
  s.cache->capacity = index_.slots();
  s.cache->stored = store_.size();
  s.cache->hits = index_.hits();
  s.cache->misses = index_.misses();
  s.cache->evicted = index_.evicted();
  s.cache->bytes_in = mover_.bytes_in();
  s.cache->bytes_out = mover_.bytes_out();
  s.cache->stage_seconds = stage_seconds_;
  s.cache->stall_seconds = mover_.stall_seconds();
  return s;
}

}  // namespace segue::sparse
