#include "sparse/static_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/initialize.h"

namespace segue::sparse {
namespace {

constexpr int64_t kIdGrain = 1 << 16;  // ids per chunk of a scan

bool outside(int64_t id, int64_t rows) {
  return static_cast<uint64_t>(id) >= static_cast<uint64_t>(rows);  // negative ids are huge
}

struct Outside {
  int64_t count = 0;
  int64_t first = -1;  // position of the first one
};

Outside find_outside(std::span<const int64_t> ids, int64_t rows) {
  const auto n = static_cast<int64_t>(ids.size());
  std::vector<Outside> parts(static_cast<size_t>(base::num_chunks(n, kIdGrain)));
  base::parallel_for(n, kIdGrain, [&](int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) count += outside(ids[static_cast<size_t>(i)], rows);
    int64_t first = -1;
    for (int64_t i = begin; count > 0 && first < 0; ++i) {
      if (outside(ids[static_cast<size_t>(i)], rows)) first = i;
    }
    parts[static_cast<size_t>(begin / kIdGrain)] = {count, first};
  });
  Outside all;
  for (const Outside& part : parts) {
    if (all.first < 0) all.first = part.first;
    all.count += part.count;
  }
  return all;
}

constexpr const char* kBlocksHint =
    "sparse.per_block_state keeps an accumulator per block of columns, which only as many blocks "
    "can take over";

}  // namespace

StaticTable::StaticTable(TableSpec given) : Table(std::move(given)), shard_(shard_of(spec().rank)) {
  const int64_t rows = shard_.rows(), columns = shard_.columns.width();
  const int64_t state_columns = ops::row_state_size(spec().optimizer, columns);
  const DType dtype = spec().dtype;
  const Device device = spec().device;
  weight_memory_ = Buffer(device, rows * columns * size_of(dtype), Purpose::kTable);
  resident_.weights = Tensor(weight_memory_.data(), dtype, device, {rows, columns});
  state_memory_ = Buffer(device, rows * state_columns * size_of(dtype), Purpose::kOptimizer);
  resident_.state = Tensor(state_memory_.data(), dtype, device, {rows, state_columns});
  initialize_rows();
}

LocalShard StaticTable::shard_of(int rank) const {
  return local_shard(spec().placement, spec().config.rows, spec().dim, rank);
}

void StaticTable::initialize_rows() {
  const ops::RowInit init = spec().init();
  const Tensor& weights = resident_.weights;
  const int64_t rows = shard_.rows();
  if (rows == spec().rows && weights.size(1) == spec().dim && init.kind == ops::Init::kUniform) {
    ops::initialize(weights, init.kind, init.bound, init.seed, spec().config.name);
    return;
  }
  // Rows of a shard are scattered over the table: their numbers go along, some at a time.
  constexpr int64_t kRows = 1 << 20;
  std::vector<int64_t> numbers;
  const Stream stream(weights.device);
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = std::min(kRows, rows - first);
    numbers.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      numbers[static_cast<size_t>(i)] = shard_.partition.row_of(shard_.part, first + i);
    }
    const Tensor here = host_view(std::span<int64_t>(numbers));
    Buffer there;
    Tensor placed = here;
    if (weights.device.is_cuda()) {
      there = Buffer(weights.device, here.bytes(), Purpose::kScratch);
      placed = Tensor(there.data(), DType::kI64, weights.device, {count});
      copy(placed, here, &stream);
      stream.synchronize();
    }
    ops::initialize_part(weights.rows(first, count), init, placed, shard_.columns.begin);
  }
}

