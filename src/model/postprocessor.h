#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "model/parameters.h"
#include "ops/norm.h"
#include "tensor/exec.h"

namespace segue::model {

/// Turns the stack's output rows into user embeddings: L2 norm, layer norm, or the reference's
/// choice: append cyclic features of the row's time (hour of day, day of week), project back, layer
/// norm.
class Postprocessor {
 public:
  struct Config {
    PostprocessorKind kind = PostprocessorKind::kTimestampLayerNorm;
    int64_t dim = 0;
    double pi = 3.14159265358979323846;
  };
  Postprocessor(Parameters& parameters, const std::string& prefix, const Config& config);

  struct Saved {
    Tensor x;         // l2 and layernorm: the input; timestamp: [x | time features]
    Tensor combined;  // timestamp: the projection
    ops::NormStats stats;
    Tensor y;
  };
  /// x: from make_input(), or contiguous. timestamps i64 [rows]; read by the timestamp kind alone.
  Saved forward(const Exec& exec, const Tensor& x, const Tensor& timestamps) const;
  /// [rows, dim] in exec's arena, for the input: what is written there need not be copied.
  Tensor make_input(const Exec& exec, int64_t rows) const;
  /// dx overwritten, parameter gradients += .
  void backward(const Exec& exec, const Saved& saved, const Tensor& dy, const Tensor& dx) const;

  /// What they take from exec's arena: see ArenaPlan. Backward wants the gradient of `combined`.
  Saved forward_memory(const Exec& exec, int64_t rows) const;
  Tensor backward_memory(const Exec& exec, int64_t rows) const;

  /// The cyclic features alone, [rows, 4].
  void time_features(const Exec& exec, const Tensor& timestamps, const Tensor& out) const;

 private:
  ops::NormParams norm() const;
  /// Rows of `input` and of the time features beside them lie so far apart, in elements.
  int64_t row_stride() const;

  Config config_;
  Parameter *combiner_weight_ = nullptr, *combiner_bias_ = nullptr;
  Parameter *norm_weight_ = nullptr, *norm_bias_ = nullptr;
};

}  // namespace segue::model
