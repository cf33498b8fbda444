#include "sparse/row_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::sparse {
namespace {

constexpr int64_t kIdGrain = 1 << 16;  // ids per chunk of a scan
constexpr int64_t kLoadBytes = 16 << 20;
constexpr int64_t kReadGrain = 1 << 10;

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

RowTable::RowTable(TableSpec given) : Table(std::move(given)), shard_(shard_of(spec().rank)) {}

LocalShard RowTable::shard_of(int rank) const {
  return local_shard(spec().placement, spec().config.rows, spec().dim, rank);
}

int64_t RowTable::check(const Lookup& lookup) const {
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

void RowTable::make_keys(std::span<const int64_t> ids, int64_t* keys) const {
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

Share RowTable::share_of(int rank) const {
  const LocalShard shard = shard_of(rank);
  if (shard.part < 0) return {};
  const int64_t slots = shard.partition.slots();
  return {shard.part * slots, (shard.part + 1) * slots - 1, shard.columns};
}

void RowTable::make_local(std::span<int64_t> keys) const {
  if (shard_.part <= 0) return;  // keys of the first part are numbers
  const int64_t first = shard_.part * shard_.partition.slots();
  for (int64_t& key : keys) key -= first;
}

void RowTable::mark_saved() {
  constexpr int64_t kBits = 64;
  const int64_t rows = shard_.part < 0 ? 0 : shard_.rows();
  changed_.assign(static_cast<size_t>(rows / kBits + 1), 0);
}

void RowTable::note_changed(std::span<const int64_t> local) {
  if (!tracks_changes()) return;
  for (const int64_t row : local) {
    changed_[static_cast<size_t>(row) / 64] |= uint64_t{1} << (static_cast<size_t>(row) % 64);
  }
}

std::vector<int64_t> RowTable::changed_rows() const {
  SEGUE_ASSERT(tracks_changes(), "changes since nothing was saved");
  std::vector<int64_t> local;
  for (size_t word = 0; word < changed_.size(); ++word) {
    for (uint64_t bits = changed_[word]; bits != 0; bits &= bits - 1) {
      local.push_back(static_cast<int64_t>(word * 64) + std::countr_zero(bits));
    }
  }
  if (shard_.partition.parts > 1) {
    std::ranges::sort(local, {}, [this](int64_t row) { return row_number(row); });
  }
  return local;
}

std::vector<int64_t> RowTable::row_numbers(std::span<const int64_t> local) const {
  std::vector<int64_t> numbers;
  for (const int64_t row : local) numbers.push_back(row_number(row));
  return numbers;
}

RowTable::Columns RowTable::weight_columns() const {
  Columns columns{.whole = spec().dim};
  if (shard_.columns.width() > 0) {
    columns.ranges = {{shard_.columns.begin, shard_.columns.width()}};
  }
  return columns;
}

RowTable::Columns RowTable::state_array_columns() const {
  const TablePlacement& placement = spec().placement;
  const bool by_columns = placement.sharding == Sharding::kColumn;
  const bool per_block = by_columns && spec().per_block_state;
  const auto blocks = static_cast<int64_t>(placement.ranks.size());
  Columns columns;
  bool of_whole_rows = false;
  for (const ops::RowState& state : ops::row_states(spec().optimizer)) {
    of_whole_rows = state.of_whole_row;
    if (of_whole_rows) {
      columns.ranges.push_back(
          {columns.whole + (per_block ? placement.place_of(spec().rank) : 0), 1});
      columns.whole += per_block ? blocks : 1;
    } else {
      if (shard_.columns.width() > 0) {
        columns.ranges.push_back({columns.whole + shard_.columns.begin, shard_.columns.width()});
      }
      columns.whole += spec().dim;
    }
  }
  columns.same_everywhere = of_whole_rows && by_columns && !per_block;
  return columns;
}

std::vector<TableArray> RowTable::dense_arrays(const Tensor& weights, const Tensor& state) const {
  TableArray of_state = dense_array("state", state, state_array_columns());
  for (const ops::RowState& s : ops::row_states(spec().optimizer)) {
    if (s.of_whole_row) of_state.hint = kBlocksHint;
  }
  return {dense_array("weight", weights, weight_columns()), std::move(of_state)};
}

/// Where all owners have the same, the first one saves it.
TableArray RowTable::dense_array(const char* name, const Tensor& value,
                                 const Columns& columns) const {
  TableArray array{.name = name, .value = value, .unless = "row"};
  if (spec().ranks == 1) return array;
  array.part = ArrayPart{{spec().config.rows, columns.whole},
                         shard_.partition,
                         shard_.part,
                         columns.ranges,
                         /*stacked=*/false};
  array.saved_here = shard_.part >= 0 && (!(columns.same_everywhere || replicated()) ||
                                          spec().placement.place_of(spec().rank) == 0);
  return array;
}

std::vector<TableArray> RowTable::sparse_arrays(const Tensor& rows, const Tensor& weights,
                                                const Tensor& state,
                                                std::span<const int64_t> order) const {
  Columns of_row{.whole = 1, .ranges = {{0, 1}}, .same_everywhere = true};
  std::vector<TableArray> arrays = {sparse_array("row", rows, of_row),
                                    sparse_array("weight", weights, weight_columns()),
                                    sparse_array("state", state, state_array_columns())};
  arrays[1].order = arrays[2].order = order;
  return arrays;
}

/// Ranks that share the rows put theirs on one stack. Those that share the columns, or have all of
/// it, have the same rows, because they are asked for the same.
TableArray RowTable::sparse_array(const char* name, const Tensor& value,
                                  const Columns& columns) const {
  TableArray array{.name = name, .value = value, .any_rows = true};
  if (spec().ranks == 1) return array;
  array.saved_here = shard_.part >= 0;
  if (spec().placement.sharding != Sharding::kColumn && !replicated()) {
    array.part = ArrayPart::stack(value, spec().rank);
    return array;
  }
  const int64_t rows = value.size(0);
  std::vector<int64_t> shape{rows};
  if (value.rank == 2) shape.push_back(columns.whole);
  array.part = ArrayPart{std::move(shape), {rows, 1}, 0, columns.ranges, /*stacked=*/false};
  if ((columns.same_everywhere || replicated()) && spec().placement.place_of(spec().rank) != 0) {
    array.saved_here = false;
  }
  return array;
}

void RowTable::check_saved(const SavedArrays& saved) const {
  const std::string& name = spec().config.name;
  const bool sparse = saved.shape("row").has_value();
  if (saved.shape("stamp")) {
    fail(ErrorCode::kConfig,
         fmt::format("table `{}` was saved by a run where it is dynamic; resume with kind = "
                     "\"dynamic\"",
                     name));
  }
  const auto check_array = [&](const char* array, int64_t columns) {
    const std::optional<std::vector<int64_t>> shape = saved.shape(array);
    const bool matrix = shape && shape->size() == 2;
    const int64_t rows = sparse ? saved.shape("row")->front() : spec().config.rows;
    if (matrix && (*shape)[1] == columns && (*shape)[0] == rows) return;
    fail(ErrorCode::kConfig,
         fmt::format("{} of table `{}` was saved as [{}], here it is [{}, {}]; resume with the "
                     "`rows`, `dim` and `optimizer` of that run",
                     array, name, shape ? fmt::format("{}", fmt::join(*shape, ", ")) : "", rows,
                     columns));
  };
  check_array("weight", spec().dim);
  check_array("state", state_array_columns().whole);
}

void RowTable::read_rows(const SavedArrays& saved,
                         const std::function<void(const LoadedRows&)>& use) const {
  check_saved(saved);
  if (shard_.part < 0) return;
  // Numbers on this rank, and places among what was saved; absent: all rows, and none are skipped.
  std::vector<std::pair<int64_t, int64_t>> mine;
  const bool sparse = saved.shape("row").has_value();
  if (sparse) {
    const std::vector<int64_t> rows = saved_integers(saved, "row", 1);
    const int64_t count = std::ssize(rows);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[static_cast<size_t>(i)];
      if (outside(row, spec().config.rows)) {
        fail(ErrorCode::kCorrupt, fmt::format("table `{}` of the checkpoint has row {} of {}",
                                              spec().config.name, row, spec().config.rows));
      }
      if (shard_.partition.part_of(row) != shard_.part) continue;
      mine.emplace_back(shard_.partition.slot_of(row), i);
    }
    std::ranges::sort(mine);
  }
  const int64_t total = sparse ? std::ssize(mine) : shard_.rows();
  const auto local_of = [&](int64_t i) { return sparse ? mine[static_cast<size_t>(i)].first : i; };
  const auto place_of = [&](int64_t i) {
    return sparse ? mine[static_cast<size_t>(i)].second : row_number(i);
  };

  const int64_t value = size_of(spec().dtype);
  struct Array {
    const char* name;
    Columns columns;
    std::vector<std::byte> whole, part;  // rows as saved; this rank's columns of them
  };
  Array arrays[] = {{"weight", weight_columns(), {}, {}}, {"state", state_array_columns(), {}, {}}};
  int64_t row_bytes = value;
  for (const Array& array : arrays) row_bytes += array.columns.whole * value;
  const int64_t chunk = std::max<int64_t>(1, std::min(total, kLoadBytes / row_bytes));
  std::vector<int64_t> local;
  for (int64_t first = 0; first < total; first += chunk) {
    const int64_t count = std::min(chunk, total - first);
    local.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) local[static_cast<size_t>(i)] = local_of(first + i);
    for (Array& array : arrays) {
      const int64_t whole_bytes = array.columns.whole * value;
      int64_t part_bytes = 0;
      for (const ColumnRange& range : array.columns.ranges) part_bytes += range.count * value;
      array.whole.resize(static_cast<size_t>(count * whole_bytes));
      array.part.resize(static_cast<size_t>(count * part_bytes));
      if (whole_bytes == 0) continue;
      base::parallel_for(count, kReadGrain, [&](int64_t begin, int64_t end) {
        // Rows that lie together are read together.
        for (int64_t i = begin; i < end;) {
          int64_t some = 1;
          while (i + some < end && place_of(first + i + some) == place_of(first + i) + some) ++some;
          saved.read(array.name, spec().dtype, place_of(first + i), some,
                     array.whole.data() + i * whole_bytes);
          i += some;
        }
        for (int64_t i = begin; i < end; ++i) {
          std::byte* to = array.part.data() + i * part_bytes;
          for (const ColumnRange& range : array.columns.ranges) {
            const auto bytes = static_cast<size_t>(range.count * value);
            std::memcpy(to, array.whole.data() + i * whole_bytes + range.begin * value, bytes);
            to += bytes;
          }
        }
      });
    }
    use({local, arrays[0].part.data(), arrays[1].part.data()});
  }
}

}  // namespace segue::sparse