int64_t StaticTable::check(const Lookup& lookup) const {
  const int64_t rows = spec().config.rows;
  Outside found = find_outside(lookup.ids, rows);
  if (found.count == 0) return 0;
  if (!lookup.uses.empty()) {
    found.count = std::ranges::count_if(lookup.uses, [&](int32_t place) {
      return outside(lookup.ids[static_cast<size_t>(place)], rows);
    });
  }
  if (spec().out_of_range != OutOfRange::kError) return found.count;
  fail(ErrorCode::kOutOfRange,
       fmt::format("feature `{}` has id {}, but table `{}` has {} rows (ids 0 to {}); {} of {} "
                   "ids of this batch are outside. Correct the data, raise `rows` of the table, "
                   "or set `out_of_range` to \"clamp\" or \"zero\"",
                   lookup.feature, lookup.ids[static_cast<size_t>(found.first)], spec().config.name,
                   rows, rows - 1, found.count, std::max(lookup.ids.size(), lookup.uses.size())));
}

void StaticTable::make_keys(std::span<const int64_t> ids, int64_t* keys) const {
  const RowPartition partition = shard_.partition;
  const bool clamps = spec().out_of_range == OutOfRange::kClamp;
  base::parallel_for(static_cast<int64_t>(ids.size()), kIdGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      keys[i] = clamps ? std::clamp<int64_t>(id, 0, partition.rows - 1)
                       : (outside(id, partition.rows) ? -1 : id);
      if (partition.parts > 1 && keys[i] >= 0) keys[i] = partition.permuted(keys[i]);
    }
  });
}

Share StaticTable::share_of(int rank) const {
  const LocalShard shard = shard_of(rank);
  if (shard.part < 0) return {};
  const int64_t slots = shard.partition.slots();
  return {shard.part * slots, (shard.part + 1) * slots - 1, shard.columns};
}

void StaticTable::find_slots(std::span<int64_t> keys, Mode /*mode*/) {
  if (shard_.part <= 0) return;  // keys of the first part are slots
  const int64_t first = shard_.part * shard_.partition.slots();
  for (int64_t& key : keys) key -= first;
}

std::vector<TableArray> StaticTable::snapshot() {
  std::vector<ColumnRange> columns;
  if (shard_.columns.width() > 0) columns = {{shard_.columns.begin, shard_.columns.width()}};
  TableArray weights{.name = "weight", .value = resident_.weights};
  return {describe_array(std::move(weights), spec().dim, std::move(columns), false),
          describe_state()};
}

TableArray StaticTable::describe_state() const {
  const TablePlacement& placement = spec().placement;
  const bool by_columns = placement.sharding == Sharding::kColumn;
  const bool per_block = by_columns && spec().per_block_state;
  TableArray array{.name = "state", .value = resident_.state};
  std::vector<ColumnRange> ranges;
  int64_t columns = 0;
  bool of_whole_rows = false;
  for (const ops::RowState& state : ops::row_states(spec().optimizer)) {
    of_whole_rows = state.of_whole_row;
    const auto blocks = static_cast<int64_t>(placement.ranks.size());
    if (of_whole_rows) {
      ranges.push_back({columns + (per_block ? placement.place_of(spec().rank) : 0), 1});
      columns += per_block ? blocks : 1;
    } else {
      if (shard_.columns.width() > 0) {
        ranges.push_back({columns + shard_.columns.begin, shard_.columns.width()});
      }
      columns += spec().dim;
    }
  }
  if (of_whole_rows) array.hint = kBlocksHint;
  return describe_array(std::move(array), columns, std::move(ranges),
                        of_whole_rows && by_columns && !per_block);
}

/// Where all owners have the same, the first one saves it.
TableArray StaticTable::describe_array(TableArray array, int64_t columns,
                                       std::vector<ColumnRange> ranges,
                                       bool same_everywhere) const {
  if (spec().ranks == 1) return array;
  array.part =
      ArrayPart{{spec().config.rows, columns}, shard_.partition, shard_.part, std::move(ranges)};
  array.saved_here = shard_.part >= 0 && (!(same_everywhere || replicated()) ||
                                          spec().placement.place_of(spec().rank) == 0);
  return array;
}

}  // namespace segue::sparse
