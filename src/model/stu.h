#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>

#include "attention/hstu_attention.h"
#include "model/config.h"
#include "model/parameters.h"
#include "ops/gate.h"
#include "tensor/exec.h"

namespace segue::model {

class HeadGroup;
struct GroupSequences;

struct StuConfig {
  int64_t dim = 0, heads = 0, qk_dim = 0, v_dim = 0;
  LayerKind kind = LayerKind::kConcat;
  OutputNorm output_norm = OutputNorm::kLayer;
  double eps = ModelConfig::kStuEps;
  double dropout = 0;
  uint32_t dropout_site = 0;
  attention::HstuMask mask;
  double alpha = 0;  // 0: 1 / sqrt(qk_dim)
  RecomputeConfig recompute;
  attention::Kernel kernel = attention::Kernel::kAuto;
  KeyInit key_init = KeyInit::kOwn;

  int64_t value_width() const { return heads * v_dim; }
  int64_t uvqk_width() const { return heads * (2 * v_dim + 2 * qk_dim); }
};

/// The packed sequences a layer works on.
struct Sequences {
  std::span<const int64_t> offsets;      // tokens, host, [sequences + 1]
  std::span<const int64_t> num_targets;  // trailing target tokens, host; empty: none
  Tensor device_offsets;                 // i64, the same where kernels can read it; may be absent
  Tensor device_num_targets;             // likewise
  ops::RowIdentity rows;                 // for dropout
  double score_scale = 1;                // 1 / N
  bool training = false;                 // dropout on, activations kept
  /// Ranks that attention is shared with, and the sequences of all of them; absent: alone. They
  /// must agree about everything above that is not about this rank's sequences.
  HeadGroup* heads = nullptr;
  const GroupSequences* group = nullptr;

  int64_t targets() const { return std::reduce(num_targets.begin(), num_targets.end()); }
  int64_t tokens() const { return offsets.empty() ? 0 : offsets.back() - offsets.front(); }
};

/// The target tokens of packed sequences, in order.
struct TargetTokens {
  Tensor rows;                // i32 [targets]: row among the packed tokens
  ops::RowIdentity identity;  // for dropout
};

/// One STU layer:  x_out = x + gate(attention(norm(x) W + b)) W_o.
/// Columns of W are U | V | Q | K, head-major inside each. Layer `concat` applies SiLU to U alone,
/// layer `gated` to all four.
class StuLayer {
 public:
  StuLayer(Parameters& parameters, const std::string& prefix, const StuConfig& config);

  /// What backward needs. h, uvqk, act, group_vqk and y may be absent (recompute); rebuild() makes
  /// all but group_vqk again.
  struct Saved {
    Tensor x, x_out;
    ops::NormStats stats_in, stats_out;
    Tensor a;     // attention output [tokens, heads * v_dim]
    Tensor h;     // normed input
    Tensor uvqk;  // raw, packed; U alone where attention is shared and needs no more of it
    Tensor act;   // V, Q, K columns where they are not those of uvqk: after silu, or to be sent
    Tensor group_vqk;  // V, Q, K of the group's tokens, this rank's heads
    Tensor y;          // input of the output projection
    Tensor keep;       // what dropout kept of y, where backward reads it (ops::gate_keep_bytes)
  };
  /// Where x is not made yet, `make_input` makes it and its norm in one pass.
  using MakeInput = std::function<void(const ops::FollowingNorm&)>;
  Saved forward(const Exec& exec, const Sequences& seq, const Tensor& x,
                const MakeInput& make_input = {}) const;
  /// dx overwritten (may alias dx_out), parameter gradients += .
  void backward(const Exec& exec, const Sequences& seq, const Saved& saved, const Tensor& dx_out,
                const Tensor& dx) const;

  /// What they take from exec's arena: see ArenaPlan. Ranks that share heads are those of
  /// seq.group; seq.heads is not asked.
  void forward_memory(const Exec& exec, const Sequences& seq) const;
  void backward_memory(const Exec& exec, const Sequences& seq) const;

