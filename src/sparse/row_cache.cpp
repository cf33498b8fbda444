#include "sparse/row_cache.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "base/stage.h"
#include "base/time.h"

namespace segue::sparse {
namespace {

constexpr int64_t kCacheGrain = 1 << 12;  // rows, per piece of parallel work

int64_t planned_rows(const TableSpec& spec, int64_t rows) {
  constexpr double kDefaultShare = 0.1;
  const TableConfig& c = spec.config;
  if (rows == 0) return 0;
  if (spec.placement.cache_rows > 0) return std::min(rows, spec.placement.cache_rows);
  if (spec.placement.tier == Tier::kHost && c.cache_share == 0) return 1;
  const double share = c.cache_share > 0 ? c.cache_share : kDefaultShare;
  return std::clamp<int64_t>(std::llround(share * static_cast<double>(rows)), 1, rows);
}

}  // namespace

RowCacheConfig row_cache_config(const TableSpec& spec, int64_t rows, ColumnBlock columns) {
  RowCacheConfig c{.planned_rows = planned_rows(spec, rows),
                   .policy = spec.config.cache_policy,
                   .dtype = spec.dtype,
                   .columns = columns.width(),
                   .state_columns = ops::row_state_size(spec.optimizer, columns.width()),
                   .first_column = columns.begin,
                   .init = spec.init()};
  c.store = {.table = spec.config.name,
             .rows = rows,
             .weight_bytes = c.columns * size_of(spec.dtype),
             .state_bytes = c.state_columns * size_of(spec.dtype),
             .device = spec.device};
  if (spec.placement.tier == Tier::kFile) {
    c.store.folder = spec.spill_folder.empty() ? std::filesystem::temp_directory_path().string()
                                               : spec.spill_folder;
  }
  return c;
}

RowCache::RowCache(RowCacheConfig config)
    : config_(std::move(config)),
      store_(config_.store),
      index_(config_.planned_rows, config_.policy),
      mover_(store_, config_.init, config_.first_column) {
  // The cache grows where batches in flight need more rows at once than were planned for; the sets
  // may be larger than a small table.
  constexpr int64_t kMostBeyond = int64_t{1} << 26;
  const int64_t rows = config_.store.rows;
  const int64_t most = rows == 0 ? 0 : index_.set_slots() + std::min(rows, kMostBeyond);
  const Device device = config_.store.device;
  weight_memory_ = GrowingBuffer(device, most * weight_bytes(), Purpose::kTable);
  state_memory_ = GrowingBuffer(device, most * state_bytes(), Purpose::kOptimizer);
  resident_.weights = Tensor(weight_memory_.data(), config_.dtype, device, {most, config_.columns});
  resident_.state =
      Tensor(state_memory_.data(), config_.dtype, device, {most, config_.state_columns});
  mover_.set_resident(resident_);
  if (most > 0) make_room(index_.slots());
}

void RowCache::make_room(int64_t slots) {
  try {
    if (slots > std::min(resident_.weights.size(0), most_slots_))
      fail(ErrorCode::kOutOfMemory, "no addresses");
    weight_memory_.grow(slots * weight_bytes());
    state_memory_.grow(slots * state_bytes());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    fail(
        ErrorCode::kOutOfMemory,
        fmt::format("batches in flight use more than {} rows of table `{}` at once, and its cache "
                    "has no memory for more ({}). Raise its `cache_share`, so that room is planned "
                    "for it, or use smaller batches, and resume from the last checkpoint",
                    slots - 1, config_.store.table, error.what()));
  }
  if (static_cast<size_t>(slots) > places_.size()) {
    places_.resize(static_cast<size_t>(slots), RowStore::kNone);
  }
}

void RowCache::take_releases() {
  std::vector<Release> done;
  {
    const std::lock_guard lock(release_mutex_);
    done.swap(releases_);
  }
  std::vector<int64_t> rows;
  for (const Release& r : done) {
    if (config_.on_trained && r.wrote && r.number > 0) {
      rows.clear();
      for (const int64_t slot : r.slots.span()) rows.push_back(index_.row_at(slot));
      config_.on_trained(rows);
    }
    index_.release(r.slots.span(), r.wrote, r.number);
  }
  const std::lock_guard lock(release_mutex_);
  std::ranges::move(done, std::back_inserter(spare_));
}

void RowCache::release(std::span<const int64_t> slots, bool wrote, const Stream* last_use) {
  const std::lock_guard lock(release_mutex_);
  if (slots.empty()) return;
  Release r;
  if (!spare_.empty()) {
    r = std::move(spare_.back());
    spare_.pop_back();
  }
  r.slots.resize(std::ssize(slots));
  const auto kept = std::ranges::copy_if(slots, r.slots.data(), [](int64_t s) { return s >= 0; });
  r.slots.resize(kept.out - r.slots.data());
  r.wrote = wrote;
  r.number = 0;
  if (last_use != nullptr) {
    r.number = ++released_;
    Event& event = events_[static_cast<size_t>(released_) % kEvents];
    event.synchronize();  // so that what has no event any more is known to be over
    event.record(*last_use);
  }
  releases_.push_back(std::move(r));
}

void RowCache::hold_until_unused(int64_t release, const Stream& stream) {
  const std::lock_guard lock(release_mutex_);
  if (release == 0 || release + static_cast<int64_t>(kEvents) <= released_) return;
  events_[static_cast<size_t>(release) % kEvents].hold(stream);
}

void RowCache::note_places(Pending& now) {
  const int64_t n = now.changes.size();
  now.place.resize(n);
  now.victim_place.resize(n);
  base::parallel_for(n, kCacheGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const CacheIndex::Change& c = now.changes[i];
      int64_t& place = places_[static_cast<size_t>(c.slot)];
      now.victim_place[i] = c.victim_dirty ? place : RowStore::kNone;
      now.place[i] = place = store_.find(c.row);
    }
  });
}

