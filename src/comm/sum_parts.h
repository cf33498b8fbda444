#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace segue::comm {

/// out[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ..., parts one after the other, each
/// `count` elements of f32 or f64; `out` may be one of them.
void sum_parts(void* out, const void* parts, int num_parts, int64_t count, DType dtype,
               Device device, const Stream* stream);

namespace detail {
void sum_parts_cuda(void* out, const void* parts, int num_parts, int64_t count, DType dtype,
                    Device device, const Stream* stream);
}  // namespace detail

}  // namespace segue::comm