  /// The same layer where only target rows are wanted (the last one): no row but the targets'
  /// passes through attention output, gate and projection, and K and V are never formed. Layer
  /// `concat`, target groups of one.
  struct TargetSaved {
    Tensor x, h;  // all rows; h is absent where attention norms its rows itself
    Tensor plan;  // of attention; may be absent
    ops::NormStats stats_in, stats_out;
    // In place of h: the norm of the target rows, and the sums over xhat that attention made.
    ops::NormStats stats_target;
    Tensor x_target, xhat_sums;
    TargetTokens targets;
    Tensor h_target, uvq, q_scaled;  // [targets, ...]
    Tensor key_query, key_bias;      // [targets, heads, dim], [targets, heads]
    Tensor z, p_sum;                 // [targets, heads, dim], [targets, heads]
    Tensor a_wide, a, y, x_out;      // [targets, ...]
  };
  /// The result goes to `x_out` [targets, dim], or to a place of its own.
  TargetSaved forward_targets(const Exec& exec, const Sequences& seq, const Tensor& x,
                              const TargetTokens& targets, const Tensor& x_out = {}) const;
  void backward_targets(const Exec& exec, const Sequences& seq, const TargetSaved& saved,
                        const Tensor& dx_out, const Tensor& dx) const;
  void targets_forward_memory(const Exec& exec, const Sequences& seq, const Tensor& x_out) const;
  void targets_backward_memory(const Exec& exec, const Sequences& seq) const;

 private:
  /// Columns of the packed weight, bias or activation.
  struct Block {
    int64_t begin, width;
  };
  Block u_block() const { return {0, config_.value_width()}; }
  Block v_block() const { return {config_.value_width(), config_.value_width()}; }
  Block q_block() const { return {2 * config_.value_width(), config_.heads * config_.qk_dim}; }
  Block k_block() const {
    return {2 * config_.value_width() + config_.heads * config_.qk_dim,
            config_.heads * config_.qk_dim};
  }
  Block vqk_block() const {
    return {config_.value_width(), config_.uvqk_width() - config_.value_width()};
  }
  /// The three that the collapsed layer forms for target rows; V comes along because it lies
  /// between.
  Block uvq_block() const { return {0, k_block().begin}; }
  static Tensor columns(const Tensor& t, Block b) { return t.columns(b.begin, b.width); }
  static Tensor part(const Tensor& vector, Block b) { return vector.narrow(0, b.begin, b.width); }

  ops::NormParams input_norm() const;
  ops::GateParams gate_params(const Tensor& u, const Tensor& a, const ops::RowIdentity& rows,
                              bool training, const Tensor& keep = {}) const;
  int64_t gate_columns() const {
    return (config_.kind == LayerKind::kConcat ? 3 : 1) * config_.value_width();
  }
  /// Parts of a matrix whose columns are V | Q | K of `heads` heads.
  struct VqkColumns {
    Tensor v, q, k;
  };
  VqkColumns vqk_columns(const Tensor& vqk, int64_t heads) const;
  /// V, Q, K of this rank's tokens.
  Tensor vqk_of(const Saved& s) const;
  /// Of the sequences of this rank, or of the group if there is one.
  attention::HstuAttentionParams attention_params(const Sequences& seq, const Tensor& vqk) const;
  attention::TargetAttentionParams target_attention_params(const Sequences& seq,
                                                           const TargetSaved& s) const;
  attention::TargetNorm target_norm(const TargetSaved& s) const;
  void attention_forward(const Exec& exec, const Sequences& seq, const Saved& s) const;
  /// V, Q, K columns of dz, and what their bias gets.
  void attention_backward(const Exec& exec, const Sequences& seq, const Saved& s, const Tensor& da,
                          const Tensor& dz) const;
  int64_t target_attention_scratch(const Exec& exec, const Sequences& seq) const;
  void split_forward_memory(const Exec& exec, const Sequences& seq) const;
  void split_backward_memory(const Exec& exec, const Sequences& seq) const;
  void split_attention_forward(const Exec& exec, const Sequences& seq, const Saved& s) const;
  void split_attention_backward(const Exec& exec, const Sequences& seq, const Saved& s,
                                const Tensor& da, const Tensor& dz) const;
  int64_t kept_uvqk_width(const Sequences& seq) const;
  /// Tensors of forward: those that backward needs, or the others.
  void take(const Exec& exec, const Sequences& seq, bool kept, Saved& saved) const;
  void take_dropped(const Exec& exec, const Sequences& seq, Saved& saved) const;
  /// Tensors of forward_targets, or those of the same names that backward has gradients in.
  TargetSaved take_targets(const Exec& exec, int64_t tokens, int64_t targets, bool gradients,
                           const Tensor& x_out = {}) const;
  void rebuild(const Exec& exec, const Sequences& seq, Saved& saved) const;
  void project(const Exec& exec, const Saved& saved) const;  // h -> uvqk (and act)
  double alpha() const;

  StuConfig config_;
  Parameter *uvqk_weight_ = nullptr, *uvqk_bias_ = nullptr, *output_weight_ = nullptr;
  Parameter *input_norm_weight_ = nullptr, *input_norm_bias_ = nullptr;
  Parameter *output_norm_weight_ = nullptr, *output_norm_bias_ = nullptr;
};

}  // namespace segue::model
