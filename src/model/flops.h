#pragma once

#include <cstdint>
#include <span>

#include "model/config.h"

namespace segue::model {

/// Floating-point operations of one pass by the formula that was published with the layer, so that
/// rates compare. Each counts the full work of that layer whatever the identities skip.
///
/// concat: the STU stack and the head, forward and backward, and half of every score matrix:
///   layer(n, q) = 6 n D H (2 dv + 2 dqk) + 7 (q / 2) H (dqk + dv) + 6 n (3 H dv) D
/// with n = tokens and q = sum of squared lengths. Forward alone is a third of the linear and 2/7
/// of the attention part.
///
/// gated: see gated_layer_flops, of all layers; the head is not counted. Where candidates are
/// labelled they count as history, because lengths alone are known here.
///
/// A window, which is another model, counts the pairs that it leaves, and truncated layers the
/// tokens that are left.
double formula_flops(const ModelConfig& config, std::span<const int64_t> token_offsets,
                     bool backward);

/// What one layer has of it.
double layer_flops(const ModelConfig& config, int64_t layer, std::span<const int64_t> token_offsets,
                   bool backward);

/// The same for every sample of the full configured length, per sample: the benchmark's "dense"
/// count.
double dense_formula_flops(const ModelConfig& config);

/// A sequence in one gated layer: `contextual` tokens that see all history, history, `targets`.
struct SequenceShape {
  int64_t tokens = 0, contextual = 0, targets = 0;  // targets and contextual ones count in tokens
};
struct LayerFlops {
  double products = 0, attention = 0, other = 0;
  double total() const { return products + attention + other; }
};
///   products   2 s D H (2 dv + 2 dqk) + 2 s H dv D                        x 3 with backward
///   attention  2 H (dqk + dv) (s (s - t) - h^2 / 2 + t)                   x 3.5
///   other      s H dv for the gate, x 2, and s H D for the residual as the suite counts it
/// with s tokens, t targets, h tokens of history.
LayerFlops gated_layer_flops(const ModelConfig& config, const SequenceShape& sequence,
                             bool backward);

/// Products that backward does a second time because of `recompute`; norms and gates, which it may
/// repeat as well, count as little here as above. With it work of the hardware is counted, not work
/// of the model.
double recomputed_flops(const ModelConfig& config, std::span<const int64_t> token_offsets);

}  // namespace segue::model
