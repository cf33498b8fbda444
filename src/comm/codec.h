#pragma once

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace segue::comm {

/// How rows of numbers travel.
enum class Wire { kF32, kBf16, kF16 };

/// What rows of type `rows` are on the wire. kF32 leaves them as they are (the f64 of tests, too).
DType wire_dtype(Wire wire, DType rows);

/// Rounds `rows` [n, w] (f32, on the CPU also f64; columns together, rows any stride apart)
/// straight into `wire` [n, w] (contiguous; bf16, f16, or the same type: a copy). To nearest even;
/// beyond the largest finite number of the wire (infinities, too) that number is sent; NaN stays
/// NaN. On a GPU it is ordered on `stream`.
void encode_rows(const Tensor& rows, const Tensor& wire, const Stream* stream = nullptr);
/// The way back.
void decode_rows(const Tensor& wire, const Tensor& rows, const Stream* stream = nullptr);

namespace detail {
void encode_rows_cuda(const Tensor& rows, const Tensor& wire, const Stream* stream);
void decode_rows_cuda(const Tensor& wire, const Tensor& rows, const Stream* stream);
}  // namespace detail

}  // namespace segue::comm