void RowCache::add_places(std::span<const int64_t> slots, Pending& now) {
  const auto has_none = [&](int64_t slot) {
    return places_[static_cast<size_t>(slot)] == RowStore::kNone;
  };
  std::atomic<int64_t> missing = 0;
  base::parallel_for(std::ssize(slots), kCacheGrain, [&](int64_t begin, int64_t end) {
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

void RowCache::acquire(std::span<int64_t> rows, Mode mode) {
  take_releases();
  if (!rows.empty()) seat(rows, mode);
}

void RowCache::seat(std::span<int64_t> rows, Mode mode) {
  Pending now;
  if (!spare_pending_.empty()) {
    now = std::move(spare_pending_.back());
    spare_pending_.pop_back();
  }
  std::exception_ptr failed;
  try {
    index_.acquire(
        rows, [this](int64_t slots) { make_room(slots); }, now.changes);
  } catch (const Error&) {
    failed = std::current_exception();
  }
  note_places(now);
  // Rows that will be updated get a place to come back to before that: when there is none, nothing
  // has happened yet.
  if (!failed && mode == Mode::kTraining) {
    try {
      add_places(rows, now);
    } catch (const Error&) {
      failed = std::current_exception();
      index_.release(rows, false, 0);
    }
  }
  // Slots that have got other rows have them, whatever became of this batch.
  pending_.push_back(std::move(now));
  if (failed) std::rethrow_exception(failed);
}

void RowCache::acquire(std::span<const int64_t> rows, std::span<const uint8_t> is_new, Mode mode,
                       HeldRows& held) {
  take_releases();
  std::vector<int64_t> wanted, at, unwanted, fresh;
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    if (row == held.rows[i]) continue;
    if (held.slots[i] >= 0) unwanted.push_back(held.slots[i]);
    held.rows[i] = held.slots[i] = -1;
    if (row < 0) continue;
    wanted.push_back(row);
    at.push_back(i);
  }
  index_.release(unwanted, false, 0);
  seat(wanted, mode);
  for (size_t k = 0; k < at.size(); ++k) {
    held.rows[at[k]] = rows[static_cast<size_t>(at[k])];
    held.slots[at[k]] = wanted[k];
  }
  for (size_t i = 0; i < is_new.size(); ++i) {
    if (is_new[i] != 0) fresh.push_back(held.slots[static_cast<int64_t>(i)]);
  }
  begin_again(fresh, pending_.back());
}

/// Nothing comes from the store for them, whatever is there or will be when it is their turn. They
/// count as written, so that the store has every row that was ever begun.
void RowCache::begin_again(std::span<const int64_t> slots, Pending& now) {
  is_fresh_.resize(static_cast<size_t>(index_.slots()), 0);
  for (const int64_t slot : slots) {
    is_fresh_[static_cast<size_t>(slot)] = 1;
    index_.set_dirty(slot);
  }
  for (int64_t i = 0; i < now.changes.size() && !slots.empty(); ++i) {
    if (std::exchange(is_fresh_[static_cast<size_t>(now.changes[i].slot)], 0) != 0) {
      now.place[i] = RowStore::kNone;
    }
  }
  for (const int64_t slot : slots) {  // what else is left was in the cache
    if (std::exchange(is_fresh_[static_cast<size_t>(slot)], 0) == 0) continue;
    now.changes.push_back(
        {.row = index_.row_at(slot), .slot = slot, .last_use = index_.last_use(slot)});
    now.place.push_back(RowStore::kNone);
    now.victim_place.push_back(RowStore::kNone);
  }
}

void RowCache::stage(const Stream& stream) {
  const base::Stopwatch watch;
  // Another stage(), maybe on another stream, may have brought rows of this batch.
  staged_.hold(stream);
  bring_all(stream);
  staged_.record(stream);
  stage_seconds_ += watch.seconds();
}

void RowCache::bring_all(const Stream& stream) {
  for (; !pending_.empty(); pending_.pop_front()) {
    const base::Stage stage("stage rows");
    if (!pending_.front().changes.empty()) bring(pending_.front(), stream);
    spare_pending_.push_back(std::move(pending_.front()));
  }
}

void RowCache::bring(const Pending& now, const Stream& stream) {
  const int64_t n = now.changes.size();
  RowMoves& moves = mover_.next_moves();
  UploadBlock& block = moves.block;
  moves.slots = block.add<int64_t>(n);
  moves.out = block.add<int64_t>(n);
  moves.in = block.add<int64_t>(n);
  const std::span<int64_t> slots = block.span(moves.slots), out = block.span(moves.out),
                           in = block.span(moves.in);
  std::atomic<int64_t> last_use = 0, rows_out = 0, rows_in = 0;
  base::parallel_for(n, kCacheGrain, [&](int64_t begin, int64_t end) {
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
      *number++ = config_.number_of(now.changes[i].row);
    }
  }
  hold_until_unused(last_use, stream);
  mover_.move(moves, stream);
}

void RowCache::flush(const Stream& stream) {
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

void RowCache::clear() {
  take_releases();
  staged_.synchronize();
  for (const Event& event : events_) event.synchronize();
  mover_.finish();
  pending_.clear();
  index_ = CacheIndex(config_.planned_rows, config_.policy);
  std::ranges::fill(places_, RowStore::kNone);
  store_.clear();
}

int64_t RowCache::add_stored(std::span<const int64_t> rows) {
  const int64_t first = store_.size();
  store_.reserve(std::ssize(rows));
  for (const int64_t row : rows) store_.set_written(store_.add(row));
  return first;
}

CacheStats RowCache::stats() const {
  return {.rows = index_.rows_held(),
          .capacity = index_.slots(),
          .stored = store_.size(),
          .hits = index_.hits(),
          .misses = index_.misses(),
          .evicted = index_.evicted(),
          .bytes_in = mover_.bytes_in(),
          .bytes_out = mover_.bytes_out(),
          .stage_seconds = stage_seconds_,
          .stall_seconds = mover_.stall_seconds()};
}

}  // namespace segue::sparse
