#include "model/flops.h"

namespace segue::model {

namespace {

/// Pairs of tokens of a sample that count: half of all, or what a window leaves of a sample with
/// one candidate.
double counted_pairs(const ModelConfig& c, int64_t tokens) {
  if (c.attention.window == 0) return static_cast<double>(tokens) * static_cast<double>(tokens) / 2;
  const int64_t targets = c.labels == LabelKind::kCandidates && tokens > 0 ? 1 : 0;
  return static_cast<double>(c.attention_mask().pairs(tokens, targets));
}

double stack_flops(const ModelConfig& c, double tokens, double pairs, bool backward) {
  const double linear_columns = static_cast<double>(c.uvqk_columns());
  const double gate_columns =
      static_cast<double>(c.heads * c.v_dim) * (c.layer == LayerKind::kConcat ? 3 : 1);
  const double dim = static_cast<double>(c.dim);
  const double linear = 2 * tokens * dim * (linear_columns + gate_columns);
  const double attention = 2 * pairs * static_cast<double>(c.heads * (c.qk_dim + c.v_dim));
  return static_cast<double>(c.layers) *
         (backward ? 3 * linear + 3.5 * attention : linear + attention);
}

double head_flops(const ModelConfig& c, bool backward) {
  return (backward ? 6.0 : 2.0) * static_cast<double>(c.tasks.size()) * static_cast<double>(c.dim);
}

}  // namespace

double formula_flops(const ModelConfig& c, std::span<const int64_t> offsets, bool backward) {
  double tokens = 0;
  double pairs = 0;
  double samples = 0;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    const int64_t n = offsets[b + 1] - offsets[b];
    tokens += static_cast<double>(n);
    pairs += counted_pairs(c, n);
    samples += 1;
  }
  return stack_flops(c, tokens, pairs, backward) + samples * head_flops(c, backward);
}

double dense_formula_flops(const ModelConfig& c) {
  return stack_flops(c, static_cast<double>(c.max_seq_len), counted_pairs(c, c.max_seq_len), true) +
         head_flops(c, true);
}

}  // namespace segue::model
