#include "sparse/dynamic_table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ops/rows.h"
#include "tensor/device_memory.h"

namespace segue::sparse {

DynamicTable::DynamicTable(TableSpec given) : KeyTable(std::move(given), IndexAt::kDevice) {
  if (spec().weights != nullptr) return;
  const int64_t value = size_of(spec().dtype);
  weight_memory_ = GrowingBuffer(spec().device, most_rows() * spec().dim * value, Purpose::kTable);
  state_memory_ =
      GrowingBuffer(spec().device, most_rows() * state_columns() * value, Purpose::kOptimizer);
}

void DynamicTable::make_room(int64_t rows) {
  if (spec().weights != nullptr) return;
  const int64_t value = size_of(spec().dtype);
  weight_memory_.grow(rows * spec().dim * value);
  state_memory_.grow(rows * state_columns() * value);
}

void DynamicTable::resolve(const Exec& exec, std::span<const LateBatch> batches) {
  std::vector<LateBatch> found, added;
  for (const LateBatch& late : batches) {
    auto& own = static_cast<DynamicTable&>(*late.table);
    own.count_batch(late.batch.mode);
    if (late.batch.keys.elements() == 0) continue;
    SEGUE_ASSERT(own.index() != nullptr, "keys at a rank without shards");
    (late.batch.mode == Mode::kTraining ? added : found).push_back(late);
  }
  find_rows(exec, found);
  for (std::span<const LateBatch> left = added; !left.empty();) {
    const auto some = left.first(std::min<size_t>(left.size(), MixedOrder::kMostLists));
    left = left.subspan(some.size());
    find_or_add_rows(exec, some);
  }
}

void DynamicTable::find_rows(const Exec& exec, std::span<const LateBatch> batches) {
  const Stream host(Device::cpu());
  for (const auto& [table, batch, slots, held] : batches) {
    const auto& own = static_cast<const DynamicTable&>(*table);
    const Arena::Mark mark(*exec.arena);
    Tensor keys = batch.keys;
    if (!own.mixes_early()) {
      keys = exec.arena->tensor(DType::kI64, {batch.keys.elements()});
      ops::mix(exec, batch.keys, keys);
    }
    own.index()->find(keys, slots, exec.stream != nullptr ? *exec.stream : host);
  }
}

/// The indices take mixed keys in their order.
void DynamicTable::find_or_add_rows(const Exec& exec, std::span<const LateBatch> batches) {
  const Stream host(Device::cpu());
  const Stream& stream = exec.stream != nullptr ? *exec.stream : host;
  const Arena::Mark mark(*exec.arena);
  std::vector<MixedOrder::Sorted> sorted;
  if (mixes_early()) {
    for (const auto& [table, batch, slots, held] : batches) {
      const Tensor is_new = exec.arena->tensor(DType::kU8, {batch.keys.elements()});
      sorted.push_back({batch.keys, batch.uses, batch.scores, slots, is_new});
    }
  } else {
    std::vector<MixedOrder::List> lists;
    for (const auto& [table, batch, slots, held] : batches) {
      lists.push_back({batch.keys, batch.uses, batch.scores, slots});
    }
    sorted = order_.sort(exec, lists);
  }
  std::vector<IndexRequest> requests;
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto& own = static_cast<const DynamicTable&>(*batches[i].table);
    const auto& [keys, uses, scores, rows, is_new] = sorted[i];
    requests.push_back(
        {own.index(), {keys, uses, scores, own.clock(), batches[i].batch.time}, {rows, is_new}});
  }
  find_or_insert(requests, stream);
  std::vector<ops::NewRows> new_rows;
  for (size_t i = 0; i < batches.size(); ++i) {
    auto& own = static_cast<DynamicTable&>(*batches[i].table);
    own.make_room(own.index()->rows_in_use());
    const auto& [weights, state] = own.resident();
    new_rows.push_back(
        {own.spec().init(), sorted[i].keys, sorted[i].rows, sorted[i].is_new, weights, state});
  }
  ops::initialize_new_rows(exec, new_rows);
  if (!mixes_early()) order_.put_back(exec);
}

void DynamicTable::release(std::span<const int64_t> /*slots*/, Mode /*mode*/,
                           const Stream* last_use) {
  if (last_use != nullptr) updated_.record(*last_use);
}

Resident DynamicTable::resident() const {
  if (spec().weights != nullptr) {
    return rows_at(spec().weights, spec().state, most_rows(), spec().device);
  }
  const int64_t row_bytes = spec().dim * size_of(spec().dtype);
  return rows_at(weight_memory_.data(), state_memory_.data(), weight_memory_.bytes() / row_bytes,
                 spec().device);
}

std::vector<TableArray> DynamicTable::snapshot(Extent extent) {
  updated_.synchronize();
  const std::shared_ptr<Saved> saved = begin_snapshot(extent);
  if (index() != nullptr) add_entries(*saved, index()->entries());
  show(saved);
  return arrays_of(*saved, resident());
}

Table::Frozen DynamicTable::freeze(Extent extent, const Stream& stream) {
  const Device device = spec().device;
  if (index() == nullptr || device.is_cpu()) return {};
  const int64_t rows = index()->rows_in_use(), value = size_of(spec().dtype);
  const int64_t weight_bytes = rows * spec().dim * value;
  const int64_t state_bytes = rows * state_columns() * value;
  Buffer memory = spare_buffer(device, weight_bytes + state_bytes, Purpose::kScratch);
  if (memory.bytes() < weight_bytes + state_bytes) return {};
  std::function<HashIndex::Entries()> entries;
  try {
    entries = index()->freeze(stream);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    return {};
  }
  const std::shared_ptr<Saved> saved = begin_snapshot(extent);
  saved->rows = std::move(memory);
  auto* const weights = static_cast<std::byte*>(saved->rows.data());
  std::byte* const state = weights + weight_bytes;
  const auto copy_rows = [&](std::byte* to, const Tensor& from, int64_t bytes) {
    copy_bytes(to, device, from.data, device, static_cast<size_t>(bytes), &stream);
  };
  if (weight_bytes > 0) copy_rows(weights, resident().weights, weight_bytes);
  if (state_bytes > 0) copy_rows(state, resident().state, state_bytes);
  const auto done = std::make_shared<Event>();
  done->record(stream);
  return [this, saved, done, rows, weights, state, entries = std::move(entries)] {
    done->synchronize();
    add_entries(*saved, entries());
    return arrays_of(*saved, rows_at(weights, state, rows, spec().device));
  };
}

void DynamicTable::load_rows(const SavedArrays& saved, std::span<const int64_t> places,
                             std::span<const int64_t> /*keys*/) {
  make_room(std::ssize(places));
  KeyTable::read_rows(saved, places, resident());
}

int64_t DynamicTable::bytes() const {
  const Resident rows = resident();
  return rows.weights.bytes() + rows.state.bytes() + (index() ? index()->bytes() : 0);
}

}  // namespace segue::sparse
