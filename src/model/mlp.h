#pragma once

#include <cstdint>
#include <string>

#include "model/parameters.h"
#include "ops/norm.h"
#include "tensor/exec.h"

namespace segue::model {

/// Linear -> SwishLayerNorm -> Linear (-> LayerNorm), or Linear -> ReLU -> Linear.
/// Parameters are named <prefix>.0 .. <prefix>.3 as positions in the reference's sequence.
struct MlpConfig {
  int64_t in = 0, hidden = 0, out = 0;
  bool relu = false;          // no norms at all
  bool final_norm = true;     // ignored with relu
  bool xavier_normal = true;  // else Xavier-uniform
};

class Mlp {
 public:
  Mlp(Parameters& parameters, const std::string& prefix, const MlpConfig& config);

  struct Saved {
    Tensor x, z1, act, z2;
    ops::NormStats stats1, stats2;
    Tensor y;
  };
  /// Everything in the result lives in exec's arena, except x, which is borrowed.
  /// `addend` is added to the result. Without a final norm that may be given a place of its own,
  /// `y`, where it is not rounded to bf16 (logits).
  Saved forward(const Exec& exec, const Tensor& x, const Tensor& addend = {},
                const Tensor& y = {}) const;
  /// Parameter gradients += ; dx overwritten (absent: not computed).
  void backward(const Exec& exec, const Saved& saved, const Tensor& dy, const Tensor& dx) const;

  /// What they take from exec's arena: see ArenaPlan.
  Saved forward_memory(const Exec& exec, int64_t rows, const Tensor& y = {}) const;
  /// Gradients of z1, act and, with a final norm, z2.
  Saved backward_memory(const Exec& exec, int64_t rows) const;

 private:
  bool has_final_norm() const { return config_.final_norm && !config_.relu; }

  MlpConfig config_;
  Parameter *weight1_ = nullptr, *bias1_ = nullptr, *weight2_ = nullptr, *bias2_ = nullptr;
  Parameter *norm1_weight_ = nullptr, *norm1_bias_ = nullptr;
  Parameter *norm2_weight_ = nullptr, *norm2_bias_ = nullptr;
};

}  // namespace segue::model
