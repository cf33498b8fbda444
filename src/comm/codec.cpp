#include "comm/codec.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::comm {
namespace {

template <class Narrow>
constexpr float largest();
template <>
constexpr float largest<bf16>() {
  return 0x1.fep127f;
}
template <>
constexpr float largest<f16>() {
  return 65504.f;
}

template <class To, class From>
To narrowed(From value) {
  constexpr float kMost = largest<To>();
  if (value > From{kMost}) return To(kMost);
  if (value < From{-kMost}) return To(-kMost);
  return To(static_cast<float>(value));
}

void check(const Tensor& rows, const Tensor& wire) {
  SEGUE_ASSERT(rows.rank == 2 && wire.rank == 2 && rows.sizes == wire.sizes,
               "rows and wire have one shape");
  SEGUE_ASSERT(rows.stride(1) == 1 || rows.size(1) <= 1, "columns lie together");
  SEGUE_ASSERT(wire.is_contiguous(), "the wire is contiguous");
  SEGUE_ASSERT(rows.device == wire.device, "rows and wire are on one device");
}

template <class F>
void dispatch_narrow(DType dtype, F&& f) {
  if (dtype == DType::kBf16) return f(bf16{});
  SEGUE_ASSERT(dtype == DType::kF16, "the wire is f32, bf16 or f16");
  f(f16{});
}

/// What a value becomes on the wire, and what comes back.
template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, From>)
    return value;
  else if constexpr (sizeof(To) < sizeof(float))
    return narrowed<To>(value);
  else
    return To{static_cast<float>(value)};
}

/// Calls f(row of `rows`, row of `wire`), as pointers of their types, for every row.
template <class F>
void for_row_pairs(const Tensor& rows, const Tensor& wire, F f) {
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, rows.size(1)));
  dispatch_real(rows.dtype, [&](auto real) {
    using Real = decltype(real);
    const auto run = [&](auto on_wire) {
      base::parallel_for(rows.size(0), grain, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) f(rows.row<Real>(r), wire.row<decltype(on_wire)>(r));
      });
    };
    if (wire.dtype == rows.dtype) return run(real);
    dispatch_narrow(wire.dtype, run);
  });
}

}  // namespace

DType wire_dtype(Wire wire, DType rows) {
  if (wire == Wire::kF32) return rows;
  return wire == Wire::kBf16 ? DType::kBf16 : DType::kF16;
}

void encode_rows(const Tensor& rows, const Tensor& wire, const Stream* stream) {
  check(rows, wire);
  if (rows.elements() == 0) return;
  if (rows.device.is_cuda()) {
#if SEGUE_HAS_CUDA
    return detail::encode_rows_cuda(rows, wire, stream);
#else
    require_available(rows.device);
#endif
  }
  static_cast<void>(stream);
  for_row_pairs(rows, wire,
                [columns = rows.size(1)]<class Real, class Wired>(const Real* from, Wired* to) {
                  std::transform(from, from + columns, to, converted<Wired, Real>);
                });
}

void decode_rows(const Tensor& wire, const Tensor& rows, const Stream* stream) {
  check(rows, wire);
  if (rows.elements() == 0) return;
  if (rows.device.is_cuda()) {
#if SEGUE_HAS_CUDA
    return detail::decode_rows_cuda(wire, rows, stream);
#else
    require_available(rows.device);
#endif
  }
  static_cast<void>(stream);
  for_row_pairs(rows, wire,
                [columns = rows.size(1)]<class Real, class Wired>(Real* to, const Wired* from) {
                  std::transform(from, from + columns, to, converted<Real, Wired>);
                });
}

}  // namespace segue::comm
