#include "sparse/cached_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "base/stage.h"
#include "base/time.h"
#include "ops/initialize.h"
#include "ops/rows.h"

namespace segue::sparse {
namespace {

constexpr int64_t kChunkBytes = CachedTable::kStagingBytes / 2;  // one each way
constexpr int64_t kCopyBytes = 1 << 16;  // of rows, per piece of parallel work

Exec exec_on(const Stream& stream) {
  Exec exec;
  exec.stream = &stream;
  exec.device = stream.device();
  return exec;
}

}  // namespace

CachedTable::CachedTable(TableSpec given)
    : RowTable(std::move(given)),
      store_(store_config()),
      index_(planned_rows(), spec().config.cache_policy) {
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
                   .state_bytes = state_bytes()};
  if (spec().placement.tier == Tier::kFile) {
    c.folder = spec().spill_folder.empty() ? std::filesystem::temp_directory_path().string()
                                           : spec().spill_folder;
  }
  return c;
}

int64_t CachedTable::chunk_rows() const {
  return std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, weight_bytes() + state_bytes()));
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

void CachedTable::find_slots(std::span<int64_t> keys, Mode mode) {
  const std::lock_guard lock(mutex_);
  take_releases();
  if (keys.empty()) return;
  make_local(keys);
  Pending now;
  const auto note = [&] {
    for (const CacheIndex::Change& c : now.changes) {
      int64_t& place = places_[static_cast<size_t>(c.slot)];
      now.victim_place.push_back(c.victim_dirty ? place : RowStore::kNone);
      place = store_.find(c.row);
    }
  };
  const auto grow = [this](int64_t slots) { make_room(slots); };
  try {
    index_.acquire(keys, grow, now.changes);
  } catch (const Error&) {
    note();
    for (const CacheIndex::Change& c : now.changes) {
      now.place.push_back(places_[static_cast<size_t>(c.slot)]);
    }
    pending_.push_back(std::move(now));
    throw;
  }
  note();
  // Rows that will be updated get a place to come back to before that: when there is none, nothing
  // has happened yet.
  const auto has_none = [&](int64_t slot) {
    return places_[static_cast<size_t>(slot)] == RowStore::kNone;
  };
  std::exception_ptr full;
  if (mode == Mode::kTraining) {
    try {
      store_.reserve(std::ranges::count_if(keys, has_none));
      for (const int64_t slot : keys) {
        if (has_none(slot)) places_[static_cast<size_t>(slot)] = store_.add(index_.row_at(slot));
      }
    } catch (const Error&) {
      full = std::current_exception();
      index_.release(keys, false, 0);
    }
  }
  for (const CacheIndex::Change& c : now.changes) {
    now.place.push_back(places_[static_cast<size_t>(c.slot)]);
  }
  if (!now.changes.empty()) pending_.push_back(std::move(now));
  if (full) std::rethrow_exception(full);
}

bool CachedTable::stage(std::span<const int64_t> /*slots*/, const Stream& copy_stream) {
  const std::lock_guard lock(mutex_);
  const base::Stopwatch watch;
  // Another stage(), maybe on another stream, may have brought rows of this batch.
  staged_.hold(copy_stream);
  bring_all(copy_stream);
  staged_.record(copy_stream);
  counted_.stage_seconds += watch.seconds();
  return shard().part >= 0;
}

void CachedTable::bring_all(const Stream& stream) {
  for (; !pending_.empty(); pending_.pop_front()) {
    const base::Stage stage("stage rows");
    land_all();  // rows may come back that have just left
    const Pending& now = pending_.front();
    int64_t last_use = 0;
    std::vector<int64_t> slots, places;
    for (size_t i = 0; i < now.changes.size(); ++i) {
      const CacheIndex::Change& c = now.changes[i];
      last_use = std::max(last_use, c.last_use);
      if (!c.victim_dirty) continue;
      slots.push_back(c.slot);
      places.push_back(now.victim_place[i]);
    }
    hold_until_unused(last_use, stream);
    send_out(slots, places, stream);
    bring_in(now, stream);
  }
}

void CachedTable::wait(const Event& event) {
  const base::Stopwatch watch;
  event.synchronize();
  counted_.stall_seconds += watch.seconds();
}

