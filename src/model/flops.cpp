#include "model/flops.h"

namespace segue::model {

namespace {

double stack_flops(const ModelConfig& c, double tokens, double squares, bool backward) {
  const double linear_columns = static_cast<double>(c.uvqk_columns());
  const double gate_columns =
      static_cast<double>(c.heads * c.v_dim) * (c.layer == LayerKind::kConcat ? 3 : 1);
  const double dim = static_cast<double>(c.dim);
  const double linear = 2 * tokens * dim * (linear_columns + gate_columns);
  const double attention = 2 * (squares / 2) * static_cast<double>(c.heads * (c.qk_dim + c.v_dim));
  return static_cast<double>(c.layers) *
         (backward ? 3 * linear + 3.5 * attention : linear + attention);
}

double head_flops(const ModelConfig& c, bool backward) {
  return (backward ? 6.0 : 2.0) * static_cast<double>(c.tasks.size()) * static_cast<double>(c.dim);
}

}  // namespace

double formula_flops(const ModelConfig& c, std::span<const int64_t> offsets, bool backward) {
  double tokens = 0;
  double squares = 0;
  double samples = 0;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    const double n = static_cast<double>(offsets[b + 1] - offsets[b]);
    tokens += n;
    squares += n * n;
    samples += 1;
  }
  return stack_flops(c, tokens, squares, backward) + samples * head_flops(c, backward);
}

double dense_formula_flops(const ModelConfig& c) {
  const double n = static_cast<double>(c.max_seq_len);
  return stack_flops(c, n, n * n, true) + head_flops(c, true);
}

}  // namespace segue::model
