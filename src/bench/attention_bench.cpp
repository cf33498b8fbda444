#include <cmath>

#include "attention/hstu_attention.h"
#include "bench/bench.h"
#include "bench/workspace.h"

namespace segue::bench {

void bench_attention(const Settings& settings, Report& report) {
  report.add(measure_gemm_rate(settings, report));
  const LayerShape& s = settings.layer;
  const std::vector<int64_t> offsets = s.offsets();
  const int64_t tokens = offsets.back();
  const int64_t width = s.heads * s.head_dim;

  // Views of packed buffers, as a layer passes them.
  Workspace w;
  const Tensor uvqk = w.random({tokens, 4 * width}, "uvqk");
  const Tensor duvqk = w.zeros({tokens, 4 * width});
  const Tensor o = w.zeros({tokens, width});
  const Tensor grad_o = w.random({tokens, width}, "grad_o");
  const auto part = [&](const Tensor& packed, int64_t i) {
    return packed.columns(i * width, width).split_columns(s.heads);
  };
  attention::HstuAttentionParams p;
  p.v = part(uvqk, 1);
  p.q = part(uvqk, 2);
  p.k = part(uvqk, 3);
  p.offsets = offsets;
  p.alpha = 1 / std::sqrt(static_cast<double>(s.head_dim));
  p.scale = 1 / static_cast<double>(s.length);

  Result r;
  r.shape = {
      {"heads", s.heads}, {"head_dim", s.head_dim}, {"sequences", s.sequences}, {"tokens", tokens}};
  const double forward =
      4.0 * static_cast<double>(width) *
      static_cast<double>(attention::attention_pairs(offsets, p.num_targets, p.mask));
  r.name = "attention forward";
  r.flop = forward;
  r.timing = measure(settings.repeats, [&] {
    attention::hstu_attention_forward(w.exec, p, o.split_columns(s.heads));
  });
  report.add(r);
  r.name = "attention backward";
  r.flop = 2.5 * forward;  // scores once more, then dv, dp, dq, dk
  r.timing = measure(settings.repeats, [&] {
    attention::hstu_attention_backward(w.exec, p, grad_o.split_columns(s.heads), part(duvqk, 2),
                                       part(duvqk, 3), part(duvqk, 1));
  });
  report.add(r);
}

}  // namespace segue::bench
