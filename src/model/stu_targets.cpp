// The last STU layer at its target rows only. After it the model reads one row per candidate, and
// there is no softmax, so with h = norm(x) and, per target and head, q' = W_k q / sqrt(d) and c =
// b_k.q / sqrt(d):
//   s_j = h_j.q' + c,  p_j = silu(s_j) / N,  z = sum_j p_j h_j,  a = W_v^T z + (sum_j p_j) b_v
// One pass over h replaces the K and V projections and attention of every other row. Where a GPU
// makes this pass by tensor cores, it norms rows on the way: then h exists at target rows alone.

#include <algorithm>
#include <utility>

#include "attention/hstu_attention.h"
#include "model/arena_plan.h"
#include "model/precision.h"
#include "model/stu.h"
#include "ops/gemm.h"
#include "ops/head_bias.h"
#include "ops/rows.h"

namespace segue::model {

using ops::Trans;

namespace {

/// [rows, heads * width], or [rows, heads, width], seen as a [rows, width] for each head.
Tensor by_head(const Tensor& t, int64_t heads) {
  Tensor view = t.rank == 3 ? t : t.split_columns(heads);
  std::swap(view.sizes[0], view.sizes[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}
}  // namespace

attention::TargetAttentionParams StuLayer::target_attention_params(const Sequences& seq,
                                                                   const TargetSaved& s) const {
  return {.h = s.h ? s.h : s.x,
          .offsets = seq.offsets,
          .num_targets = seq.num_targets,
          .device_offsets = seq.device_offsets,
          .device_num_targets = seq.device_num_targets,
          .plan = s.plan,
          .mask = config_.mask,
          .key_query = s.key_query,
          .key_bias = s.key_bias,
          .scale = seq.score_scale};
}

attention::TargetNorm StuLayer::target_norm(const TargetSaved& s) const {
  return {input_norm(), s.stats_in, s.xhat_sums};
}

StuLayer::TargetSaved StuLayer::take_targets(const Exec& exec, int64_t tokens, int64_t targets,
                                             bool gradients, const Tensor& x_out) const {
  const int64_t dim = config_.dim, heads = config_.heads, w = config_.value_width();
  const bool norms = attention::target_attention_norms(exec.device, exec.dtype(), dim);
  TargetSaved s;
  if (!norms) s.h = exec.activation({tokens, dim});
  s.h_target = exec.activation({targets, dim});
  s.x_target = exec.activation({targets, dim});
  s.uvq = exec.activation({targets, uvq_block().width});
  // From here to `a` everything stays in float: these values have no counterpart in the plain path.
  const Exec wide = wide_exec(exec);
  s.q_scaled = wide.activation({targets, q_block().width});
  s.key_query = wide.activation({targets, heads, dim});
  s.key_bias = wide.activation({targets, heads});
  s.z = wide.activation({targets, heads, dim});
  s.p_sum = wide.activation({targets, heads});
  s.a_wide = wide.activation({targets, w});
  s.a = exec.activation({targets, w});
  s.y = exec.activation({targets, 3 * w});
  if (gradients) return s;
  s.stats_in = ops::make_norm_stats(exec, tokens);
  s.stats_out =
      ops::make_norm_stats(exec, targets, config_.output_norm == OutputNorm::kGroup ? heads : 1);
  s.x_out = x_out ? x_out : exec.activation({targets, dim});
  if (norms) {
    s.stats_target = ops::make_norm_stats(exec, targets);
    s.xhat_sums = wide.activation({targets, heads, dim});
  }
  return s;
}

StuLayer::TargetSaved StuLayer::forward_targets(const Exec& exec, const Sequences& seq,
                                                const Tensor& x, const TargetTokens& target_tokens,
                                                const Tensor& x_out) const {
  const int64_t heads = config_.heads;
  const Tensor& weight = uvqk_weight_->value;
  const Tensor& bias = uvqk_bias_->value;

  TargetSaved s = take_targets(exec, x.size(0), target_tokens.rows.size(0), false, x_out);
  s.x = x;
  s.targets = target_tokens;
  if (!s.h) {
    ops::gather_rows(exec, x, target_tokens.rows, s.x_target);
    ops::norm_forward(exec, input_norm(), s.x_target, s.h_target, s.stats_target);
  } else {
    ops::norm_forward(exec, input_norm(), x, s.h, s.stats_in);
    const ops::TableRows gathers[] = {{s.h, target_tokens.rows, s.h_target},
                                      {x, target_tokens.rows, s.x_target}};
    ops::gather_tables(exec, gathers);
  }
  ops::gemm(exec, Trans::kNo, s.h_target, Trans::kNo, columns(weight, uvq_block()), s.uvq,
            {.bias = uvqk_bias_->value.narrow(0, 0, uvq_block().width)});

  const Exec wide = wide_exec(exec);
  const Tensor q_heads = by_head(s.q_scaled, heads);
  const Tensor k_weight = by_head(columns(weight, k_block()), heads);
  ops::head_bias_dot(wide, columns(s.uvq, q_block()), alpha(), part(bias, k_block()), s.q_scaled,
                     s.key_bias);
  ops::gemm_each(wide, Trans::kNo, q_heads, Trans::kYes, k_weight, by_head(s.key_query, heads));
  s.plan = attention::target_attention_plan(wide, target_attention_params(seq, s));
  if (!s.h) {
    attention::target_attention_forward(exec, target_attention_params(seq, s), target_norm(s), s.z,
                                        s.p_sum);
  } else {
    attention::target_attention_forward(wide, target_attention_params(seq, s), s.z, s.p_sum);
  }
  ops::gemm_each(wide, Trans::kNo, by_head(s.z, heads), Trans::kNo,
                 by_head(columns(weight, v_block()), heads), by_head(s.a_wide, heads));
  ops::head_bias_add(exec, s.a_wide, s.p_sum, part(bias, v_block()), 1, s.a);

  ops::gate_forward(exec,
                    gate_params(columns(s.uvq, u_block()), s.a, s.targets.identity, seq.training),
                    s.y, s.stats_out);
  ops::gemm(exec, Trans::kNo, s.y, Trans::kNo, output_weight_->value, s.x_out,
            {.residual = s.x_target});
  return s;
}

void StuLayer::targets_forward_memory(const Exec& exec, const Sequences& seq,
                                      const Tensor& x_out) const {
  take_targets(exec, seq.tokens(), seq.targets(), false, x_out);
  plan_scratch(exec, target_attention_scratch(exec, seq));
}

void StuLayer::targets_backward_memory(const Exec& exec, const Sequences& seq) const {
  const Arena::Mark scratch(*exec.arena);
  take_targets(exec, seq.tokens(), seq.targets(), true);
  plan_scratch(exec, target_attention_scratch(exec, seq));
}

/// On a GPU; a CPU has a tile for each thread.
int64_t StuLayer::target_attention_scratch(const Exec& exec, const Sequences& seq) const {
  if (exec.device.is_cpu() || seq.num_targets.empty()) return 0;
  return attention::target_attention_bytes(seq.offsets, config_.heads,
                                           std::ranges::max(seq.num_targets), config_.dim);
}

void StuLayer::backward_targets(const Exec& exec, const Sequences& seq, const TargetSaved& s,
                                const Tensor& dx_out, const Tensor& dx) const {
  Arena::Mark scratch(*exec.arena);
  const int64_t heads = config_.heads;
  const Tensor& weight = uvqk_weight_->value;
  const Tensor& dweight = uvqk_weight_->grad;
  const Tensor& bias = uvqk_bias_->value;
  const Tensor& dbias = uvqk_bias_->grad;
  const Exec wide = wide_exec(exec);
  const TargetSaved d = take_targets(exec, s.x.size(0), s.targets.rows.size(0), true);

  // Output projection and gate, at target rows.
  zero(d.uvq, exec.stream);  // V of the target rows has its gradient elsewhere
  const Tensor du = columns(d.uvq, u_block());
  ops::gemm(exec, Trans::kNo, dx_out, Trans::kYes, output_weight_->value, d.y);
  ops::gemm(exec, Trans::kYes, s.y, Trans::kNo, dx_out, output_weight_->grad, {.accumulate = true});
  ops::gate_backward(
      exec, gate_params(columns(s.uvq, u_block()), s.a, s.targets.identity, seq.training),
      s.stats_out, d.y, du, d.a, {output_norm_weight_->grad, output_norm_bias_->grad});

  // a = W_v^T z + p_sum b_v.
  const auto block_heads = [&](const Tensor& t, Block block) {
    return by_head(columns(t, block), heads);
  };
  const Tensor da_heads = by_head(d.a_wide, heads);
  ops::head_bias_dot(wide, d.a, 1, part(bias, v_block()), d.a_wide, d.p_sum);
  ops::gemm_each(wide, Trans::kNo, da_heads, Trans::kYes, block_heads(weight, v_block()),
                 by_head(d.z, heads));
  ops::gemm_each(wide, Trans::kYes, by_head(s.z, heads), Trans::kNo, da_heads,
                 block_heads(dweight, v_block()), true);

  // The pass over all rows.
  const ops::NormGradients dnorm{input_norm_weight_->grad, input_norm_bias_->grad, {}};
  if (s.h) {
    attention::target_attention_backward(wide, target_attention_params(seq, s), d.z, d.p_sum, d.h,
                                         d.key_query, d.key_bias);
  } else {
    attention::target_attention_backward(exec, target_attention_params(seq, s), target_norm(s),
                                         s.p_sum, d.z, d.p_sum, dx, d.key_query, d.key_bias, dnorm);
  }

  // q' = W_k q_scaled, c = b_k.q_scaled.
  const Tensor dq_heads = by_head(d.q_scaled, heads), q_heads = by_head(s.q_scaled, heads);
  const Tensor dquery_heads = by_head(d.key_query, heads);
  ops::gemm_each(wide, Trans::kNo, dquery_heads, Trans::kNo, block_heads(weight, k_block()),
                 dq_heads);
  ops::gemm_each(wide, Trans::kYes, dquery_heads, Trans::kNo, q_heads,
                 block_heads(dweight, k_block()), true);
  ops::head_bias_add(exec, d.q_scaled, d.key_bias, part(bias, k_block()), alpha(),
                     columns(d.uvq, q_block()));

  // U and Q of the target rows.
  ops::gemm(exec, Trans::kNo, d.uvq, Trans::kYes, columns(weight, uvq_block()), d.h_target);
  ops::gemm(exec, Trans::kYes, s.h_target, Trans::kNo, d.uvq, columns(dweight, uvq_block()),
            {.accumulate = true});
  const ops::HeadBiasGradient biases[] = {{du, {}, part(dbias, u_block())},
                                          {d.a_wide, s.p_sum, part(dbias, v_block())},
                                          {columns(d.uvq, q_block()), {}, part(dbias, q_block())},
                                          {s.q_scaled, d.key_bias, part(dbias, k_block())}};
  ops::head_bias_gradients(exec, biases);
  if (s.h) {
    ops::segment_sum(exec, d.h_target, s.targets.rows, d.h);
    ops::norm_backward(exec, input_norm(), d.h, s.x, s.stats_in, {}, dx, dnorm);
    ops::segment_sum(exec, dx_out, s.targets.rows, dx);
  } else {
    ops::norm_backward(exec, input_norm(), d.h_target, s.x_target, s.stats_target, dx_out,
                       d.x_target, dnorm);
    ops::segment_sum(exec, d.x_target, s.targets.rows, dx);
  }
}

}  // namespace segue::model
