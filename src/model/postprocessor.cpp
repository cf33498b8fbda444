#include "model/postprocessor.h"

#include "ops/contextual.h"
#include "ops/gemm.h"
#include "ops/rows.h"

namespace segue::model {

namespace {
constexpr double kUnitSeconds[] = {3600, 86400};
constexpr double kUnitsPerPeriod[] = {24, 7};
constexpr int64_t kTimeFeatures = 4;
constexpr double kL2Eps = 1e-6;
}  // namespace

Postprocessor::Postprocessor(Parameters& parameters, const std::string& prefix,
                             const Config& config)
    : config_(config) {
  if (config.kind == PostprocessorKind::kL2) return;
  norm_weight_ = parameters.add(prefix + "_layer_norm.weight", {config.dim}, ops::Init::kOnes);
  norm_bias_ = parameters.add(prefix + "_layer_norm.bias", {config.dim}, ops::Init::kZeros);
  if (config.kind == PostprocessorKind::kTimestampLayerNorm) {
    const int64_t in = config.dim + kTimeFeatures;
    combiner_weight_ = parameters.add(prefix + "_time_feature_combiner.weight", {config.dim, in},
                                      ops::Init::kNormal, xavier_normal_std(in, config.dim));
    combiner_bias_ =
        parameters.add(prefix + "_time_feature_combiner.bias", {config.dim}, ops::Init::kZeros);
  }
}

ops::NormParams Postprocessor::norm() const {
  return {.weight = norm_weight_->value, .bias = norm_bias_->value, .eps = ModelConfig::kNormEps};
}

void Postprocessor::time_features(const Exec& exec, const Tensor& timestamps,
                                  const Tensor& out) const {
  ops::cyclic_time_features(
      exec, {.unit_seconds = kUnitSeconds, .units_per_period = kUnitsPerPeriod, .pi = config_.pi},
      timestamps, out);
}

int64_t Postprocessor::row_stride() const {
  if (config_.kind != PostprocessorKind::kTimestampLayerNorm) return config_.dim;
  constexpr int64_t kAligned = 8;  // 16 bytes of bf16
  return (config_.dim + kTimeFeatures + kAligned - 1) / kAligned * kAligned;
}

Tensor Postprocessor::make_input(const Exec& exec, int64_t rows) const {
  return exec.activation({rows, row_stride()}).columns(0, config_.dim);
}

Postprocessor::Saved Postprocessor::forward_memory(const Exec& exec, int64_t rows) const {
  Saved s;
  s.y = exec.activation({rows, config_.dim});
  if (config_.kind != PostprocessorKind::kL2) s.stats = ops::make_norm_stats(exec, rows);
  if (config_.kind == PostprocessorKind::kTimestampLayerNorm) {
    s.combined = exec.activation({rows, config_.dim});
  }
  return s;
}

Postprocessor::Saved Postprocessor::forward(const Exec& exec, const Tensor& x,
                                            const Tensor& timestamps) const {
  const int64_t rows = x.size(0);
  const int64_t dim = config_.dim;
  Saved s = forward_memory(exec, rows);
  s.x = x;
  if (config_.kind == PostprocessorKind::kL2) {
    ops::l2_normalize_forward(exec, x, kL2Eps, s.y);
    return s;
  }
  if (config_.kind == PostprocessorKind::kLayerNorm) {
    ops::norm_forward(exec, norm(), x, s.y, s.stats);
    return s;
  }
  Tensor place = x;
  if (x.is_contiguous()) {
    place = make_input(exec, rows);
    ops::scale(exec, x, 1, place);
  }
  s.x = place;
  s.x.sizes[1] = dim + kTimeFeatures;
  time_features(exec, timestamps, s.x.columns(dim, kTimeFeatures));
  ops::linear_forward(exec, s.x, combiner_weight_->value, combiner_bias_->value, s.combined);
  ops::norm_forward(exec, norm(), s.combined, s.y, s.stats);
  return s;
}

Tensor Postprocessor::backward_memory(const Exec& exec, int64_t rows) const {
  if (config_.kind != PostprocessorKind::kTimestampLayerNorm) return {};
  return exec.activation({rows, config_.dim});
}

void Postprocessor::backward(const Exec& exec, const Saved& s, const Tensor& dy,
                             const Tensor& dx) const {
  Arena::Mark scratch(*exec.arena);
  switch (config_.kind) {
    case PostprocessorKind::kL2:
      ops::l2_normalize_backward(exec, dy, s.x, kL2Eps, dx);
      return;
    case PostprocessorKind::kLayerNorm:
      ops::norm_backward(exec, norm(), dy, s.x, s.stats, {}, dx,
                         {norm_weight_->grad, norm_bias_->grad});
      return;
    case PostprocessorKind::kTimestampLayerNorm:
      break;
  }
  const Tensor dcombined = backward_memory(exec, s.y.size(0));
  ops::norm_backward(exec, norm(), dy, s.combined, s.stats, {}, dcombined,
                     {norm_weight_->grad, norm_bias_->grad, combiner_bias_->grad});
  // Nobody wants gradients of the time features.
  ops::gemm(exec, ops::Trans::kNo, dcombined, ops::Trans::kNo,
            combiner_weight_->value.columns(0, config_.dim), dx);
  ops::linear_backward(exec, dcombined, s.x, combiner_weight_->value, {}, combiner_weight_->grad,
                       {});
}

}  // namespace segue::model
