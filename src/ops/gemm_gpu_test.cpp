#include "ops/contextual.h"
#include "ops/gemm.h"
#include "ops/gpu_test_util.h"

namespace segue::ops {
namespace {

using test::expect_like_cpu;
using test::ModeBed;
using test::Outputs;
using GpuGemmTest = test::GpuTest;

struct Shape {
  int64_t m, n, k;
};

/// Every transposition; rows of all operands are parts of wider buffers.
TEST_F(GpuGemmTest, ProductsOfStridedMatrices) {
  for (const Shape s : {Shape{64, 48, 32}, Shape{300, 512, 516}, Shape{33, 7, 19}, Shape{1, 1, 1},
                        Shape{5000, 128, 64}, Shape{96, 160, 5000}}) {
    for (const Trans ta : {Trans::kNo, Trans::kYes}) {
      for (const Trans tb : {Trans::kNo, Trans::kYes}) {
        SCOPED_TRACE(testing::Message() << s.m << " x " << s.n << " x " << s.k);
        expect_like_cpu([&](ModeBed& bed) -> Outputs {
          const auto part = [&](uint64_t seed, int64_t rows, int64_t columns) {
            return bed.activation(seed, {rows, columns + 8}).columns(8, columns);
          };
          const Tensor a = ta == Trans::kNo ? part(1, s.m, s.k) : part(1, s.k, s.m);
          const Tensor b = tb == Trans::kNo ? part(2, s.k, s.n) : part(2, s.n, s.k);
          const Tensor c = part(3, s.m, s.n);
          gemm(bed.exec, ta, a, tb, b, c);
          return {{"c", false, bed.values(c)}};
        });
      }
    }
  }
}

TEST_F(GpuGemmTest, BiasResidualAndAccumulate) {
  for (const bool odd : {false, true}) {
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const int64_t m = 200, n = odd ? 37 : 64, k = odd ? 21 : 96;
      const Tensor x = bed.activation(1, {m, k});
      const Tensor weight = bed.parameter(2, {n, k}), bias = bed.parameter(3, {n});
      const Tensor y = bed.activation(4, {m, n});
      linear_forward(bed.exec, x, weight, bias, y);

      GemmExtra extra;
      extra.bias = bias;
      extra.residual = bed.activation(5, {m, n});
      const Tensor z = bed.activation(6, {m, n});
      gemm(bed.exec, Trans::kNo, x, Trans::kYes, weight, z, extra);

      const Tensor dy = bed.activation(7, {m, n}), dx = bed.activation(8, {m, k});
      const Tensor dweight = bed.parameter(9, {n, k}), dbias = bed.parameter(10, {n});
      linear_backward(bed.exec, dy, x, weight, dx, dweight, dbias);
      return {{"y", false, bed.values(y)},
              {"with residual", false, bed.values(z)},
              {"dx", true, bed.values(dx)},
              {"dweight", true, bed.values(dweight)},
              {"dbias", true, bed.values(dbias)}};
    });
  }
}

TEST_F(GpuGemmTest, EmptySizes) {
  expect_like_cpu([&](ModeBed& bed) -> Outputs {
    GemmExtra extra;
    extra.bias = bed.parameter(1, {5});
    extra.residual = bed.activation(2, {3, 5});
    const Tensor c = bed.activation(3, {3, 5});
    gemm(bed.exec, Trans::kNo, bed.activation(4, {3, 0}), Trans::kNo, bed.activation(5, {0, 5}), c,
         extra);
    GemmExtra more;
    more.accumulate = true;
    const Tensor kept = bed.parameter(6, {3, 5});
    gemm(bed.exec, Trans::kYes, bed.activation(7, {0, 3}), Trans::kNo, bed.activation(8, {0, 5}),
         kept, more);
    const Tensor none = bed.activation(9, {0, 5});
    gemm(bed.exec, Trans::kNo, bed.activation(10, {0, 4}), Trans::kNo, bed.activation(11, {4, 5}),
         none);
    const Tensor no_columns = bed.activation(12, {3, 0});
    gemm(bed.exec, Trans::kNo, bed.activation(13, {3, 4}), Trans::kNo, bed.activation(14, {4, 0}),
         no_columns);
    const Tensor sum = bed.parameter(15, {5});
    column_sum(bed.exec, none, sum);
    return {{"k = 0", false, bed.values(c)},
            {"kept", false, bed.values(kept)},
            {"sum of nothing", false, bed.values(sum)}};
  });
}

