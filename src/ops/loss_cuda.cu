#include "ops/cuda_forms.h"
#include "ops/kernel.cuh"

namespace segue::ops::cuda {
namespace {

constexpr int kLossThreads = 1024;

struct LossTerm {
  double loss, gradient, prediction;
};

// As on the CPU: no exponential of a positive number, nothing overflows and nothing cancels.
__device__ LossTerm binary_term(double logit, double label) {
  const double e = exp(-fabs(logit));
  const double prediction = (logit >= 0 ? 1.0 : e) / (1.0 + e);
  return {(logit > 0 ? logit : 0.0) - logit * label + log1p(e), prediction - label, prediction};
}

__device__ LossTerm regression_term(double logit, double label) {
  const double difference = logit - label;
  return {difference * difference, 2 * difference, logit};
}

struct Column {
  float* data;
  int64_t stride;
  __device__ float& operator[](int64_t i) const { return data[i * stride]; }
};
Column column_of(const Tensor& t) {
  return t ? Column{device_ptr<float>(t), t.stride(0)} : Column{nullptr, 0};
}

/// Samples of a block: few of them, as most batches have, are one block's.
constexpr int64_t kLossRows = 4 * kLossThreads;

/// The sums of blocks, where there are several, go to `partials` for the next kernel.
__global__ void __launch_bounds__(kLossThreads)
    loss_kernel(TaskKind kind, int64_t n, Column logits, const float* labels, const float* weights,
                double factor, Column dlogits, Column predictions, double* loss_sum,
                double* partials) {
  __shared__ double sums[kLossThreads / kWarp];
  double sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kLossThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kLossThreads + threadIdx.x; i < n;
       i += step) {
    const double logit = logits[i], label = labels[i];
    const LossTerm t =
        kind == TaskKind::kBinary ? binary_term(logit, label) : regression_term(logit, label);
    const double scale = (weights != nullptr ? static_cast<double>(weights[i]) : 1.0) * factor;
    sum += t.loss * scale;
    if (dlogits.data != nullptr) dlogits[i] = static_cast<float>(t.gradient * scale);
    if (predictions.data != nullptr) predictions[i] = static_cast<float>(t.prediction);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (const double part : sums) total += part;
  if (partials != nullptr) {
    partials[blockIdx.x] = total;
  } else {
    *loss_sum += total;
  }
}

__global__ void add_losses_kernel(int count, const double* partials, double* loss_sum) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarp) sum += partials[i];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) *loss_sum += sum;
}

}  // namespace

void loss_forward_backward(const Exec& exec, TaskKind kind, const Tensor& logits,
                           const Tensor& labels, const Tensor& weights, double factor,
                           const Tensor& dlogits, const Tensor& predictions,
                           const Tensor& loss_sum) {
  const int64_t n = logits.size(0);
  SEGUE_ASSERT(logits.rank == 1 && labels.elements() == n && (!weights || weights.elements() == n),
               "loss: one label and one weight per logit");
  SEGUE_ASSERT(!dlogits || dlogits.size(0) == n, "loss: one gradient per logit");
  SEGUE_ASSERT(!predictions || predictions.size(0) == n, "loss: one prediction per logit");
  SEGUE_ASSERT(labels.is_contiguous() && (!weights || weights.is_contiguous()),
               "loss: strided labels");
  SEGUE_ASSERT(loss_sum.elements() == 1, "loss: the sum is one double");
  if (n == 0) return;
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const int64_t blocks = std::min(divide_up(n, kLossRows), kMultiprocessors);
  const Tensor partials = blocks > 1 ? exec.arena->tensor(DType::kF64, {blocks}) : Tensor{};
  loss_kernel<<<static_cast<unsigned>(blocks), kLossThreads, 0, stream>>>(
      kind, n, column_of(logits), device_ptr<float>(labels), device_ptr<float>(weights), factor,
      column_of(dlogits), column_of(predictions), device_ptr<double>(loss_sum),
      device_ptr<double>(partials));
  check_launch();
  if (!partials) return;
  add_losses_kernel<<<1, kWarp, 0, stream>>>(static_cast<int>(blocks), device_ptr<double>(partials),
                                             device_ptr<double>(loss_sum));
  check_launch();
}

}  // namespace segue::ops::cuda
