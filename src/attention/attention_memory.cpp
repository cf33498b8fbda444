#include <algorithm>

#include "attention/cuda_plan.h"
#include "attention/hstu_attention.h"
#include "attention/target_attention_cuda.h"

// Sizes are those of the CUDA kernels, from their headers; a build without CUDA plans for them too.

namespace segue::attention {

int64_t hstu_attention_backward_bytes(const AttentionBounds& b, int64_t dbias_columns) {
  // Sums grow with rows; what is spilled grows with the square of lengths, so a few of the longest
  // sequences spill more than many short ones.
  const int64_t longest = std::max<int64_t>(1, b.longest);
  const int64_t sequences = (b.rows + longest - 1) / longest;
  const int64_t spilled = b.heads * sequences * spill_blocks_of(b.mask, longest) * kSpillBlockBytes;
  const int64_t sums = most_sum_rows(b.rows, b.sequences) * dbias_columns * size_of(DType::kF32);
  return sums + std::min(kMostSpillBytes, spilled) + kWorkListBytes;
}

bool target_attention_norms(Device device, DType dtype, int64_t dim) {
  return device.is_cuda() && cuda::norms_rows_of(dtype, dim);
}

int64_t target_attention_bytes(const AttentionBounds& b, int64_t targets, int64_t dim) {
  const int64_t chunks = b.rows / cuda::kChunkRows + b.sequences;
  return chunks * targets * b.heads * (dim + 1) * size_of(DType::kF32);
}

}  // namespace segue::attention
