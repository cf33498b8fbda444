#include "model/flops.h"

namespace segue::model {

namespace {

double columns_of_scores(const ModelConfig& c) {
  return static_cast<double>(c.heads * (c.qk_dim + c.v_dim));
}

int64_t counted_targets(const ModelConfig& c, int64_t tokens) {
  return c.labels == LabelKind::kCandidates && tokens > 0 ? 1 : 0;
}

/// Attention with a window: the pairs that it leaves of a sample with one candidate.
double window_flops(const ModelConfig& c, int64_t tokens, bool backward) {
  const int64_t pairs = c.attention_mask().pairs(tokens, counted_targets(c, tokens));
  return (backward ? 3.5 : 1) * 2 * columns_of_scores(c) * static_cast<double>(pairs);
}

LayerFlops concat_layer_flops(const ModelConfig& c, int64_t tokens, bool backward) {
  const auto n = static_cast<double>(tokens), dim = static_cast<double>(c.dim);
  const auto columns = static_cast<double>(c.uvqk_columns() + 3 * c.heads * c.v_dim);
  return {.products = (backward ? 3 : 1) * 2 * n * dim * columns,
          .attention = (backward ? 3.5 : 1) * 2 * (n * n / 2) * columns_of_scores(c)};
}

/// One layer, all tokens of one sample that it sees.
double sample_layer_flops(const ModelConfig& c, int64_t tokens, bool backward) {
  const int64_t contextual = c.attention.contextual_mask ? c.contextual_tokens() : 0;
  LayerFlops layer = c.layer == LayerKind::kGated
                         ? gated_layer_flops(c, {tokens, contextual, 0}, backward)
                         : concat_layer_flops(c, tokens, backward);
  if (c.attention.window > 0) layer.attention = window_flops(c, tokens, backward);
  return layer.total();
}

/// Tokens of a sample behind a truncation.
int64_t tokens_left(const ModelConfig& c, int64_t tokens) {
  return tokens - c.kept_tokens(tokens, counted_targets(c, tokens)).dropped;
}

/// Of the stack, and the head where it counts, for one sample.
double sample_flops(const ModelConfig& c, int64_t tokens, bool backward) {
  const auto layers = [&](int64_t count, int64_t n) {
    return static_cast<double>(count) * sample_layer_flops(c, n, backward);
  };
  const int64_t from = c.whole_layers(), left = tokens_left(c, tokens);
  const double stack = layers(from, tokens) + (from < c.layers ? layers(c.layers - from, left) : 0);
  if (c.layer == LayerKind::kGated) return stack;
  return stack +
         (backward ? 6.0 : 2.0) * static_cast<double>(c.tasks.size()) * static_cast<double>(c.dim);
}

}  // namespace

LayerFlops gated_layer_flops(const ModelConfig& c, const SequenceShape& sequence, bool backward) {
  const auto s = static_cast<double>(sequence.tokens), t = static_cast<double>(sequence.targets);
  const double h = s - t - static_cast<double>(sequence.contextual);
  const auto dim = static_cast<double>(c.dim), gate = static_cast<double>(c.heads * c.v_dim);
  const auto uvqk = static_cast<double>(c.uvqk_columns());
  return {
      .products = (backward ? 3 : 1) * 2 * s * dim * (uvqk + gate),
      .attention = (backward ? 3.5 : 1) * 2 * columns_of_scores(c) * (s * (s - t) - h * h / 2 + t),
      .other = (backward ? 2 : 1) * s * gate + s * static_cast<double>(c.heads) * dim};
}

double formula_flops(const ModelConfig& c, std::span<const int64_t> offsets, bool backward) {
  double sum = 0;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    sum += sample_flops(c, offsets[b + 1] - offsets[b], backward);
  }
  return sum;
}

double layer_flops(const ModelConfig& c, int64_t layer, std::span<const int64_t> offsets,
                   bool backward) {
  double sum = 0;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    const int64_t tokens = offsets[b + 1] - offsets[b];
    sum +=
        sample_layer_flops(c, layer < c.whole_layers() ? tokens : tokens_left(c, tokens), backward);
  }
  return sum;
}

double dense_formula_flops(const ModelConfig& c) { return sample_flops(c, c.max_seq_len, true); }

double recomputed_flops(const ModelConfig& c, std::span<const int64_t> offsets) {
  if (!c.recompute.uvqk || offsets.empty()) return 0;
  double tokens = 0;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    const int64_t n = offsets[b + 1] - offsets[b];
    const int64_t left = n - c.kept_tokens(n, counted_targets(c, n)).dropped;
    tokens += static_cast<double>(c.whole_layers() * n + (c.layers - c.whole_layers()) * left);
  }
  return 2 * tokens * static_cast<double>(c.dim * c.uvqk_columns());
}

}  // namespace segue::model
