#include "comm/codec.h"

#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/parallel.h"

namespace segue::comm {
namespace {

constexpr int64_t kValuesPerTask = 1 << 15;
constexpr float kLargestF16 = 65504.0f;
constexpr float kLargestBf16 = 3.3895313892515355e38f;

float largest(f16) { return kLargestF16; }
float largest(bf16) { return kLargestBf16; }

/// Calls use(row of the matrix, same row of the message) for all rows, on several threads.
template <class T, class Wire, class Use>
void for_rows(const Tensor& rows, Wire* message, Use&& use) {
  const int64_t columns = rows.size(1);
  const int64_t grain = std::max<int64_t>(1, kValuesPerTask / std::max<int64_t>(1, columns));
  base::parallel_for(rows.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) use(rows.row<T>(r), message + r * columns);
  });
}

template <class T, class Half>
void encode_rows(const Tensor& rows, Half* to) {
  const int64_t columns = rows.size(1);
  for_rows<T>(rows, to, [columns](const T* from, Half* out) {
    const float most = largest(Half{});
    for (int64_t c = 0; c < columns; ++c) {
      const auto value = static_cast<float>(from[c]);
      // Comparisons with NaN are false: it stays.
      out[c] = Half(value > most ? most : (value < -most ? -most : value));
    }
  });
}

template <class T, class Half>
void decode_rows(const Half* from, const Tensor& rows) {
  const int64_t columns = rows.size(1);
  for_rows<T>(rows, from, [columns](T* to, const Half* in) {
    for (int64_t c = 0; c < columns; ++c) to[c] = static_cast<T>(static_cast<float>(in[c]));
  });
}

template <class T>
void encode_as(const Tensor& rows, WireType wire, void* to) {
  const auto bytes = static_cast<size_t>(rows.size(1)) * sizeof(T);
  switch (wire) {
    case WireType::kPlain:
      return for_rows<T>(rows, static_cast<T*>(to),
                         [bytes](const T* from, T* out) { std::memcpy(out, from, bytes); });
    case WireType::kBf16:
      return encode_rows<T>(rows, static_cast<bf16*>(to));
    case WireType::kF16:
      return encode_rows<T>(rows, static_cast<f16*>(to));
  }
}

template <class T>
void decode_as(const void* from, WireType wire, const Tensor& rows) {
  const auto bytes = static_cast<size_t>(rows.size(1)) * sizeof(T);
  switch (wire) {
    case WireType::kPlain:
      return for_rows<T>(rows, static_cast<const T*>(from),
                         [bytes](T* to, const T* in) { std::memcpy(to, in, bytes); });
    case WireType::kBf16:
      return decode_rows<T>(static_cast<const bf16*>(from), rows);
    case WireType::kF16:
      return decode_rows<T>(static_cast<const f16*>(from), rows);
  }
}

bool nothing(const Tensor& rows) {
  SEGUE_ASSERT(rows.rank == 2 && (rows.size(1) <= 1 || rows.stride(1) == 1), "rows of a matrix");
  SEGUE_ASSERT(rows.dtype == DType::kF32 || rows.dtype == DType::kF64, "float or double");
  return rows.elements() == 0;
}

}  // namespace

int64_t wire_size(WireType wire, DType dtype) {
  return wire == WireType::kPlain ? size_of(dtype) : 2;
}

void encode(const Tensor& rows, WireType wire, void* to, const Stream* stream) {
  if (nothing(rows)) return;
#if SEGUE_HAS_CUDA
  if (rows.device.is_cuda()) return detail::encode_cuda(rows, wire, to, stream);
#endif
  static_cast<void>(stream);
  dispatch_real(rows.dtype, [&](auto zero) { encode_as<decltype(zero)>(rows, wire, to); });
}

void decode(const void* from, WireType wire, const Tensor& rows, const Stream* stream) {
  if (nothing(rows)) return;
#if SEGUE_HAS_CUDA
  if (rows.device.is_cuda()) return detail::decode_cuda(from, wire, rows, stream);
#endif
  static_cast<void>(stream);
  dispatch_real(rows.dtype, [&](auto zero) { decode_as<decltype(zero)>(from, wire, rows); });
}

}  // namespace segue::comm
