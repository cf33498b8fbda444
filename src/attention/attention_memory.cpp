#include <algorithm>

#include "attention/cuda_plan.h"
#include "attention/hstu_attention.h"
#include "attention/target_attention_cuda.h"

// Sizes are those of the CUDA kernels, from their headers; a build without CUDA plans for them too.

namespace segue::attention {

int64_t hstu_attention_backward_bytes(std::span<const int64_t> offsets, int64_t heads,
                                      const HstuMask& mask, int64_t dbias_columns) {
  int64_t blocks = 0;
  for (size_t i = 1; i < offsets.size(); ++i) {
    blocks += spill_blocks_of(mask, offsets[i] - offsets[i - 1]);
  }
  constexpr int64_t kMostBlocks = kMostSpillBytes / kSpillBlockBytes + 1;  // no size overflows
  const int64_t spilled = std::min(heads * blocks, kMostBlocks) * kSpillBlockBytes;
  const int64_t sum_rows = most_sum_rows(offsets.back() - offsets.front(), std::ssize(offsets) - 1);
  const int64_t sums = sum_rows * dbias_columns * size_of(DType::kF32);
  return sums + std::min(kMostSpillBytes, spilled) + kWorkListBytes;
}

bool target_attention_norms(Device device, DType dtype, int64_t dim) {
  return device.is_cuda() && cuda::norms_rows_of(dtype, dim);
}

int64_t target_attention_bytes(std::span<const int64_t> offsets, int64_t heads, int64_t targets,
                               int64_t dim) {
  const int64_t rows = offsets.back() - offsets.front();
  const int64_t chunks = rows / cuda::kChunkRows + std::ssize(offsets) - 1;
  return chunks * targets * heads * (dim + 1) * size_of(DType::kF32);
}

}  // namespace segue::attention
