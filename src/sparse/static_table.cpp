#include "sparse/static_table.h"

#include <algorithm>
#include <utility>

#include "ops/initialize.h"
#include "ops/rows.h"

namespace segue::sparse {

StaticTable::StaticTable(TableSpec given) : RowTable(std::move(given)) {
  const int64_t rows = shard().rows();
  const DType dtype = spec().dtype;
  const Device device = spec().device;
  void *weights = spec().weights, *state = spec().state;
  if (weights == nullptr) {
    weight_memory_ = Buffer(device, rows * columns() * size_of(dtype), Purpose::kTable);
    state_memory_ = Buffer(device, rows * state_columns() * size_of(dtype), Purpose::kOptimizer);
    weights = weight_memory_.data();
    state = state_memory_.data();
  }
  resident_.weights = Tensor(weights, dtype, device, {rows, columns()});
  resident_.state = Tensor(state, dtype, device, {rows, state_columns()});
  initialize_rows();
}

void StaticTable::initialize_rows() {
  const ops::RowInit init = spec().init();
  const Tensor& weights = resident_.weights;
  const int64_t rows = shard().rows();
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
    for (int64_t i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = row_number(first + i);
    const Tensor here = host_view(std::span<int64_t>(numbers));
    Buffer there;
    Tensor placed = here;
    if (weights.device.is_cuda()) {
      there = Buffer(weights.device, here.bytes(), Purpose::kScratch);
      placed = Tensor(there.data(), DType::kI64, weights.device, {count});
      copy(placed, here, &stream);
      stream.synchronize();
    }
    ops::initialize_part(weights.rows(first, count), init, placed, shard().columns.begin);
  }
}

void StaticTable::find_slots(std::span<int64_t> keys, Mode /*mode*/) { make_local(keys); }

void StaticTable::release(std::span<const int64_t> slots, Mode mode, const Stream* last_use) {
  if (mode == Mode::kTraining && last_use != nullptr) note_changed(slots);
}

std::vector<TableArray> StaticTable::snapshot(Extent extent) {
  if (extent == Extent::kAll) return dense_arrays(resident_.weights, resident_.state);
  saved_order_ = changed_rows();
  saved_rows_ = row_numbers(saved_order_);
  const auto rows = [&](const Tensor& all) {
    return Tensor(all.data, all.dtype, all.device, {std::ssize(saved_order_), all.size(1)});
  };
  return sparse_arrays(host_view(std::span<int64_t>(saved_rows_)), rows(resident_.weights),
                       rows(resident_.state), saved_order_);
}

void StaticTable::load(const SavedArrays& saved) {
  if (!saved.shape("row")) return;  // what was saved was read into the memory itself
  initialize_rows();
  zero(resident_.state);
  const Device device = spec().device;
  const Stream stream(device);
  read_rows(saved, [&](const LoadedRows& rows) {
    const int64_t count = std::ssize(rows.local);
    const auto move = [&](std::byte* from, const Tensor& to) {
      const int64_t width = to.size(1);
      if (width == 0) return;
      Tensor values(from, to.dtype, Device::cpu(), {count, width});
      Tensor index(const_cast<int64_t*>(rows.local.data()), DType::kI64, Device::cpu(), {count});
      Buffer value_memory, index_memory;
      if (device.is_cuda()) {
        value_memory = Buffer(device, values.bytes(), Purpose::kScratch);
        index_memory = Buffer(device, index.bytes(), Purpose::kScratch);
        const Tensor placed(value_memory.data(), to.dtype, device, {count, width});
        const Tensor placed_index(index_memory.data(), DType::kI64, device, {count});
        copy(placed, values, &stream);
        copy(placed_index, index, &stream);
        values = placed;
        index = placed_index;
      }
      Exec exec;
      exec.stream = &stream;
      exec.device = device;
      ops::scatter_rows(exec, values, index, to);
      stream.synchronize();
    };
    move(rows.weights, resident_.weights);
    move(rows.state, resident_.state);
  });
}

}  // namespace segue::sparse
