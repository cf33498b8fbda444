// The two ceilings that results are given as shares of: products and copies.

#include <cstring>
#include <utility>

#include "base/parallel.h"
#include "bench/bench.h"
#include "bench/workspace.h"
#include "ops/gemm.h"

namespace segue::bench {
namespace {

int64_t ceiling_size(const Settings& settings, Device device) {
  if (settings.ceiling > 0) return settings.ceiling;
  return device.is_cuda() ? 8192 : 2048;
}

/// A copy as wide as the memory allows: by all threads, or by the card.
void copy_all(const Exec& exec, const Tensor& from, const Tensor& to) {
  if (exec.device.is_cuda()) return copy(to, from, exec.stream);
  constexpr int64_t kGrain = 1 << 20;
  base::parallel_for(from.bytes(), kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to.data) + begin, static_cast<char*>(from.data) + begin,
                static_cast<size_t>(end - begin));
  });
}

}  // namespace

struct GemmCeiling::Product {
  Product(int64_t n, Device device)
      : size(n),
        workspace(device, 4 * n * n * size_of(DType::kF32) + (int64_t{1} << 29)),
        a(workspace.random({n, n}, "a")),
        b(workspace.random({n, n}, "b")),
        c(workspace.zeros({n, n})) {}
  int64_t size;
  Workspace workspace;
  Tensor a, b, c;
};

GemmCeiling::GemmCeiling(const Settings& settings, Device device)
    : product_(new Product(ceiling_size(settings, device), device)) {}
GemmCeiling::~GemmCeiling() = default;
void GemmCeiling::run() {
  ops::gemm(product_->workspace.exec, ops::Trans::kNo, product_->a, ops::Trans::kNo, product_->b,
            product_->c);
}
const Exec& GemmCeiling::exec() const { return product_->workspace.exec; }
Result GemmCeiling::result(Timing timing) const {
  const int64_t n = product_->size;
  Result r;
  r.name = "gemm";
  r.shape = {{"m", n}, {"n", n}, {"k", n}};
  r.flop = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  r.timing = std::move(timing);
  return r;
}

Result measure_gemm_rate(const Settings& settings, Report& report) {
  GemmCeiling ceiling(settings, report.device());
  Result r = ceiling.result(measure(ceiling.exec(), settings.repeats, [&] { ceiling.run(); }));
  report.set_gemm_rate(r.flop / r.timing.median());
  return r;
}

Result measure_copy_rate(const Settings& settings, Report& report) {
  const LayerShape& s = settings.layer;
  const int64_t tokens = s.offsets().back(), columns = 4 * s.heads * s.head_dim;
  Workspace w(report.device(), 4 * tokens * columns * size_of(DType::kF32) + (int64_t{1} << 29));
  const Tensor from = w.random({tokens, columns}, "from"), to = w.zeros({tokens, columns});
  Result r;
  r.name = "copy";
  r.shape = {{"tokens", tokens}, {"columns", columns}};
  r.bytes = 2.0 * static_cast<double>(from.bytes());
  r.timing = measure(w.exec, settings.repeats, [&] { copy_all(w.exec, from, to); });
  report.set_copy_rate(r.bytes / r.timing.median());
  return r;
}

void add_ceilings(const Settings& settings, Report& report) {
  report.add(measure_gemm_rate(settings, report));
  report.add(measure_copy_rate(settings, report));
}

}  // namespace segue::bench
