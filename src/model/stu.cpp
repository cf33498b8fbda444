#include "model/stu.h"

#include <cmath>

#include "base/error.h"
#include "model/arena_plan.h"
#include "model/head_group.h"
#include "ops/gemm.h"

namespace segue::model {

using ops::Trans;

StuLayer::StuLayer(Parameters& parameters, const std::string& prefix, const StuConfig& config)
    : config_(config) {
  const int64_t dim = config.dim;
  const int64_t uvqk = config.uvqk_width();
  const int64_t w = config.value_width();
  const int64_t gate = gate_columns();
  const int64_t norm = config.output_norm == OutputNorm::kGroup ? config.heads : w;
  uvqk_weight_ = parameters.add(prefix + "_uvqk_weight", {dim, uvqk}, ops::Init::kUniform,
                                xavier_uniform_bound(dim, uvqk));
  if (config.key_init == KeyInit::kAsQueries) {
    uvqk_weight_->copied = {
        .from = q_block().begin, .to = k_block().begin, .width = k_block().width};
  }
  uvqk_bias_ = parameters.add(prefix + "_uvqk_beta", {uvqk}, ops::Init::kZeros);
  input_norm_weight_ = parameters.add(prefix + "_input_norm_weight", {dim}, ops::Init::kOnes);
  input_norm_bias_ = parameters.add(prefix + "_input_norm_bias", {dim}, ops::Init::kZeros);
  output_weight_ = parameters.add(prefix + "_output_weight", {gate, dim}, ops::Init::kUniform,
                                  xavier_uniform_bound(gate, dim));
  output_norm_weight_ = parameters.add(prefix + "_output_norm_weight", {norm}, ops::Init::kOnes);
  output_norm_bias_ = parameters.add(prefix + "_output_norm_bias", {norm}, ops::Init::kZeros);
}

double StuLayer::alpha() const {
  return config_.alpha != 0 ? config_.alpha : 1.0 / std::sqrt(static_cast<double>(config_.qk_dim));
}

ops::NormParams StuLayer::input_norm() const {
  return {.weight = input_norm_weight_->value,
          .bias = input_norm_bias_->value,
          .eps = config_.eps,
          .round_weights = true};
}

ops::GateParams StuLayer::gate_params(const Tensor& u, const Tensor& a,
                                      const ops::RowIdentity& rows, bool training,
                                      const Tensor& keep) const {
  ops::GateParams p;
  p.u = u;
  p.a = a;
  p.norm = {.weight = output_norm_weight_->value,
            .bias = output_norm_bias_->value,
            .eps = config_.eps,
            .groups = config_.output_norm == OutputNorm::kGroup ? config_.heads : 1,
            .round_weights = true};
  p.concat = config_.kind == LayerKind::kConcat;
  p.dropout = {.p = training ? static_cast<float>(config_.dropout) : 0.f,
               .site = config_.dropout_site,
               .rows = rows};
  p.keep = keep;
  return p;
}

StuLayer::VqkColumns StuLayer::vqk_columns(const Tensor& vqk, int64_t heads) const {
  const int64_t w = heads * config_.v_dim;
  const int64_t qk = heads * config_.qk_dim;
  return {vqk.columns(0, w), vqk.columns(w, qk), vqk.columns(w + qk, qk)};
}

Tensor StuLayer::vqk_of(const Saved& s) const {
  return s.act ? s.act : columns(s.uvqk, vqk_block());
}

attention::HstuAttentionParams StuLayer::attention_params(const Sequences& seq,
                                                          const Tensor& vqk) const {
  const int64_t heads = seq.heads != nullptr ? seq.heads->own_heads() : config_.heads;
  const VqkColumns part = vqk_columns(vqk, heads);
  attention::HstuAttentionParams p;
  p.v = part.v.split_columns(heads);
  p.q = part.q.split_columns(heads);
  p.k = part.k.split_columns(heads);
  p.offsets = seq.heads != nullptr ? seq.group->offsets : seq.offsets;
  p.num_targets = seq.heads != nullptr ? seq.group->num_targets : seq.num_targets;
  p.mask = config_.mask;
  p.alpha = alpha();
  p.scale = seq.score_scale;
  p.kernel = config_.kernel;
  return p;
}

void StuLayer::attention_forward(const Exec& exec, const Sequences& seq, const Saved& s) const {
  if (seq.heads != nullptr) return split_attention_forward(exec, seq, s);
  attention::hstu_attention_forward(exec, attention_params(seq, vqk_of(s)),
                                    s.a.split_columns(config_.heads));
}

void StuLayer::attention_backward(const Exec& exec, const Sequences& seq, const Saved& s,
                                  const Tensor& da, const Tensor& dz) const {
  const Tensor dbias = part(uvqk_bias_->grad, vqk_block());
  const bool gated = config_.kind == LayerKind::kGated;
  if (seq.heads != nullptr) {
    split_attention_backward(exec, seq, s, da, dz);
  } else {
    attention::hstu_attention_backward(
        exec, attention_params(seq, vqk_of(s)), da.split_columns(config_.heads),
        columns(dz, q_block()).split_columns(config_.heads),
        columns(dz, k_block()).split_columns(config_.heads),
        columns(dz, v_block()).split_columns(config_.heads), gated ? Tensor{} : dbias);
    if (!gated) return;
  }
  const Tensor dvqk = columns(dz, vqk_block());
  if (!gated) return ops::column_sum(exec, dvqk, dbias);
  ops::silu_backward(exec, dvqk, columns(s.uvqk, vqk_block()), dvqk, dbias);
}

/// Silu's backward reads all of it; otherwise V, Q and K are kept as the group has them.
int64_t StuLayer::kept_uvqk_width(const Sequences& seq) const {
  const bool u_alone = seq.group != nullptr && config_.kind == LayerKind::kConcat;
  return u_alone ? config_.value_width() : config_.uvqk_width();
}

void StuLayer::project(const Exec& exec, const Saved& s) const {
  const Tensor& weight = uvqk_weight_->value;
  const Tensor& bias = uvqk_bias_->value;
  if (s.uvqk.size(1) == config_.value_width()) {
    ops::gemm(exec, Trans::kNo, s.h, Trans::kNo, columns(weight, u_block()), s.uvqk,
              {.bias = part(bias, u_block())});
    ops::gemm(exec, Trans::kNo, s.h, Trans::kNo, columns(weight, vqk_block()), s.act,
              {.bias = part(bias, vqk_block())});
    return;
  }
  ops::gemm(exec, Trans::kNo, s.h, Trans::kNo, weight, s.uvqk, {.bias = bias});
  if (s.act) ops::silu_forward(exec, columns(s.uvqk, vqk_block()), s.act);
}

void StuLayer::take(const Exec& exec, const Sequences& seq, bool kept, Saved& s) const {
  const int64_t tokens = seq.tokens(), vqk = vqk_block().width;
  const bool gated = config_.kind == LayerKind::kGated, shared = seq.group != nullptr;
  const RecomputeConfig& drop = config_.recompute;
  if (kept) s.x_out = exec.activation({tokens, config_.dim});
  if (kept == seq.training) {
    s.stats_in = ops::make_norm_stats(exec, tokens);
    s.stats_out = ops::make_norm_stats(
        exec, tokens, config_.output_norm == OutputNorm::kGroup ? config_.heads : 1);
    s.a = exec.activation({tokens, config_.value_width()});
    const int64_t bytes = ops::gate_keep_bytes(exec, gate_params({}, s.a, {}, seq.training));
    if (bytes > 0) s.keep = exec.arena->tensor(DType::kU8, {tokens, bytes});
  }
  if (kept == (seq.training && !drop.normed_input)) s.h = exec.activation({tokens, config_.dim});
  if (kept == (seq.training && !drop.uvqk)) {
    s.uvqk = exec.activation({tokens, kept_uvqk_width(seq)});
    if (gated && !shared) s.act = exec.activation({tokens, vqk});
    if (shared) s.group_vqk = exec.activation({seq.group->tokens(), vqk / seq.group->ranks()});
  }
  if (kept == (seq.training && !drop.gate)) s.y = exec.activation({tokens, gate_columns()});
  if (!kept && shared) s.act = exec.activation({tokens, vqk});
}

void StuLayer::forward_memory(const Exec& exec, const Sequences& seq) const {
  Saved s;
  take(exec, seq, /*kept=*/true, s);
  const Arena::Mark scratch(*exec.arena);
  take(exec, seq, /*kept=*/false, s);
  if (seq.group != nullptr) split_forward_memory(exec, seq);
}

StuLayer::Saved StuLayer::forward(const Exec& exec, const Sequences& seq, const Tensor& x,
                                  const MakeInput& make_input) const {
  const RecomputeConfig& drop = config_.recompute;
  Saved s;
  s.x = x;
  take(exec, seq, /*kept=*/true, s);
  Arena::Mark scratch(*exec.arena);
  take(exec, seq, /*kept=*/false, s);

  if (make_input) {
    make_input({input_norm(), s.h, s.stats_in});
  } else {
    ops::norm_forward(exec, input_norm(), x, s.h, s.stats_in);
  }
  project(exec, s);
  attention_forward(exec, seq, s);
  ops::gate_forward(exec,
                    gate_params(columns(s.uvqk, u_block()), s.a, seq.rows, seq.training, s.keep),
                    s.y, s.stats_out);
  ops::gemm(exec, Trans::kNo, s.y, Trans::kNo, output_weight_->value, s.x_out, {.residual = x});

  if (drop.normed_input) s.h = {};
  if (drop.uvqk) s.uvqk = s.act = s.group_vqk = {};
  if (seq.heads != nullptr) s.act = {};
  if (drop.gate) s.y = {};
  return s;
}

void StuLayer::take_dropped(const Exec& exec, const Sequences& seq, Saved& s) const {
  const int64_t tokens = seq.tokens();
  const bool gated = config_.kind == LayerKind::kGated, shared = seq.group != nullptr;
  if (config_.recompute.normed_input) s.h = exec.activation({tokens, config_.dim});
  if (config_.recompute.uvqk) {
    s.uvqk = exec.activation({tokens, kept_uvqk_width(seq)});
    if (gated || shared) s.act = exec.activation({tokens, vqk_block().width});
  }
  if (config_.recompute.gate) s.y = exec.activation({tokens, gate_columns()});
}

void StuLayer::rebuild(const Exec& exec, const Sequences& seq, Saved& s) const {
  take_dropped(exec, seq, s);
  if (config_.recompute.normed_input) ops::norm_forward(exec, input_norm(), s.x, s.h, s.stats_in);
  if (config_.recompute.uvqk) project(exec, s);
  if (config_.recompute.gate) {
    ops::gate_forward(exec, gate_params(columns(s.uvqk, u_block()), s.a, seq.rows, true, s.keep),
                      s.y, s.stats_out);
  }
}

void StuLayer::backward_memory(const Exec& exec, const Sequences& seq) const {
  const int64_t tokens = seq.tokens();
  Saved s;
  take_dropped(exec, seq, s);
  exec.activation({tokens, config_.uvqk_width()});                      // dz
  exec.activation({tokens, config_.value_width()});                     // da
  plan_scratch(exec, tokens * gate_columns() * size_of(exec.dtype()));  // dy
  if (seq.group != nullptr) {
    split_backward_memory(exec, seq);
  } else if (exec.dtype() == DType::kBf16) {
    const int64_t dbias = config_.kind == LayerKind::kConcat ? vqk_block().width : 0;
    plan_scratch(exec, attention::hstu_attention_backward_bytes(seq.offsets, config_.heads,
                                                                config_.mask, dbias));
  }
  exec.activation({tokens, config_.dim});  // dh
}

void StuLayer::backward(const Exec& exec, const Sequences& seq, const Saved& saved,
                        const Tensor& dx_out, const Tensor& dx) const {
  SEGUE_ASSERT(seq.training, "backward of an evaluation pass");
  Arena::Mark scratch(*exec.arena);
  Saved s = saved;
  rebuild(exec, seq, s);
  const int64_t tokens = s.x.size(0);
  const int64_t w = config_.value_width();

  const Tensor dz = exec.activation({tokens, config_.uvqk_width()});  // gradient of uvqk
  const Tensor da = exec.activation({tokens, w});
  {
    Arena::Mark gate_scratch(*exec.arena);
    const Tensor dy = exec.activation({tokens, s.y.size(1)});
    ops::gemm(exec, Trans::kNo, dx_out, Trans::kYes, output_weight_->value, dy);
    ops::gemm(exec, Trans::kYes, s.y, Trans::kNo, dx_out, output_weight_->grad,
              {.accumulate = true});
    ops::gate_backward(exec, gate_params(columns(s.uvqk, u_block()), s.a, seq.rows, true, s.keep),
                       s.stats_out, dy, columns(dz, u_block()), da,
                       {.weight = output_norm_weight_->grad,
                        .bias = output_norm_bias_->grad,
                        .u_bias = part(uvqk_bias_->grad, u_block())});
  }
  attention_backward(exec, seq, s, da, dz);
  ops::gemm(exec, Trans::kYes, s.h, Trans::kNo, dz, uvqk_weight_->grad, {.accumulate = true});
  const Tensor dh = exec.activation({tokens, config_.dim});
  ops::gemm(exec, Trans::kNo, dz, Trans::kYes, uvqk_weight_->value, dh);
  ops::norm_backward(exec, input_norm(), dh, s.x, s.stats_in, dx_out, dx,
                     {input_norm_weight_->grad, input_norm_bias_->grad});
}

}  // namespace segue::model
