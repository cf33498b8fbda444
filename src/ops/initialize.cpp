#include "ops/initialize.h"

#include <algorithm>
#include <cstdint>

#include "base/hash.h"
#include "ops/initial_values.h"
#include "ops/row_loop.h"
#if SEGUE_HAS_CUDA
#include "ops/initialize_cuda.h"
#include "tensor/buffer.h"
#endif

namespace segue::ops {
namespace {

/// Columns [first_column, first_column + columns) of row `number`.
template <class T>
void initialize_row(const RowInit& init, uint64_t number, int64_t first_column, int64_t columns,
                    T* row) {
  const int64_t end_column = first_column + columns;
  for (int64_t first = first_column / 4 * 4; first < end_column; first += 4) {
    double values[4];
    four_initial_values(init.kind, init.bound, init.seed, init.name_hash, number,
                        static_cast<uint32_t>(first / 4), values);
    const int64_t last = std::min(first + 4, end_column);
    for (int64_t c = std::max(first, first_column); c < last; ++c) {
      row[c - first_column] = static_cast<T>(values[c - first]);
    }
  }
}

#if SEGUE_HAS_CUDA
/// The normal numbers go through log and cos, which round differently on a GPU: those of dense
/// parameters are made here and copied.
void copy_from_host(const Tensor& matrix, Init kind, double bound, uint64_t seed,
                    std::string_view name) {
  SEGUE_ASSERT(matrix.is_contiguous(), "initialize: strided tensor on a GPU");
  const Buffer staging(Device::cpu(), matrix.bytes(), Purpose::kScratch);
  const Tensor host(staging.data(), matrix.dtype, Device::cpu(), {matrix.size(0), matrix.size(1)});
  initialize(host, kind, bound, seed, name);
  copy(matrix, host);
}
#endif

uint64_t id_of_key(int64_t key) { return base::splitmix64_inverse(static_cast<uint64_t>(key)); }

}  // namespace

void initialize(const Tensor& to, Init kind, double bound, uint64_t seed, std::string_view name) {
  const Tensor matrix = as_matrix(to);
  const RowInit init{kind, bound, seed, base::xxh64(name)};
#if SEGUE_HAS_CUDA
  if (to.device.is_cuda()) {
    if (kind == Init::kNormal) return copy_from_host(matrix, kind, bound, seed, name);
    return cuda::initialize(matrix, init);
  }
#endif
  dispatch_real(matrix.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    for_rows(matrix.size(0), matrix.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        initialize_row(init, static_cast<uint64_t>(r), 0, matrix.size(1), matrix.row<T>(r));
      }
    });
  });
}

void initialize_part(const Tensor& to, const RowInit& init, const Tensor& row_numbers,
                     int64_t first_column) {
  SEGUE_ASSERT(to.rank == 2 && row_numbers.elements() == to.size(0), "one number per row");
#if SEGUE_HAS_CUDA
  if (to.device.is_cuda()) return cuda::initialize_part(to, init, row_numbers, first_column);
#endif
  const int64_t* numbers = row_numbers.span<int64_t>().data();
  dispatch_real(to.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    for_rows(to.size(0), to.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        initialize_row(init, static_cast<uint64_t>(numbers[r]), first_column, to.size(1),
                       to.row<T>(r));
      }
    });
  });
}

void initialize_new_rows(const Exec& exec, const RowInit& init, const Tensor& keys,
                         const Tensor& slots, const Tensor& is_new, const Tensor& weights,
                         const Tensor& state) {
  const int64_t n = keys.elements();
  SEGUE_ASSERT(slots.elements() == n && is_new.elements() == n, "one slot and one flag per key");
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda()) {
    return cuda::initialize_new_rows(exec, init, keys, slots, is_new, weights, state);
  }
#endif
  require_cpu(exec, "initialize_new_rows");
  const int64_t columns = weights.size(1), state_columns = state.size(1);
  dispatch_real(weights.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    for_rows(n, columns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (is_new.ptr<uint8_t>()[i] == 0) continue;
        const int64_t slot = slots.ptr<int64_t>()[i];
        initialize_row(init, id_of_key(keys.ptr<int64_t>()[i]), 0, columns, weights.row<T>(slot));
        if (state_columns > 0) std::fill_n(state.row<T>(slot), state_columns, T{0});
      }
    });
  });
}

void initialize_missing_rows(const Exec& exec, const RowInit& init, const Tensor& keys, bool mixed,
                             const Tensor& slots, const Tensor& to) {
  const int64_t n = keys.elements();
  SEGUE_ASSERT(slots.elements() == n && to.size(0) == n, "one slot and one row per key");
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda())
    return cuda::initialize_missing_rows(exec, init, keys, mixed, slots, to);
#endif
  require_cpu(exec, "initialize_missing_rows");
  dispatch_real(to.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    for_rows(n, to.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (slots.ptr<int64_t>()[i] >= 0) continue;
        const int64_t key = keys.ptr<int64_t>()[i];
        const uint64_t id = mixed ? id_of_key(key) : static_cast<uint64_t>(key);
        initialize_row(init, id, 0, to.size(1), to.row<T>(i));
      }
    });
  });
}

}  // namespace segue::ops