/// Heads of packed rows and of a packed weight, as the last layer multiplies them; bias rows of one
/// element and inner sizes of one, too.
TEST_F(GpuGemmTest, ProductsByHead) {
  struct Sizes {
    int64_t heads, rows, columns, inner;
  };
  const auto by_head = [](const Tensor& t, int64_t heads) {
    Tensor view = t.split_columns(heads);
    std::swap(view.sizes[0], view.sizes[1]);
    std::swap(view.strides[0], view.strides[1]);
    return view;
  };
  for (const Sizes s : {Sizes{4, 256, 512, 128}, Sizes{2, 7, 1, 16}, Sizes{3, 5, 24, 1},
                        Sizes{1, 1, 1, 1}, Sizes{2, 0, 8, 8}}) {
    SCOPED_TRACE(testing::Message() << s.heads << " of " << s.rows << " x " << s.columns);
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const Tensor a = bed.activation(1, {s.rows, s.heads * s.inner});
      const Tensor b = bed.parameter(2, {s.columns, 3 * s.heads * s.inner});
      const Tensor c = bed.activation(3, {s.rows, s.heads * s.columns});
      const Tensor part = b.columns(s.heads * s.inner, s.heads * s.inner);
      gemm_each(bed.exec, Trans::kNo, by_head(a, s.heads), Trans::kYes, by_head(part, s.heads),
                by_head(c, s.heads));
      const Tensor gradient = bed.parameter(4, {s.columns, 3 * s.heads * s.inner});
      gemm_each(bed.exec, Trans::kYes, by_head(c, s.heads), Trans::kNo, by_head(a, s.heads),
                by_head(gradient.columns(s.heads * s.inner, s.heads * s.inner), s.heads), true);
      return {{"c", false, bed.values(c)}, {"gradient", true, bed.values(gradient)}};
    });
  }
}

TEST_F(GpuGemmTest, ColumnSumsOfStridedRows) {
  for (const int64_t rows : {1, 77, 5000}) {
    for (const int64_t columns : {1, 40, 300, 520}) {
      expect_like_cpu([&](ModeBed& bed) -> Outputs {
        const Tensor x = bed.activation(1, {rows, columns + 16}).columns(8, columns);
        const Tensor out = bed.parameter(2, {columns});
        column_sum(bed.exec, x, out);
        return {{"sum", true, bed.values(out)}};
      });
    }
  }
}

TEST_F(GpuGemmTest, ContextualLinear) {
  for (const int64_t samples : {0, 1, 70}) {
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const int64_t slots = 3, in = 24, out = 40;
      const Tensor e = bed.activation(1, {slots, samples, in});
      const Tensor weight = bed.parameter(2, {slots, in, out}),
                   bias = bed.parameter(3, {slots, out});
      const Tensor y = bed.activation(4, {samples, slots, out});
      contextual_linear_forward(bed.exec, e, weight, bias, y);
      const Tensor dy = bed.activation(5, {samples, slots, out});
      const Tensor de = bed.activation(6, {slots, samples, in});
      const Tensor dweight = bed.parameter(7, {slots, in, out});
      const Tensor dbias = bed.parameter(8, {slots, out});
      contextual_linear_backward(bed.exec, dy, e, weight, de, dweight, dbias);
      return {{"y", false, bed.values(y)},
              {"de", true, bed.values(de)},
              {"dweight", true, bed.values(dweight)},
              {"dbias", true, bed.values(dbias)}};
    });
  }
}

TEST_F(GpuGemmTest, DoubleIsRefused) {
  ModeBed bed(Device::cuda(), Precision::kF64);
  const Tensor x = bed.activation(1, {4, 4});
  EXPECT_THROW(gemm(bed.exec, Trans::kNo, x, Trans::kNo, x, bed.activation(2, {4, 4})), Error);
}

}  // namespace
}  // namespace segue::ops
