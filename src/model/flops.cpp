#include "model/flops.h"

namespace segue::model {

namespace {

double concat_stack_flops(const ModelConfig& c, double tokens, double squares, bool backward) {
  const double linear_columns = static_cast<double>(c.uvqk_columns());
  const auto gate_columns = static_cast<double>(3 * c.heads * c.v_dim);
  const double dim = static_cast<double>(c.dim);
  const double linear = 2 * tokens * dim * (linear_columns + gate_columns);
  const double attention = 2 * (squares / 2) * static_cast<double>(c.heads * (c.qk_dim + c.v_dim));
  return static_cast<double>(c.layers) *
         (backward ? 3 * linear + 3.5 * attention : linear + attention);
}

double head_flops(const ModelConfig& c, bool backward) {
  return (backward ? 6.0 : 2.0) * static_cast<double>(c.tasks.size()) * static_cast<double>(c.dim);
}

double gated_stack_flops(const ModelConfig& c, int64_t tokens, bool backward) {
  const int64_t contextual = c.attention.contextual_mask ? c.contextual_tokens() : 0;
  return static_cast<double>(c.layers) *
         gated_layer_flops(c, {tokens, contextual, 0}, backward).total();
}

}  // namespace

LayerFlops gated_layer_flops(const ModelConfig& c, const SequenceShape& sequence, bool backward) {
  const auto s = static_cast<double>(sequence.tokens), t = static_cast<double>(sequence.targets);
  const double h = s - t - static_cast<double>(sequence.contextual);
  const auto dim = static_cast<double>(c.dim), gate = static_cast<double>(c.heads * c.v_dim);
  const auto uvqk = static_cast<double>(c.uvqk_columns());
  const auto head_columns = static_cast<double>(c.heads * (c.qk_dim + c.v_dim));
  return {.products = (backward ? 3 : 1) * 2 * s * dim * (uvqk + gate),
          .attention = (backward ? 3.5 : 1) * 2 * head_columns * (s * (s - t) - h * h / 2 + t),
          .other = (backward ? 2 : 1) * s * gate + s * static_cast<double>(c.heads) * dim};
}

double formula_flops(const ModelConfig& c, std::span<const int64_t> offsets, bool backward) {
  if (c.layer == LayerKind::kGated) {
    double sum = 0;
    for (size_t b = 0; b + 1 < offsets.size(); ++b) {
      sum += gated_stack_flops(c, offsets[b + 1] - offsets[b], backward);
    }
    return sum;
  }
  double tokens = 0;
  double squares = 0;
  double samples = 0;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    const double n = static_cast<double>(offsets[b + 1] - offsets[b]);
    tokens += n;
    squares += n * n;
    samples += 1;
  }
  return concat_stack_flops(c, tokens, squares, backward) + samples * head_flops(c, backward);
}

double dense_formula_flops(const ModelConfig& c) {
  if (c.layer == LayerKind::kGated) return gated_stack_flops(c, c.max_seq_len, true);
  const double n = static_cast<double>(c.max_seq_len);
  return concat_stack_flops(c, n, n * n, true) + head_flops(c, true);
}

}  // namespace segue::model
