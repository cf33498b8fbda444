#include "sparse/cached_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/parallel.h"

namespace segue::sparse {

CachedTable::CachedTable(TableSpec given) : RowTable(std::move(given)), cache_(cache_config()) {}

RowCacheConfig CachedTable::cache_config() {
  RowCacheConfig c = row_cache_config(spec(), shard().rows(), shard().columns);
  c.number_of = [this](int64_t row) { return row_number(row); };
  c.on_trained = [this](std::span<const int64_t> rows) { note_changed(rows); };
  return c;
}

void CachedTable::find_slots(std::span<int64_t> keys, Mode mode) {
  const std::lock_guard lock(mutex_);
  make_local(keys);
  cache_.acquire(keys, mode);
}

bool CachedTable::stage(std::span<const int64_t> /*slots*/, const Stream& copy_stream) {
  const std::lock_guard lock(mutex_);
  cache_.stage(copy_stream);
  return shard().part >= 0;
}

void CachedTable::release(std::span<const int64_t> slots, Mode mode, const Stream* last_use) {
  if (last_use != nullptr && mode == Mode::kTraining) {
    dense_weights_ = Buffer();
    dense_state_ = Buffer();
  }
  cache_.release(slots, mode == Mode::kTraining, last_use);
}

void CachedTable::mark_saved() {
  const std::lock_guard lock(mutex_);
  RowTable::mark_saved();
}

std::vector<TableArray> CachedTable::snapshot(Extent extent) {
  const std::lock_guard lock(mutex_);
  const Stream stream(spec().device);
  cache_.flush(stream);
  if (extent == Extent::kChanges) return sparse_snapshot(changed_rows());
  const int64_t values = spec().dim + ops::row_state_size(spec().optimizer, spec().dim);
  const double whole =
      static_cast<double>(spec().config.rows) * static_cast<double>(values * size_of(spec().dtype));
  if (whole > static_cast<double>(dense_bytes_)) {
    const RowStore& store = cache_.store();
    std::vector<int64_t> local;
    for (int64_t place = 0; place < store.size(); ++place) local.push_back(store.row_at(place));
    std::ranges::sort(local, {}, [this](int64_t row) { return row_number(row); });
    return sparse_snapshot(std::move(local));
  }
  std::vector<TableArray> arrays = dense_snapshot(stream);
  for (TableArray& array : arrays) array.any_rows = true;
  return arrays;
}

std::vector<TableArray> CachedTable::sparse_snapshot(std::vector<int64_t> local) {
  const RowStore& store = cache_.store();
  // A batch that was left out may have taken places and written nothing.
  std::erase_if(local, [&](int64_t row) {
    const int64_t place = store.find(row);
    return place == RowStore::kNone || !store.written(place);
  });
  saved_rows_ = row_numbers(local);
  saved_order_ = std::move(local);
  for (int64_t& row : saved_order_) row = store.find(row);
  const int64_t count = std::ssize(saved_rows_);
  const DType dtype = spec().dtype;
  return sparse_arrays(host_view(std::span<int64_t>(saved_rows_)),
                       Tensor(store.weights(0), dtype, Device::cpu(), {count, columns()}),
                       Tensor(store.state(0), dtype, Device::cpu(), {count, state_columns()}),
                       saved_order_);
}

std::vector<TableArray> CachedTable::dense_snapshot(const Stream& stream) {
  const RowStore& store = cache_.store();
  const DType dtype = spec().dtype;
  const int64_t total = shard().rows();
  dense_weights_ = Buffer(Device::cpu(), total * weight_bytes(), Purpose::kScratch);
  dense_state_ = Buffer(Device::cpu(), total * state_bytes(), Purpose::kScratch);
  const Tensor weights(dense_weights_.data(), dtype, Device::cpu(), {total, columns()});
  const Tensor state(dense_state_.data(), dtype, Device::cpu(), {total, state_columns()});
  // Initial values are those of the device.
  std::vector<int64_t> numbers;
  for (int64_t first = 0; first < total && columns() > 0; first += cache_.mover().chunk_rows()) {
    const int64_t rows = std::min(cache_.mover().chunk_rows(), total - first);
    numbers.clear();
    for (int64_t i = first; i < first + rows; ++i) numbers.push_back(row_number(i));
    cache_.mover().initial_rows(numbers, weights.rows(first, rows), stream);
  }
  base::parallel_for(store.size(), 1 << 10, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      if (!store.written(place)) continue;
      const int64_t row = store.row_at(place);
      std::memcpy(static_cast<std::byte*>(weights.data) + row * weight_bytes(),
                  store.weights(place), static_cast<size_t>(weight_bytes()));
      if (state_bytes() == 0) continue;
      std::memcpy(static_cast<std::byte*>(state.data) + row * state_bytes(), store.state(place),
                  static_cast<size_t>(state_bytes()));
    }
  });
  return dense_arrays(weights, state);
}

void CachedTable::load(const SavedArrays& saved) {
  const std::lock_guard lock(mutex_);
  cache_.clear();
  read_rows(saved, [&](const LoadedRows& rows) {
    const int64_t count = std::ssize(rows.local), first = cache_.add_stored(rows.local);
    const RowStore& store = cache_.store();
    std::memcpy(store.weights(first), rows.weights, static_cast<size_t>(count * weight_bytes()));
    if (state_bytes() == 0) return;
    std::memcpy(store.state(first), rows.state, static_cast<size_t>(count * state_bytes()));
  });
}

int64_t CachedTable::bytes() const {
  const std::lock_guard lock(mutex_);
  return cache_.bytes();
}

std::optional<TableStats> CachedTable::stats() const {
  const std::lock_guard lock(mutex_);
  TableStats s;
  s.cache = cache_.stats();
  return s;
}

}  // namespace segue::sparse
