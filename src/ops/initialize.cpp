#include "ops/initialize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/hash.h"
#include "base/rng.h"
#include "ops/row_loop.h"
#if SEGUE_HAS_CUDA
#include "ops/initialize_cuda.h"
#include "tensor/buffer.h"
#endif

namespace segue::ops {
namespace {

using Four = std::array<double, 4>;

/// In [-1, 1), multiples of 2^-23: times a bound it stays below the bound in float, too.
Four uniform_values(const base::PhiloxCounter& bits) {
  const auto value = [](uint32_t word) {
    return 2.0 * static_cast<double>(base::uniform_f32(word)) - 1.0;
  };
  return {value(bits.x), value(bits.y), value(bits.z), value(bits.w)};
}

/// Box-Muller: two words give two independent normal numbers. The first is taken from (0, 1], where
/// the logarithm is finite.
void box_muller(uint32_t a, uint32_t b, double* out) {
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(a) + 1.0) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(b) * 0x1p-32;
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

Four normal_values(const base::PhiloxCounter& bits) {
  Four values;
  box_muller(bits.x, bits.y, values.data());
  box_muller(bits.z, bits.w, values.data() + 2);
  return values;
}

#if SEGUE_HAS_CUDA
/// The normal numbers go through log and cos, which round differently on a GPU: they are made here
/// and copied. Only dense parameters have them.
void copy_from_host(const Tensor& matrix, Init kind, double bound, uint64_t seed,
                    std::string_view name) {
  SEGUE_ASSERT(matrix.is_contiguous(), "initialize: strided tensor on a GPU");
  const Buffer staging(Device::cpu(), matrix.bytes(), Purpose::kScratch);
  const Tensor host(staging.data(), matrix.dtype, Device::cpu(), {matrix.size(0), matrix.size(1)});
  initialize(host, kind, bound, seed, name);
  copy(matrix, host);
}
#endif

}  // namespace

void initialize(const Tensor& to, Init kind, double bound, uint64_t seed, std::string_view name) {
  const Tensor matrix = as_matrix(to);
  const int64_t columns = matrix.size(1);
  const uint64_t name_hash = base::xxh64(name);
#if SEGUE_HAS_CUDA
  if (to.device.is_cuda()) {
    if (kind == Init::kNormal) return copy_from_host(matrix, kind, bound, seed, name);
    return cuda::initialize(matrix, kind, bound, seed, name_hash);
  }
#endif
  dispatch_real(matrix.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    for_rows(matrix.size(0), columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* row = matrix.row<T>(r);
        if (kind == Init::kZeros || kind == Init::kOnes) {
          std::fill_n(row, columns, kind == Init::kOnes ? T{1} : T{0});
          continue;
        }
        for (int64_t first = 0; first < columns; first += 4) {
          const base::PhiloxCounter bits = base::init_bits(
              seed, name_hash, static_cast<uint64_t>(r), static_cast<uint32_t>(first / 4));
          const Four values = kind == Init::kUniform ? uniform_values(bits) : normal_values(bits);
          const int64_t count = std::min<int64_t>(4, columns - first);
          for (int64_t i = 0; i < count; ++i) {
            row[first + i] = static_cast<T>(bound * values[static_cast<size_t>(i)]);
          }
        }
      }
    });
  });
}

void initialize_part(const Tensor& to, double bound, uint64_t seed, std::string_view name,
                     const Tensor& row_numbers, int64_t first_column) {
  SEGUE_ASSERT(to.rank == 2 && row_numbers.elements() == to.size(0), "one number per row");
  const uint64_t name_hash = base::xxh64(name);
#if SEGUE_HAS_CUDA
  if (to.device.is_cuda()) {
    return cuda::initialize_part(to, bound, seed, name_hash, row_numbers, first_column);
  }
#endif
  const int64_t* numbers = row_numbers.span<int64_t>().data();
  const int64_t end_column = first_column + to.size(1);
  dispatch_real(to.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    for_rows(to.size(0), to.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* row = to.row<T>(r) - first_column;
        for (int64_t first = first_column / 4 * 4; first < end_column; first += 4) {
          const Four values =
              uniform_values(base::init_bits(seed, name_hash, static_cast<uint64_t>(numbers[r]),
                                             static_cast<uint32_t>(first / 4)));
          const int64_t last = std::min(first + 4, end_column);
          for (int64_t c = std::max(first, first_column); c < last; ++c) {
            row[c] = static_cast<T>(bound * values[static_cast<size_t>(c - first)]);
          }
        }
      }
    });
  });
}

}  // namespace segue::ops
