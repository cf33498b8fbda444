#include "ops/gemm.h"

#include <utility>

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

/// Operands of one product, ready to run any number of times.
class Operands {
 public:
  explicit Operands(const Shape& shape) : shape_(shape) {
    const auto make = [this](Trans trans, int64_t rows, int64_t columns, const char* name) {
      return trans == Trans::kYes ? w_.random({columns, rows}, name)
                                  : w_.random({rows, columns}, name);
    };
    a_ = make(shape.trans_a, shape.m, shape.k, "a");
    b_ = make(shape.trans_b, shape.k, shape.n, "b");
    c_ = w_.zeros({shape.m, shape.n});
  }
  const Shape& shape() const { return shape_; }
  void run() const { ops::gemm(w_.exec, shape_.trans_a, a_, shape_.trans_b, b_, c_); }

 private:
  Shape shape_;
  Workspace w_;
  Tensor a_, b_, c_;
};

Result result_of(const Shape& s, Timing timing) {
  Result r;
  r.name = s.name;
  r.shape = {{"m", s.m}, {"n", s.n}, {"k", s.k}};
  r.flop = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  r.timing = std::move(timing);
  return r;
}

}  // namespace

struct GemmYardstick::Product {
  Operands operands;
};

GemmYardstick::GemmYardstick(int64_t size)
    : product_(new Product{Operands({"gemm", Trans::kNo, Trans::kNo, size, size, size})}) {}
GemmYardstick::~GemmYardstick() = default;
void GemmYardstick::run() { product_->operands.run(); }
Result GemmYardstick::result(Timing timing) const {
  return result_of(product_->operands.shape(), std::move(timing));
}

Result measure_gemm_rate(const Settings& settings, Report& report) {
  GemmYardstick yardstick(settings.yardstick);
  Result r = yardstick.result(measure(settings.repeats, [&] { yardstick.run(); }));
  report.set_gemm_rate(r.flop / r.timing.median());
  return r;
}

void bench_gemm(const Settings& settings, Report& report) {
  report.add(measure_gemm_rate(settings, report));
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
    const Operands operands(shape);
    report.add(result_of(shape, measure(settings.repeats, [&] { operands.run(); })));
  }
}

}  // namespace segue::bench