void CachedTable::prepare_chunk(Chunk& chunk, int64_t rows) {
  if (spec().device.is_cuda()) {
    chunk.index.set_memory(HostMemory::kPinned);
    chunk.numbers.set_memory(HostMemory::kPinned);
    chunk.weights.set_memory(HostMemory::kPinned);
    chunk.state.set_memory(HostMemory::kPinned);
  }
  chunk.rows = rows;
  chunk.index.resize(rows);
  chunk.numbers.resize(rows);
  chunk.weights.resize(rows * weight_bytes());
  chunk.state.resize(rows * state_bytes());
}

/// Where ops have the arrays of a chunk.
CachedTable::Placed CachedTable::place(Chunk& chunk, Scratch& scratch, int64_t rows) {
  const Device device = spec().device;
  const DType dtype = spec().dtype;
  if (device.is_cpu()) {
    return {chunk.index.tensor(), chunk.numbers.tensor(),
            Tensor(chunk.weights.data(), dtype, device, {rows, columns()}),
            Tensor(chunk.state.data(), dtype, device, {rows, state_columns()})};
  }
  const auto there = [&](Buffer& buffer, int64_t row_bytes) {
    if (buffer.bytes() < rows * row_bytes) {
      const int64_t most = std::min(chunk_rows(), 2 * rows);
      buffer = Buffer(device, most * row_bytes, Purpose::kScratch);
    }
    return buffer.data();
  };
  constexpr int64_t kWord = sizeof(int64_t);
  return {Tensor(there(scratch.index, kWord), DType::kI64, device, {rows}),
          Tensor(there(scratch.numbers, kWord), DType::kI64, device, {rows}),
          Tensor(there(scratch.weights, weight_bytes()), dtype, device, {rows, columns()}),
          Tensor(there(scratch.state, state_bytes()), dtype, device, {rows, state_columns()})};
}

void CachedTable::send_out(std::span<const int64_t> slots, std::span<const int64_t> places,
                           const Stream& stream) {
  const Exec exec = exec_on(stream);
  const int64_t total = std::ssize(slots);
  for (int64_t first = 0; first < total; first += chunk_rows()) {
    const int64_t rows = std::min(chunk_rows(), total - first);
    Chunk& chunk = out_[next_out_++ % kChunks];
    land(chunk);
    prepare_chunk(chunk, rows);
    std::copy_n(slots.begin() + first, rows, chunk.index.data());
    std::copy_n(places.begin() + first, rows, chunk.numbers.data());
    const Placed placed = place(chunk, out_scratch_, rows);
    const bool copies = spec().device.is_cuda();
    if (copies) copy(placed.index, chunk.index.tensor(), &stream);
    ops::gather_rows(exec, resident_.weights, placed.index, placed.weights);
    if (state_bytes() > 0) ops::gather_rows(exec, resident_.state, placed.index, placed.state);
    if (copies) {
      copy_bytes(chunk.weights.data(), Device::cpu(), placed.weights.data, spec().device,
                 static_cast<size_t>(chunk.weights.size()), &stream);
      if (state_bytes() > 0) {
        copy_bytes(chunk.state.data(), Device::cpu(), placed.state.data, spec().device,
                   static_cast<size_t>(chunk.state.size()), &stream);
      }
    }
    chunk.done.record(stream);
    chunk.in_flight = true;
    counted_.bytes_out += rows * (weight_bytes() + state_bytes());
  }
}

void CachedTable::land(Chunk& chunk) {
  if (!chunk.in_flight) return;
  wait(chunk.done);
  const auto weight = static_cast<size_t>(weight_bytes()),
             state = static_cast<size_t>(state_bytes());
  base::parallel_for(
      chunk.rows, std::max<int64_t>(1, kCopyBytes / std::max<int64_t>(1, weight_bytes())),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t place = chunk.numbers[i];
          std::memcpy(store_.weights(place), chunk.weights.data() + i * weight_bytes(), weight);
          if (state > 0) {
            std::memcpy(store_.state(place), chunk.state.data() + i * state_bytes(), state);
          }
        }
      });
  for (const int64_t place : chunk.numbers.span()) store_.set_written(place);
  chunk.in_flight = false;
}

void CachedTable::land_all() {
  // Oldest first: a row may be among several.
  for (size_t i = 0; i < kChunks; ++i) land(out_[(next_out_ + i) % kChunks]);
}

