#include "sparse/cached_dynamic_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::sparse {
namespace {

constexpr int64_t kTableGrain = 1 << 14;

}  // namespace

CachedDynamicTable::CachedDynamicTable(TableSpec given)
    : KeyTable(std::move(given), IndexAt::kHost), cache_(cache_config()) {}

RowCacheConfig CachedDynamicTable::cache_config() {
  RowCacheConfig c = row_cache_config(spec(), most_rows(), {0, spec().dim});
  c.number_of = [this](int64_t row) { return ids_[static_cast<size_t>(row)]; };
  return c;
}

void CachedDynamicTable::look_ahead(std::span<const int64_t> keys, HeldRows& held) {
  held.sent.synchronize();
  if (spec().device.is_cuda()) held.slots.set_memory(HostMemory::kPinned);
  for (HostArray<int64_t>* array : {&held.rows, &held.slots}) {
    array->resize(std::ssize(keys));
    std::ranges::fill(array->span(), -1);
  }
  if (keys.empty()) return;
  const std::lock_guard lock(mutex_);
  require_whole();
  find_rows(keys);
  try {
    cache_.acquire(rows_.span(), {}, Mode::kEvaluation, held);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    // Then they come when they are used, when batches before this one need no room any more.
  }
}

bool CachedDynamicTable::stage(std::span<const int64_t> /*slots*/, const Stream& copy_stream) {
  const std::lock_guard lock(mutex_);
  cache_.stage(copy_stream);
  return index() != nullptr;
}

/// Tables are worked on side by side; what the device is to do is given to it by one thread.
void CachedDynamicTable::resolve(const Exec& exec, std::span<const LateBatch> batches) {
  const auto of = [](const LateBatch& late) {
    return static_cast<CachedDynamicTable*>(late.table);
  };
  base::parallel_for(std::ssize(batches), 1, [&](int64_t i, int64_t) {
    const LateBatch& late = batches[static_cast<size_t>(i)];
    of(late)->hold_rows(late.batch, *late.held);
  });
  const Stream host(Device::cpu());
  for (const LateBatch& late : batches) {
    of(late)->send_slots(late, exec.stream != nullptr ? *exec.stream : host);
  }
}

void CachedDynamicTable::hold_rows(const KeyBatch& batch, HeldRows& held) {
  const std::lock_guard lock(mutex_);
  require_whole();
  count_batch(batch.mode);
  if (batch.keys.elements() == 0) return;
  is_new_.resize(0);
  if (batch.mode == Mode::kTraining) {
    find_or_add_rows(batch);
    whole_ = false;
  } else {
    find_rows(batch.keys.span<int64_t>());
  }
  cache_.acquire(rows_.span(), is_new_.span(), batch.mode, held);
  whole_ = true;
}

void CachedDynamicTable::require_whole() const {
  if (whole_) return;
  fail(
      ErrorCode::kOutOfMemory,
      fmt::format("the cache of table `{}` could not hold a batch; resume from the last checkpoint",
                  spec().config.name));
}

void CachedDynamicTable::send_slots(const LateBatch& late, const Stream& stream) {
  if (late.batch.keys.elements() == 0) return;
  const std::lock_guard lock(mutex_);
  cache_.stage(stream);
  copy(late.slots, late.held->slots.tensor(), &stream);
  late.held->sent.record(stream);
}

void CachedDynamicTable::find_rows(std::span<const int64_t> keys) {
  const int64_t n = std::ssize(keys);
  mixed_.resize(n);
  rows_.resize(n);
  base::parallel_for(n, kTableGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t key = keys[static_cast<size_t>(i)];
      mixed_[i] = mixes_early() ? key : key_of_id(key);
    }
  });
  index()->find(mixed_.tensor(), rows_.tensor(), Stream(Device::cpu()));
}

/// All may be new; where that is too much, those that are not there.
void CachedDynamicTable::reserve_places(std::span<const int64_t> keys) {
  try {
    cache_.reserve(std::ssize(keys));
  } catch (const Error&) {
    find_rows(keys);
    cache_.reserve(std::ranges::count(rows_.span(), -1));
  }
}

void CachedDynamicTable::find_or_add_rows(const KeyBatch& batch) {
  const int64_t n = batch.keys.elements();
  rows_.resize(n);
  is_new_.resize(n);
  reserve_places(batch.keys.span<int64_t>());
  const Exec host;
  MixedOrder::Sorted sorted{batch.keys, batch.uses, batch.scores, rows_.tensor(), is_new_.tensor()};
  if (!mixes_early()) {
    const MixedOrder::List list{batch.keys, batch.uses, batch.scores, rows_.tensor()};
    sorted = order_.sort(host, {&list, 1}).front();
  }
  index()->find_or_insert({sorted.keys, sorted.uses, sorted.scores, clock(), batch.time},
                          {sorted.rows, sorted.is_new}, Stream(Device::cpu()));
  if (!mixes_early()) order_.put_back(host);
  ids_.resize(static_cast<size_t>(index()->rows_in_use()));
  is_new_row_.resize(ids_.size(), 0);
  for (int64_t i = 0; i < n; ++i) {
    if (sorted.is_new.ptr<uint8_t>()[i] == 0) continue;
    const auto row = static_cast<size_t>(sorted.rows.ptr<int64_t>()[i]);
    ids_[row] = id_of_key(sorted.keys.ptr<int64_t>()[i]);
    is_new_row_[row] = 1;
  }
  for (int64_t i = 0; i < n; ++i) {
    is_new_[i] = rows_[i] < 0 ? 0 : std::exchange(is_new_row_[static_cast<size_t>(rows_[i])], 0);
  }
}

void CachedDynamicTable::release(std::span<const int64_t> slots, Mode mode,
                                 const Stream* last_use) {
  cache_.release(slots, mode == Mode::kTraining, last_use);
}

std::vector<TableArray> CachedDynamicTable::snapshot(Extent extent) {
  const std::lock_guard lock(mutex_);
  require_whole();
  cache_.flush(Stream(spec().device));
  const std::shared_ptr<Saved> saved = begin_snapshot(extent);
  if (index() != nullptr) add_entries(*saved, index()->entries());
  const RowStore& store = cache_.store();
  for (int64_t& row : saved->order) row = store.find(row);
  show(saved);
  return arrays_of(*saved, rows_at(store.weights(0), store.state(0), store.size(), Device::cpu()));
}

void CachedDynamicTable::load(const SavedArrays& saved) {
  const std::lock_guard lock(mutex_);
  cache_.clear();
  whole_ = true;
  KeyTable::load(saved);
}

void CachedDynamicTable::load_rows(const SavedArrays& saved, std::span<const int64_t> places,
                                   std::span<const int64_t> keys) {
  std::vector<int64_t> rows;
  ids_.clear();
  for (const int64_t key : keys) {
    rows.push_back(std::ssize(ids_));
    ids_.push_back(id_of_key(key));
  }
  const int64_t first = cache_.add_stored(rows);
  const RowStore& store = cache_.store();
  read_rows(saved, places,
            rows_at(store.weights(first), store.state(first), std::ssize(rows), Device::cpu()));
}

std::optional<TableStats> CachedDynamicTable::stats() const {
  const std::lock_guard lock(mutex_);
  std::optional<TableStats> s = KeyTable::stats();
  s->cache = cache_.stats();
  return s;
}

int64_t CachedDynamicTable::bytes() const {
  const std::lock_guard lock(mutex_);
  return cache_.bytes();
}

}  // namespace segue::sparse
