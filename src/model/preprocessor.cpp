#include "model/preprocessor.h"

#include <cmath>

#include "model/arena_plan.h"
#include "model/precision.h"
#include "ops/contextual.h"
#include "ops/rows.h"

namespace segue::model {

Preprocessor::Preprocessor(Parameters& parameters, const std::string& prefix,
                           const PreprocessorConfig& config)
    : config_(config) {
  const int64_t in = config.embedding_dim;
  if (config.contextual_tokens > 0) {
    context_weight_ = parameters.add(prefix + "_batched_contextual_linear_weights",
                                     {config.contextual_tokens, in, config.dim}, ops::Init::kNormal,
                                     xavier_normal_std(in, config.dim));
    context_bias_ = parameters.add(prefix + "_batched_contextual_linear_bias",
                                   {config.contextual_tokens, config.dim}, ops::Init::kZeros);
  }
  const auto mlp = [&](const char* name, int64_t width) {
    return std::make_unique<Mlp>(
        parameters, prefix + name,
        MlpConfig{.in = width, .hidden = config.hidden, .out = config.dim, .relu = config.relu});
  };
  content_ = mlp("_content_embedding_mlp", in);
  if (config.additional_features > 0) {
    additional_ = mlp("_additional_embedding_mlp", config.additional_features * in);
  }
  const int64_t action_width = config.action_bits * config.action_dim;
  action_table_ = parameters.add(prefix + "_action_encoder._action_embedding_table",
                                 {config.action_bits, config.action_dim}, ops::Init::kNormal, 0.1);
  action_target_ = parameters.add(prefix + "_action_encoder._target_action_embedding_table",
                                  {1, action_width}, ops::Init::kNormal, 0.1);
  action_ = mlp("_action_embedding_mlp", action_width);
  if (config.numbers > 0) {
    numeric_ = std::make_unique<Mlp>(parameters, prefix + "_numeric_embedding_mlp",
                                     MlpConfig{.in = config.numbers,
                                               .hidden = config.numeric_hidden,
                                               .out = config.dim,
                                               .relu = config.relu});
  }
}

Preprocessor::Inputs Preprocessor::split_inputs(const Tensor& all, int64_t n,
                                                int64_t samples) const {
  const int64_t features = config_.additional_features, width = config_.embedding_dim;
  const int64_t slots = config_.contextual_tokens;
  Inputs in;
  in.content = all.rows(0, n);
  if (features > 0) in.additional = all.rows(n, n * features).reshape({n, features * width});
  if (slots > 0) {
    in.context = all.rows(n * (1 + features), slots * samples).reshape({slots, samples, width});
  }
  return in;
}

int64_t Preprocessor::row_count(const Sizes& n) const {
  return n.rows + n.codes + n.samples * config_.contextual_tokens;
}

Preprocessor::RowGradients Preprocessor::split_rows(const Tensor& all, const Saved& s) const {
  const int64_t n = s.rows.size(0), codes = s.action_rows.size(0);
  RowGradients out;
  out.rows = all.rows(0, n);
  out.action_rows = all.rows(n, codes);
  if (const Tensor& context = s.context_rows) {
    const int64_t samples = context.size(0), slots = context.size(1);
    out.context_rows =
        all.rows(n + codes, samples * slots).reshape({samples, slots, context.size(2)});
  }
  return out;
}

void Preprocessor::forward_memory(const Exec& exec, const Sizes& n) const {
  content_->forward_memory(exec, n.rows);
  if (additional_) additional_->forward_memory(exec, n.rows);
  exec.activation({n.codes, config_.action_bits * config_.action_dim});  // encoded
  if (numeric_) {
    if (exec.dtype() != exec.parameter_dtype()) exec.activation({n.codes, config_.numbers});
    numeric_->forward_memory(exec, n.codes);
  }
  action_->forward_memory(exec, n.codes);
  exec.activation({n.samples, config_.contextual_tokens, config_.dim});
}

Preprocessor::Saved Preprocessor::forward(const Exec& exec, const Inputs& inputs,
                                          const Tensor& action_code, const Tensor& numbers) const {
  Saved s;
  s.input = inputs;
  s.action_code = action_code;
  s.content = content_->forward(exec, inputs.content);
  s.rows = s.content.y;
  if (additional_) {
    s.additional = additional_->forward(exec, inputs.additional, s.content.y);
    s.rows = s.additional.y;
  }
  const Tensor encoded =
      exec.activation({action_code.size(0), config_.action_bits * config_.action_dim});
  ops::action_encode_forward(exec, action_table_->value, action_target_->value, action_code,
                             encoded);
  if (numeric_) s.numeric = numeric_->forward(exec, numbers);
  s.action = action_->forward(exec, encoded, s.numeric.y);
  s.action_rows = s.action.y;
  if (inputs.context) {
    s.context_rows =
        exec.activation({inputs.context.size(1), config_.contextual_tokens, config_.dim});
    ops::contextual_linear_forward(exec, inputs.context, context_weight_->value,
                                   context_bias_->value, s.context_rows);
  }
  return s;
}

void Preprocessor::backward_memory(const Exec& exec, const Sizes& n) const {
  if (exec.dtype() != exec.parameter_dtype()) exec.activation({row_count(n), config_.dim});
  plan_backward(exec, *content_, n.rows);
  if (additional_) plan_backward(exec, *additional_, n.rows);
  exec.activation({n.codes, config_.action_bits * config_.action_dim});  // dencoded
  plan_backward(exec, *action_, n.codes);
  if (numeric_) plan_backward(exec, *numeric_, n.codes);
}

void Preprocessor::backward(const Exec& exec, const Saved& s, const Tensor& gradients,
                            const Tensor& dinputs) const {
  const Arena::Mark scratch(*exec.arena);
  const RowGradients d = split_rows(as_activation(exec, gradients), s);
  const Inputs out =
      split_inputs(dinputs, s.input.content.size(0), s.input.context ? s.input.context.size(1) : 0);
  content_->backward(exec, s.content, d.rows, out.content);
  if (additional_) additional_->backward(exec, s.additional, d.rows, out.additional);
  if (s.input.context) {
    ops::contextual_linear_backward(exec, d.context_rows, s.input.context, context_weight_->value,
                                    out.context, context_weight_->grad, context_bias_->grad);
  }
  const Tensor dencoded =
      exec.activation({s.action_code.size(0), config_.action_bits * config_.action_dim});
  action_->backward(exec, s.action, d.action_rows, dencoded);
  if (numeric_) numeric_->backward(exec, s.numeric, d.action_rows, {});
  ops::action_encode_backward(exec, dencoded, s.action_code, action_table_->grad,
                              action_target_->grad);
}

}  // namespace segue::model
