#include "model/mlp.h"

#include "model/config.h"
#include "ops/gemm.h"
#include "ops/rows.h"

namespace segue::model {

namespace {

ops::NormParams norm_params(const Parameter* weight, const Parameter* bias) {
  return {.weight = weight->value, .bias = bias->value, .eps = ModelConfig::kNormEps};
}

}  // namespace

Mlp::Mlp(Parameters& parameters, const std::string& prefix, const MlpConfig& config)
    : config_(config) {
  const auto linear = [&](const char* place, int64_t in, int64_t out, Parameter*& weight,
                          Parameter*& bias) {
    const auto init = config.xavier_normal ? ops::Init::kNormal : ops::Init::kUniform;
    const double bound =
        config.xavier_normal ? xavier_normal_std(in, out) : xavier_uniform_bound(in, out);
    weight = parameters.add(prefix + place + ".weight", {out, in}, init, bound);
    bias = parameters.add(prefix + place + ".bias", {out}, ops::Init::kZeros);
  };
  const auto norm = [&](const char* place, int64_t columns, Parameter*& weight, Parameter*& bias) {
    weight = parameters.add(prefix + place + ".weight", {columns}, ops::Init::kOnes);
    bias = parameters.add(prefix + place + ".bias", {columns}, ops::Init::kZeros);
  };
  linear(".0", config.in, config.hidden, weight1_, bias1_);
  if (!config.relu) norm(".1", config.hidden, norm1_weight_, norm1_bias_);
  linear(".2", config.hidden, config.out, weight2_, bias2_);
  if (has_final_norm()) norm(".3", config.out, norm2_weight_, norm2_bias_);
}

Mlp::Saved Mlp::forward_memory(const Exec& exec, int64_t rows, const Tensor& y) const {
  Saved s;
  s.z1 = exec.activation({rows, config_.hidden});
  s.act = exec.activation({rows, config_.hidden});
  s.z2 = y && !has_final_norm() ? y : exec.activation({rows, config_.out});
  s.y = s.z2;
  if (!config_.relu) s.stats1 = ops::make_norm_stats(exec, rows);
  if (has_final_norm()) {
    s.y = exec.activation({rows, config_.out});
    s.stats2 = ops::make_norm_stats(exec, rows);
  }
  return s;
}

Mlp::Saved Mlp::forward(const Exec& exec, const Tensor& x, const Tensor& addend,
                        const Tensor& y) const {
  Saved s = forward_memory(exec, x.size(0), y);
  s.x = x;
  ops::linear_forward(exec, x, weight1_->value, bias1_->value, s.z1);
  if (config_.relu) {
    ops::relu_forward(exec, s.z1, s.act);
  } else {
    ops::swish_norm_forward(exec, norm_params(norm1_weight_, norm1_bias_), s.z1, s.act, s.stats1);
  }
  ops::GemmExtra extra;
  extra.bias = bias2_->value;
  extra.wide = y && !has_final_norm();
  ops::gemm(exec, ops::Trans::kNo, s.act, ops::Trans::kYes, weight2_->value, s.z2, extra);
  if (has_final_norm()) {
    ops::norm_forward(exec, norm_params(norm2_weight_, norm2_bias_), s.z2, s.y, s.stats2, addend);
  } else if (addend) {
    ops::add(exec, s.z2, addend, s.z2);
  }
  return s;
}

Mlp::Saved Mlp::backward_memory(const Exec& exec, int64_t rows) const {
  return {.z1 = exec.activation({rows, config_.hidden}),
          .act = exec.activation({rows, config_.hidden}),
          .z2 = has_final_norm() ? exec.activation({rows, config_.out}) : Tensor()};
}

void Mlp::backward(const Exec& exec, const Saved& s, const Tensor& dy, const Tensor& dx) const {
  Arena::Mark scratch(*exec.arena);
  const Saved d = backward_memory(exec, s.x.size(0));
  if (has_final_norm()) {
    ops::norm_backward(exec, norm_params(norm2_weight_, norm2_bias_), dy, s.z2, s.stats2, {}, d.z2,
                       {norm2_weight_->grad, norm2_bias_->grad, bias2_->grad});
  }
  ops::linear_backward(exec, has_final_norm() ? d.z2 : dy, s.act, weight2_->value, d.act,
                       weight2_->grad, has_final_norm() ? Tensor() : bias2_->grad);
  if (config_.relu) {
    ops::relu_backward(exec, d.act, s.z1, d.z1);
  } else {
    ops::swish_norm_backward(exec, norm_params(norm1_weight_, norm1_bias_), d.act, s.z1, s.stats1,
                             d.z1, {norm1_weight_->grad, norm1_bias_->grad, bias1_->grad});
  }
  ops::linear_backward(exec, d.z1, s.x, weight1_->value, dx, weight1_->grad,
                       config_.relu ? bias1_->grad : Tensor());
}

}  // namespace segue::model
