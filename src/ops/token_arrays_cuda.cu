#include "ops/cuda_forms.h"
#include "ops/kernel.cuh"
#include "ops/token_rules.h"

namespace segue::ops::cuda {
namespace {

/// Blocks of one column of the grid share a sample.
__global__ void __launch_bounds__(kThreads) fill_tokens_kernel(TokenFill f) {
  const TokenFill::Sample s = f.sample_at(blockIdx.x);
  for (int64_t t = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; t < s.length;
       t += static_cast<int64_t>(gridDim.y) * kThreads) {
    f.fill(s, t);
  }
}

}  // namespace

void fill_token_arrays(const Exec& exec, const TokenFill& fill) {
  if (fill.samples == 0) return;
  const int64_t share = std::clamp<int64_t>(kMaxBlocks / fill.samples, 1, kMaxBlocks);
  const dim3 grid(static_cast<unsigned>(fill.samples), static_cast<unsigned>(share));
  fill_tokens_kernel<<<grid, kThreads, 0, stream_of(exec)>>>(fill);
  check_launch();
}

}  // namespace segue::ops::cuda
