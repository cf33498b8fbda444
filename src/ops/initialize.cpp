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
                     int64_t first_column, [[maybe_unused]] const Stream* stream) {
  SEGUE_ASSERT(to.rank == 2 && row_numbers.elements() == to.size(0), "one number per row");
#if SEGUE_HAS_CUDA
  if (to.device.is_cuda()) {
    return cuda::initialize_part(to, init, row_numbers, first_column, stream);
  }
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

void initialize_new_rows(const Exec& exec, std::span<const NewRows> tables) {
  for (const auto& [init, keys, slots, is_new, weights, state] : tables) {
    SEGUE_ASSERT(slots.elements() == keys.elements() && is_new.elements() == keys.elements(),
                 "one slot and one flag per key");
  }
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda()) return cuda::initialize_new_rows(exec, tables);
#endif
  require_cpu(exec, "initialize_new_rows");
  for (const NewRows& t : tables) {
    const int64_t columns = t.weights.size(1), state_columns = t.state.size(1);
    dispatch_real(t.weights.dtype, [&](auto zero_value) {
      using T = decltype(zero_value);
      for_rows(t.keys.elements(), columns, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (t.is_new.ptr<uint8_t>()[i] == 0) continue;
          const int64_t slot = t.slots.ptr<int64_t>()[i];
          const uint64_t id = id_of_key(t.keys.ptr<int64_t>()[i]);
          initialize_row(t.init, id, 0, columns, t.weights.row<T>(slot));
          if (state_columns > 0) std::fill_n(t.state.row<T>(slot), state_columns, T{0});
        }
      });
    });
  }
}

void initialize_missing_rows(const Exec& exec, std::span<const MissingRows> tables) {
  for (const MissingRows& t : tables) {
    SEGUE_ASSERT(t.slots.elements() == t.keys.elements() &&
                     t.to.size(0) == (t.of ? t.of : t.keys).elements(),
                 "one slot per key, and a key for every row");
  }
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda()) return cuda::initialize_missing_rows(exec, tables);
#endif
  require_cpu(exec, "initialize_missing_rows");
  for (const MissingRows& t : tables) {
    dispatch_real(t.to.dtype, [&](auto zero_value) {
      using T = decltype(zero_value);
      for_rows(t.to.size(0), t.to.size(1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (t.of && t.of.ptr<int32_t>()[i] < 0) continue;
          const int64_t at = t.of ? t.of.ptr<int32_t>()[i] - t.first : i;
          if (t.slots.ptr<int64_t>()[at] >= 0) continue;
          const int64_t key = t.keys.ptr<int64_t>()[at];
          const uint64_t id = t.mixed ? id_of_key(key) : static_cast<uint64_t>(key);
          initialize_row(t.init, id, 0, t.to.size(1), t.to.row<T>(i));
        }
      });
    });
  }
}

}  // namespace segue::ops
