#include "ops/loss.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/parallel.h"
#include "ops/cuda_forms.h"

namespace segue::ops {
namespace {

struct LossTerm {
  double loss, gradient, prediction;
};

// max(z, 0) - z y + log(1 + e^-|z|): no exponential of a positive number, so nothing overflows and
// nothing cancels.
LossTerm binary_term(double logit, double label) {
  const double e = std::exp(-std::abs(logit));
  const double prediction = (logit >= 0 ? 1.0 : e) / (1.0 + e);
  return {std::max(logit, 0.0) - logit * label + std::log1p(e), prediction - label, prediction};
}

LossTerm regression_term(double logit, double label) {
  const double difference = logit - label;
  return {difference * difference, 2 * difference, logit};
}

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
  // A few values per sample: double costs nothing here and keeps the reported loss exact.
  const Arena::Mark mark(*exec.arena);
  const Tensor terms = exec.arena->tensor(DType::kF64, {n});
  double* term = terms.ptr<double>();
  dispatch_real(logits.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const T* label = labels.ptr<T>();
    const T* weight = weights ? weights.ptr<T>() : nullptr;
    constexpr int64_t kTermsPerTask = 1024;
    base::parallel_for(n, kTermsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double logit = static_cast<double>(*logits.row<T>(i));
        const LossTerm t = kind == TaskKind::kBinary
                               ? binary_term(logit, static_cast<double>(label[i]))
                               : regression_term(logit, static_cast<double>(label[i]));
        const double scale = (weight != nullptr ? static_cast<double>(weight[i]) : 1.0) * factor;
        term[i] = t.loss * scale;
        if (dlogits) *dlogits.row<T>(i) = static_cast<T>(t.gradient * scale);
        if (predictions) *predictions.row<T>(i) = static_cast<T>(t.prediction);
      }
    });
  });
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += term[i];
  loss_sum.ptr<double>()[0] += sum;
}

}  // namespace segue::ops
