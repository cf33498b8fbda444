#include "model/preprocessor.h"

#include <cmath>

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
}

Preprocessor::Saved Preprocessor::forward(const Exec& exec, const Input& input) const {
  Saved s;
  s.input = input;
  s.content = content_->forward(exec, input.content);
  s.rows = s.content.y;
  if (additional_) {
    s.additional = additional_->forward(exec, input.additional);
    s.rows = exec.activation({input.content.size(0), config_.dim});
    ops::add(exec, s.content.y, s.additional.y, s.rows);
  }
  const Tensor encoded =
      exec.activation({input.action_code.size(0), config_.action_bits * config_.action_dim});
  ops::action_encode_forward(exec, action_table_->value, action_target_->value, input.action_code,
                             encoded);
  s.action = action_->forward(exec, encoded);
  s.action_rows = s.action.y;
  if (input.context) {
    s.context_rows =
        exec.activation({input.context.size(1), config_.contextual_tokens, config_.dim});
    ops::contextual_linear_forward(exec, input.context, context_weight_->value,
                                   context_bias_->value, s.context_rows);
  }
  return s;
}

Preprocessor::InputGradients Preprocessor::backward(const Exec& exec, const Saved& s,
                                                    const RowGradients& gradients) const {
  InputGradients out;
  const int64_t n = s.input.content.size(0);
  out.content = exec.activation({n, config_.embedding_dim});
  if (additional_) {
    out.additional = exec.activation({n, config_.additional_features * config_.embedding_dim});
  }
  if (s.input.context) {
    out.context = exec.activation(
        {config_.contextual_tokens, s.input.context.size(1), config_.embedding_dim});
  }

  Arena::Mark scratch(*exec.arena);
  const Tensor drows = as_activation(exec, gradients.rows);
  content_->backward(exec, s.content, drows, out.content);
  if (additional_) additional_->backward(exec, s.additional, drows, out.additional);
  if (s.input.context) {
    ops::contextual_linear_backward(exec, as_activation(exec, gradients.context_rows),
                                    s.input.context, context_weight_->value, out.context,
                                    context_weight_->grad, context_bias_->grad);
  }
  const Tensor dencoded =
      exec.activation({s.input.action_code.size(0), config_.action_bits * config_.action_dim});
  action_->backward(exec, s.action, as_activation(exec, gradients.action_rows), dencoded);
  ops::action_encode_backward(exec, dencoded, s.input.action_code, action_table_->grad,
                              action_target_->grad);
  return out;
}

}  // namespace segue::model