void CachedTable::bring_in(const Pending& pending, const Stream& stream) {
  const Exec exec = exec_on(stream);
  const auto weight = static_cast<size_t>(weight_bytes()),
             state = static_cast<size_t>(state_bytes());
  // Those that the store has, then those that begin.
  std::vector<size_t> order(pending.changes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto stored = [&](size_t i) {
    return pending.place[i] != RowStore::kNone && store_.written(pending.place[i]);
  };
  const auto begins = std::stable_partition(order.begin(), order.end(), stored);
  const int64_t total = std::ssize(order), num_stored = begins - order.begin();
  for (int64_t first = 0; first < total; first += chunk_rows()) {
    const int64_t rows = std::min(chunk_rows(), total - first);
    const int64_t fetched = std::clamp<int64_t>(num_stored - first, 0, rows);
    Chunk& chunk = in_[next_in_++ % kChunks];
    if (chunk.in_flight) wait(chunk.done);
    prepare_chunk(chunk, rows);
    base::parallel_for(
        rows, std::max<int64_t>(1, kCopyBytes / std::max<int64_t>(1, weight_bytes())),
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const size_t which = order[static_cast<size_t>(first + i)];
            const CacheIndex::Change& c = pending.changes[which];
            chunk.index[i] = c.slot;
            chunk.numbers[i] = row_number(c.row);
            if (i >= fetched) continue;
            const int64_t at = pending.place[which];
            std::memcpy(chunk.weights.data() + i * weight_bytes(), store_.weights(at), weight);
            if (state > 0) {
              std::memcpy(chunk.state.data() + i * state_bytes(), store_.state(at), state);
            }
          }
        });
    const Placed placed = place(chunk, in_scratch_, rows);
    if (spec().device.is_cuda()) {
      copy(placed.index, chunk.index.tensor(), &stream);
      copy(placed.numbers, chunk.numbers.tensor(), &stream);
      const auto send = [&](const Tensor& to, const HostArray<std::byte>& from, int64_t row_bytes) {
        if (fetched * row_bytes == 0) return;
        copy_bytes(to.data, spec().device, from.data(), Device::cpu(),
                   static_cast<size_t>(fetched * row_bytes), &stream);
      };
      send(placed.weights, chunk.weights, weight_bytes());
      send(placed.state, chunk.state, state_bytes());
    }
    if (fetched < rows) {
      ops::initialize_part(placed.weights.rows(fetched, rows - fetched), spec().init(),
                           placed.numbers.narrow(0, fetched, rows - fetched), shard().columns.begin,
                           &stream);
      if (state > 0) zero(placed.state.rows(fetched, rows - fetched), &stream);
    }
    ops::scatter_rows(exec, placed.weights, placed.index, resident_.weights);
    if (state > 0) ops::scatter_rows(exec, placed.state, placed.index, resident_.state);
    chunk.done.record(stream);
    chunk.in_flight = true;
    counted_.bytes_in += fetched * (weight_bytes() + state_bytes());
  }
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
    index_.set_clean(slot);
  }
  land_all();
  send_out(slots, places, stream);
  land_all();
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
  for (int64_t first = 0; first < total && columns() > 0; first += chunk_rows()) {
    const int64_t rows = std::min(chunk_rows(), total - first);
    Chunk& chunk = in_[0];
    if (chunk.in_flight) wait(chunk.done);
    chunk.in_flight = false;
    prepare_chunk(chunk, rows);
    for (int64_t i = 0; i < rows; ++i) chunk.numbers[i] = row_number(first + i);
    const Placed placed = place(chunk, in_scratch_, rows);
    if (spec().device.is_cuda()) copy(placed.numbers, chunk.numbers.tensor(), &stream);
    ops::initialize_part(placed.weights, spec().init(), placed.numbers, shard().columns.begin,
                         &stream);
    copy(weights.rows(first, rows), placed.weights, &stream);
    stream.synchronize();
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
  land_all();
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
  s.cache = counted_;
  s.cache->rows = index_.rows_held();
  s.cache->capacity = index_.slots();
  s.cache->stored = store_.size();
  s.cache->hits = index_.hits();
  s.cache->misses = index_.misses();
  s.cache->evicted = index_.evicted();
  return s;
}

}  // namespace segue::sparse
