#include "bench/attention_case.h"

#include <cmath>
#include <utility>

namespace segue::bench {

AttentionCase::AttentionCase(Workspace& w, Shape shape)
    : mark_(*w.exec.arena),
      shape_(std::move(shape)),
      targets_(shape_.offsets.size() - 1, 1),
      exec_(w.exec) {
  const DType dtype = exec_.device.is_cuda() ? shape_.dtype : exec_.dtype();
  shape_.dtype = dtype;
  const int64_t tokens = shape_.offsets.back(), heads = shape_.heads;
  // Views of packed buffers, as a layer passes them.
  const Tensor uvqk = w.random_of(dtype, {tokens, 4 * width()}, "uvqk");
  const Tensor duvqk = exec_.arena->tensor(dtype, {tokens, 4 * width()});
  o = exec_.arena->tensor(dtype, {tokens, width()}).split_columns(heads);
  grad_o = w.random_of(dtype, {tokens, width()}, "grad_o").split_columns(heads);
  const auto part = [&](const Tensor& packed, int64_t i) {
    return packed.columns(i * width(), width()).split_columns(heads);
  };
  p.v = part(uvqk, 1);
  p.q = part(uvqk, 2);
  p.k = part(uvqk, 3);
  p.offsets = shape_.offsets;
  p.num_targets = targets_;
  p.mask = shape_.mask;
  p.alpha = 1 / std::sqrt(static_cast<double>(shape_.head_dim));
  p.scale = 1.0 / 4096;
  p.kernel = shape_.kernel;
  dv = part(duvqk, 1);
  dq = part(duvqk, 2);
  dk = part(duvqk, 3);
}

int64_t AttentionCase::bytes(const Shape& s) {
  const int64_t row = s.heads * s.head_dim * size_of(s.dtype);
  // uvqk and its gradient, o and its gradient; random values are made in a buffer beside them.
  constexpr int64_t kRows = 4 + 4 + 1 + 1, kBeside = int64_t{64} << 20;
  return s.offsets.back() * row * kRows + kBeside +
         attention::hstu_attention_backward_bytes(s.offsets, s.heads, s.mask, 0);
}

int64_t AttentionCase::visible_pairs() const {
  int64_t pairs = 0;
  for (size_t b = 0; b + 1 < p.offsets.size(); ++b) {
    pairs += p.mask.pairs(p.offsets[b + 1] - p.offsets[b], p.num_targets[b]);
  }
  return pairs;
}

Result AttentionCase::result(const char* name) const {
  Result r;
  r.name = name;
  r.shape = {{"sequences", static_cast<int64_t>(targets_.size())},
             {"heads", shape_.heads},
             {"head_dim", shape_.head_dim},
             {"tokens", p.offsets.back()},
             {"mean_keys", visible_pairs() / p.offsets.back()}};  // that a row sees
  double pairs = static_cast<double>(visible_pairs());
  if (p.mask.window == 0) {
    pairs = 0;
    for (size_t b = 0; b + 1 < p.offsets.size(); ++b) {
      const auto n = static_cast<double>(p.offsets[b + 1] - p.offsets[b]);
      pairs += n * n / 2;
    }
  }
  r.flop = 4.0 * static_cast<double>(width()) * pairs;
  return r;
}

Result AttentionCase::forward_result() const {
  Result r = result("attention forward");
  r.bytes = 4.0 * static_cast<double>(o.bytes());  // q, k, v in, o out
  return r;
}

Result AttentionCase::backward_result() const {
  Result r = result("attention backward");
  r.flop *= 2.5;  // scores once more, then dv, dp, dq, dk
  r.bytes = 7.0 * static_cast<double>(o.bytes());
  return r;
}

}  // namespace segue::bench
