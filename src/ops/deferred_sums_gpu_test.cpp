#include <gtest/gtest.h>

#include "ops/deferred_sums.h"
#include "ops/gemm.h"
#include "ops/gpu_test_util.h"
#include "ops/norm.h"
#include "tensor/launches.h"

namespace segue::ops {
namespace {

using test::ModeBed;
using GpuDeferredSumsTest = test::GpuTest;

/// Sums into several places, two of them shared, at once or deferred.
std::vector<double> run(bool deferred, int64_t* kernels) {
  ModeBed bed(Device::cuda(), Precision::kBf16);
  const Tensor x = bed.activation(1, {3000, 512}), y = bed.activation(2, {3000, 512});
  const Tensor all = bed.parameter(3, {5 * 512}, 0);
  const auto part = [&](int64_t i) { return all.narrow(0, i * 512, 512); };
  const NormParams p{.weight = bed.parameter(4, {512}), .bias = bed.parameter(5, {512})};
  const NormStats stats = make_norm_stats(bed.exec, 3000);
  norm_forward(bed.exec, p, x, y, stats);
  const int64_t before = launches();
  Exec exec = bed.exec;
  DeferredSums sums(exec);
  if (deferred) exec.sums = &sums;
  column_sum(exec, x, part(0));
  norm_backward(exec, p, y, x, stats, {}, bed.activation(6, {3000, 512}),
                {part(1), part(2), part(3)});
  column_sum(exec, y, part(0));  // the same place once more
  column_sum(exec, y, part(4));
  sums.flush();
  *kernels = launches() - before;
  return bed.values(all);
}

TEST_F(GpuDeferredSumsTest, SameBitsAsAtOnceInFewerLaunches) {
  int64_t at_once = 0, deferred = 0;
  const std::vector<double> expected = run(false, &at_once);
  EXPECT_EQ(run(true, &deferred), expected);
  EXPECT_EQ(at_once, 4 + 6);
  EXPECT_EQ(deferred, 4 + 2);  // one fold when the place is taken, one at the end
}

TEST_F(GpuDeferredSumsTest, MoreSumsThanThereIsMemoryFor) {
  const auto sum_all = [](bool deferred) {
    ModeBed bed(Device::cuda(), Precision::kF32);
    const int64_t columns = 2048, places = 16;  // 3.2 MB of partial sums each
    const Tensor x = bed.activation(1, {5000, columns});
    const Tensor all = bed.parameter(2, {places * columns}, 0);
    Exec exec = bed.exec;
    DeferredSums sums(exec);
    if (deferred) exec.sums = &sums;
    for (int64_t i = 0; i < places; ++i) {
      column_sum(exec, x, all.narrow(0, i * columns, columns));
    }
    sums.flush();
    return bed.values(all);
  };
  EXPECT_EQ(sum_all(true), sum_all(false));
}

}  // namespace
}  // namespace segue::ops
