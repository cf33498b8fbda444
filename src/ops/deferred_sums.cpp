#include "ops/deferred_sums.h"

#include <algorithm>

#include "ops/cuda_forms.h"

namespace segue::ops {

namespace {
constexpr int64_t kBytes = int64_t{32} << 20;  // a step of the published model needs 22 MiB
constexpr int64_t kAlignment = 256;
}  // namespace

int64_t DeferredSums::memory_bytes(Device device) { return device.is_cuda() ? kBytes : 0; }

DeferredSums::DeferredSums(const Exec& exec)
    : exec_(exec), memory_(exec.arena->tensor(DType::kU8, {memory_bytes(exec.device)})) {}

Tensor DeferredSums::partials(int64_t rows, int64_t columns) {
  const int64_t bytes = rows * columns * size_of(DType::kF32);
  if (bytes > kBytes) return {};
  if (used_ + bytes > kBytes) flush();
  const Tensor t(static_cast<char*>(memory_.data) + used_, DType::kF32, exec_.device,
                 {rows, columns});
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return t;
}

void DeferredSums::add(const Fold& fold) {
  // Two sums into one place, as of two micro-batches, keep their order.
  const auto shares = [&](const Fold& other) {
    return fold.to < other.to + other.n && other.to < fold.to + fold.n;
  };
  if (std::ranges::any_of(folds_, shares)) flush_folds();
  folds_.push_back(fold);
}

void DeferredSums::flush() {
  flush_folds();
  used_ = 0;
}

void DeferredSums::flush_folds() {
  if constexpr (kHasCuda) {
    if (!folds_.empty()) cuda::fold_partials(exec_, folds_);
  }
  folds_.clear();
}

}  // namespace segue::ops
