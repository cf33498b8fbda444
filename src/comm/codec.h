#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace segue::comm {

/// How values travel: as they are, or in 16 bits.
enum class WireType { kPlain, kBf16, kF16 };

/// Bytes that one value of type `dtype` takes on the wire.
int64_t wire_size(WireType wire, DType dtype);

/// Writes the rows of a float (or double) matrix, whose rows may be strided, one after the other in
/// wire format: rounded to nearest even, values beyond the largest finite one clamped to it, NaN
/// kept. Nothing of full size is needed beside the message. On a GPU ordered on `stream`.
void encode(const Tensor& rows, WireType wire, void* to, const Stream* stream);
void decode(const void* from, WireType wire, const Tensor& rows, const Stream* stream);

namespace detail {
void encode_cuda(const Tensor& rows, WireType wire, void* to, const Stream* stream);
void decode_cuda(const void* from, WireType wire, const Tensor& rows, const Stream* stream);
}  // namespace detail

}  // namespace segue::comm
