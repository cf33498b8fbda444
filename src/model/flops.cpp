#include "model/flops.h"

namespace segue::model {

namespace {

int64_t counted_targets(const ModelConfig& c, int64_t tokens) {
  return c.labels == LabelKind::kCandidates && tokens > 0 ? 1 : 0;
}

/// Pairs of tokens of a sample that count: half of all, or what a window leaves of a sample with
/// one candidate.
double counted_pairs(const ModelConfig& c, int64_t tokens) {
  if (c.attention.window == 0) return static_cast<double>(tokens) * static_cast<double>(tokens) / 2;
  return static_cast<double>(c.attention_mask().pairs(tokens, counted_targets(c, tokens)));
}

/// Of one layer.
double layer_flops(const ModelConfig& c, double tokens, double pairs, bool backward) {
  const double linear_columns = static_cast<double>(c.uvqk_columns());
  const double gate_columns =
      static_cast<double>(c.heads * c.v_dim) * (c.layer == LayerKind::kConcat ? 3 : 1);
  const double dim = static_cast<double>(c.dim);
  const double linear = 2 * tokens * dim * (linear_columns + gate_columns);
  const double attention = 2 * pairs * static_cast<double>(c.heads * (c.qk_dim + c.v_dim));
  return backward ? 3 * linear + 3.5 * attention : linear + attention;
}

/// Of the stack for one sample.
double stack_flops(const ModelConfig& c, int64_t tokens, bool backward) {
  const auto layers = [&](int64_t count, int64_t n) {
    return static_cast<double>(count) *
           layer_flops(c, static_cast<double>(n), counted_pairs(c, n), backward);
  };
  const int64_t from = c.truncation.from_layer > 0 ? c.truncation.from_layer : c.layers;
  const int64_t left = tokens - c.kept_tokens(tokens, counted_targets(c, tokens)).dropped;
  return layers(from, tokens) + (from < c.layers ? layers(c.layers - from, left) : 0);
}

double head_flops(const ModelConfig& c, bool backward) {
  return (backward ? 6.0 : 2.0) * static_cast<double>(c.tasks.size()) * static_cast<double>(c.dim);
}

}  // namespace

double formula_flops(const ModelConfig& c, std::span<const int64_t> offsets, bool backward) {
  double sum = 0;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    sum += stack_flops(c, offsets[b + 1] - offsets[b], backward) + head_flops(c, backward);
  }
  return sum;
}

double dense_formula_flops(const ModelConfig& c) {
  return stack_flops(c, c.max_seq_len, true) + head_flops(c, true);
}

}  // namespace segue::model
