#pragma once

#include <cstdint>
#include <span>

#include "model/config.h"

namespace segue::model {

/// Floating-point operations of one pass by the reference's formula, which counts the STU stack and
/// the head, forward and backward, and half of every score matrix:
///   layer(n, q) = 6 n D H (2 dv + 2 dqk) + 7 (q / 2) H (dqk + dv) + 6 n (3 H dv) D
/// with n = tokens and q = sum of squared lengths. It counts the full work of the published layer
/// whatever the identities skip; with a window, which is another model, the pairs that it leaves in
/// place of q / 2, and truncated layers by the tokens that are left. Forward alone is a third of
/// the linear and 2/7 of the attention part.
double formula_flops(const ModelConfig& config, std::span<const int64_t> token_offsets,
                     bool backward);

/// The same for every sample of the full configured length, per sample: the benchmark's "dense"
/// count.
double dense_formula_flops(const ModelConfig& config);

}  // namespace segue::model
