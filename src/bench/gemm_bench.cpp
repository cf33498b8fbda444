#include "ops/gemm.h"

#include "bench/bench.h"
#include "bench/workspace.h"

namespace segue::bench {
namespace {

using ops::Trans;

struct Shape {
  const char* name;
  Trans trans_a, trans_b;
  int64_t m, n, k;
};

/// What a layer asks of a product: activations times a weight, or a gradient of a weight, which is
/// kept in float and added to.
Timing measure_product(const Settings& settings, Device device, const Shape& s) {
  Workspace w(device);
  const bool weight_gradient = s.trans_a == Trans::kYes;
  const Tensor a = weight_gradient ? w.random({s.k, s.m}, "a") : w.random({s.m, s.k}, "a");
  const Tensor b = weight_gradient            ? w.random({s.k, s.n}, "b")
                   : s.trans_b == Trans::kYes ? w.parameter({s.n, s.k}, "b")
                                              : w.parameter({s.k, s.n}, "b");
  const Tensor c = weight_gradient ? w.zero_parameter({s.m, s.n}) : w.zeros({s.m, s.n});
  return measure(w.exec, settings.repeats, [&] {
    ops::gemm(w.exec, s.trans_a, a, s.trans_b, b, c, {.accumulate = weight_gradient});
  });
}

}  // namespace

void bench_gemm(const Settings& settings, Report& report) {
  add_ceilings(settings, report);
  const LayerShape& s = settings.layer;
  const int64_t tokens = s.offsets().back();
  const int64_t uvqk = 4 * s.heads * s.head_dim;
  const int64_t gate = 3 * s.heads * s.head_dim;
  const Shape shapes[] = {
      {"gemm uvqk", Trans::kNo, Trans::kNo, tokens, uvqk, s.dim},
      {"gemm uvqk, weight gradient", Trans::kYes, Trans::kNo, s.dim, uvqk, tokens},
      {"gemm uvqk, input gradient", Trans::kNo, Trans::kYes, tokens, s.dim, uvqk},
      {"gemm out", Trans::kNo, Trans::kNo, tokens, s.dim, gate},
      {"gemm out, weight gradient", Trans::kYes, Trans::kNo, gate, s.dim, tokens},
      {"gemm out, input gradient", Trans::kNo, Trans::kYes, tokens, gate, s.dim},
  };
  for (const Shape& shape : shapes) {
    Result r;
    r.name = shape.name;
    r.shape = {{"m", shape.m}, {"n", shape.n}, {"k", shape.k}};
    r.flop = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
             static_cast<double>(shape.k);
    r.timing = measure_product(settings, report.device(), shape);
    report.add(r);
  }
}

}  // namespace segue::bench
