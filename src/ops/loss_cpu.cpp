#include "ops/loss.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/parallel.h"
#include "ops/cuda_forms.h"
#include "ops/vector_math.h"

namespace segue::ops {
namespace {

struct LossTerm {
  double loss, gradient, prediction;
};

// max(z, 0) - z y + log(1 + e^-|z|): no exponential of a positive number, so nothing overflows and
// nothing cancels.
LossTerm binary_term(double logit, double label) {
  const double e = exp_of_negative(-std::abs(logit));
  const double prediction = (logit >= 0 ? 1.0 : e) / (1.0 + e);
  return {std::max(logit, 0.0) - logit * label + log1p_of_unit(e), prediction - label, prediction};
}

LossTerm regression_term(double logit, double label) {
  const double difference = logit - label;
  return {difference * difference, 2 * difference, logit};
}

/// Some samples: what comes in, strided or absent, and goes out lies in arrays of double, a loop
/// over which is vector code.
struct Block {
  static constexpr int64_t kSize = 64;

  template <LossTerm (*kTerm)(double, double)>
  void compute() {
    for (int64_t k = 0; k < kSize; ++k) {
      const LossTerm t = kTerm(logit[k], label[k]);
      loss[k] = t.loss * scale[k];
      gradient[k] = t.gradient * scale[k];
      prediction[k] = t.prediction;
    }
  }

  // Where there are fewer samples the rest is zeros, which add nothing.
  double logit[kSize] = {}, label[kSize] = {}, scale[kSize] = {};
  double loss[kSize], gradient[kSize], prediction[kSize];
};

}  // namespace

void loss_forward_backward(const Exec& exec, TaskKind kind, const Tensor& logits,
                           const Tensor& labels, const Tensor& weights, double factor,
                           const Tensor& dlogits, const Tensor& predictions,
                           const Tensor& loss_sum) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda())
      return cuda::loss_forward_backward(exec, kind, logits, labels, weights, factor, dlogits,
                                         predictions, loss_sum);
  }
  require_cpu(exec, "loss_forward_backward");
  const int64_t n = logits.size(0);
  SEGUE_ASSERT(logits.rank == 1 && labels.elements() == n && (!weights || weights.elements() == n),
               "loss: one label and one weight per logit");
  SEGUE_ASSERT(loss_sum.dtype == DType::kF64 && loss_sum.elements() == 1,
               "loss: the sum is one double");
  SEGUE_ASSERT(!dlogits || dlogits.size(0) == n, "loss: one gradient per logit");
  SEGUE_ASSERT(!predictions || predictions.size(0) == n, "loss: one prediction per logit");
  SEGUE_ASSERT(labels.is_contiguous() && (!weights || weights.is_contiguous()),
               "loss: strided labels");
  // A few values per sample: double costs little here and keeps the reported loss exact.
  constexpr int64_t kSamplesPerTask = 16 * Block::kSize;
  const Arena::Mark mark(*exec.arena);
  const Tensor sums = exec.arena->tensor(DType::kF64, {base::num_chunks(n, kSamplesPerTask)});
  dispatch_real(logits.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const T* logit = logits.ptr<T>();
    const T* label = labels.ptr<T>();
    const T* weight = weights ? weights.ptr<T>() : nullptr;
    const int64_t stride = logits.stride(0);
    const auto store = [](const Tensor& to, int64_t first, int64_t count, const double* values) {
      if (!to) return;
      T* out = to.row<T>(first);
      for (int64_t k = 0; k < count; ++k) out[k * to.stride(0)] = static_cast<T>(values[k]);
    };
    base::parallel_for(n, kSamplesPerTask, [&](int64_t begin, int64_t end) {
      double sum = 0;
      for (int64_t i = begin; i < end; i += Block::kSize) {
        const int64_t count = std::min(Block::kSize, end - i);
        Block b;
        for (int64_t k = 0; k < count; ++k) {
          b.logit[k] = static_cast<double>(logit[(i + k) * stride]);
          b.label[k] = static_cast<double>(label[i + k]);
          b.scale[k] = weight != nullptr ? static_cast<double>(weight[i + k]) * factor : factor;
        }
        if (kind == TaskKind::kBinary) {
          b.compute<binary_term>();
        } else {
          b.compute<regression_term>();
        }
        store(dlogits, i, count, b.gradient);
        store(predictions, i, count, b.prediction);
        sum += lane_sum<double>(Block::kSize, [&b](int64_t k) { return b.loss[k]; });
      }
      sums.ptr<double>()[begin / kSamplesPerTask] = sum;
    });
  });
  double sum = 0;
  for (const double of_task : sums.span<double>()) sum += of_task;
  loss_sum.ptr<double>()[0] += sum;
}

}  // namespace segue::ops
