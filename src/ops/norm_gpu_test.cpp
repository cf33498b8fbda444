#include "ops/gate.h"
#include "ops/gemm.h"
#include "ops/gpu_test_util.h"
#include "ops/norm.h"

namespace segue::ops {
namespace {

using test::expect_like_cpu;
using test::ModeBed;
using test::Outputs;
using GpuNormTest = test::GpuTest;
using GpuGateTest = test::GpuTest;

struct Shape {
  int64_t rows, columns, groups = 1;
  bool weight_per_group = groups > 1;
};

NormParams norm_params(ModeBed& bed, const Shape& s, bool round_weights) {
  NormParams p;
  const int64_t count = s.weight_per_group ? s.groups : s.columns;
  p.weight = bed.parameter(101, {count});
  p.bias = bed.parameter(102, {count});
  p.groups = s.groups;
  p.round_weights = round_weights;
  return p;
}

// One of each path: a lane holds 8, 16 or 32 columns and shares a row with 31, 63, 127 or 255
// others, or single columns of odd and unaligned rows.
const std::vector<Shape> kShapes = {{1, 8},        {70, 256},         {5000, 512}, {9, 1000},
                                    {33, 37},      {20, 1200},        {0, 512},    {300, 512, 4},
                                    {17, 60, 5},   {40, 64, 1, true}, {700, 1024}, {600, 2048},
                                    {20, 1201},    {300, 2048, 4},    {300, 3000}, {200, 4096},
                                    {90, 4096, 8}, {60, 8192},        {20, 4099}};

TEST_F(GpuNormTest, LayerAndGroupNorm) {
  for (const Shape& s : kShapes) {
    for (const bool with_residual : {false, true}) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns << " / " << s.groups);
      expect_like_cpu([&](ModeBed& bed) -> Outputs {
        const NormParams p = norm_params(bed, s, with_residual);
        const Tensor x =
            bed.activation(1, {s.rows, 2 * s.columns}, 3).columns(s.columns, s.columns);
        const Tensor y = bed.activation(2, {s.rows, s.columns});
        const NormStats stats = make_norm_stats(bed.exec, s.rows, s.groups);
        const Tensor addend = bed.activation(7, {s.rows, s.columns});
        norm_forward(bed.exec, p, x, y, stats, with_residual ? addend : Tensor());
        const Tensor dy = bed.activation(3, {s.rows, s.columns});
        const Tensor residual = with_residual ? bed.activation(4, {s.rows, s.columns}) : Tensor();
        const Tensor dx = with_residual ? residual : dy;  // in place
        const Tensor dweight = bed.parameter(5, {p.weight.elements()});
        const Tensor dbias = bed.parameter(6, {p.weight.elements()});
        const Tensor input_bias = bed.parameter(8, {s.columns});
        norm_backward(bed.exec, p, dy, x, stats, residual, dx,
                      {dweight, dbias, with_residual ? input_bias : Tensor()});
        return {{"y", false, bed.values(y)},
                {"mean", false, bed.values(stats.mean)},
                {"rstd", false, bed.values(stats.rstd)},
                {"dx", true, bed.values(dx)},
                {"dweight", true, bed.values(dweight)},
                {"dbias", true, bed.values(dbias)},
                {"input bias", true, bed.values(input_bias)}};
      });
    }
  }
}

TEST_F(GpuNormTest, SwishNorm) {
  for (const Shape& s : kShapes) {
    if (s.weight_per_group) continue;
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns);
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const NormParams p = norm_params(bed, s, false);
      const Tensor x = bed.activation(1, {s.rows, s.columns}, 3);
      const Tensor y = bed.activation(2, {s.rows, s.columns});
      const NormStats stats = make_norm_stats(bed.exec, s.rows);
      swish_norm_forward(bed.exec, p, x, y, stats);
      const Tensor dy = bed.activation(3, {s.rows, s.columns});
      const Tensor dx = bed.activation(4, {s.rows, s.columns});
      const Tensor dweight = bed.parameter(5, {s.columns}), dbias = bed.parameter(6, {s.columns});
      const Tensor input_bias = bed.parameter(7, {s.columns});
      swish_norm_backward(bed.exec, p, dy, x, stats, dx, {dweight, dbias, input_bias});
      return {{"y", false, bed.values(y)},
              {"dx", true, bed.values(dx)},
              {"dweight", true, bed.values(dweight)},
              {"dbias", true, bed.values(dbias)},
              {"input bias", true, bed.values(input_bias)}};
    });
  }
}

/// Every gate is 1 - 6e-6 or so: a float's difference from 1 has five bits left.
TEST_F(GpuNormTest, SwishNormOfOpenGatesKeepsItsDigits) {
  const Shape s{70, 256};
  const auto run = [&](ModeBed& bed) -> Outputs {
    NormParams p = norm_params(bed, s, false);
    p.bias = bed.parameter(102, {s.columns}, 1, 12);
    const Tensor x = bed.activation(1, {s.rows, s.columns}, 3);
    const NormStats stats = make_norm_stats(bed.exec, s.rows);
    swish_norm_forward(bed.exec, p, x, bed.activation(2, {s.rows, s.columns}), stats);
    const Tensor dy = bed.activation(3, {s.rows, s.columns});
    const Tensor dweight = bed.parameter(5, {s.columns}, 0),
                 dbias = bed.parameter(6, {s.columns}, 0);
    swish_norm_backward(bed.exec, p, dy, x, stats, dy, {dweight, dbias, {}});
    return {{"dweight", true, bed.values(dweight)}, {"dbias", true, bed.values(dbias)}};
  };
  expect_like_cpu(run, Precision::kF32);
}

TEST_F(GpuNormTest, L2Normalize) {
  for (const Shape& s : kShapes) {
    for (const double eps : {1e-6, 100.0}) {  // the second is larger than most rows
      expect_like_cpu([&](ModeBed& bed) -> Outputs {
        const Tensor x = bed.activation(1, {s.rows, s.columns});
        const Tensor y = bed.activation(2, {s.rows, s.columns});
        l2_normalize_forward(bed.exec, x, eps, y);
        const Tensor dy = bed.activation(3, {s.rows, s.columns});
        const Tensor dx = bed.activation(4, {s.rows, s.columns});
        l2_normalize_backward(bed.exec, dy, x, eps, dx);
        return {{"y", false, bed.values(y)}, {"dx", true, bed.values(dx)}};
      });
    }
  }
}

TEST_F(GpuNormTest, RowsThatAreTooWideAreRefused) {
  ModeBed bed(Device::cuda(), Precision::kF32);
  const Tensor x = bed.activation(1, {1, 8200});
  NormParams p = norm_params(bed, {1, 8200}, false);
  EXPECT_THROW(norm_forward(bed.exec, p, x, x, make_norm_stats(bed.exec, 1)), Error);
}

/// u, a, du and da are parts of packed buffers, as in an STU layer.
Outputs run_gate(ModeBed& bed, const Shape& s, bool concat, float dropout, bool keep = true,
                 bool sum_u = true) {
  const int64_t w = s.columns, y_columns = concat ? 3 * w : w;
  const Tensor packed = bed.activation(1, {s.rows, 4 * w}, 4);
  GateParams p;
  p.u = packed.columns(0, w);
  p.a = packed.columns(2 * w, w);
  p.norm = norm_params(bed, s, true);
  p.norm.eps = 1e-6;
  p.concat = concat;
  std::vector<int32_t> sample, token;
  for (int32_t r = 0; r < s.rows; ++r) {
    sample.push_back(r / 3 + 7);
    token.push_back(r % 3);
  }
  p.dropout.p = dropout;
  p.dropout.site = 5;
  p.dropout.rows = {bed.ints(sample), bed.ints(token)};
  const Tensor y = bed.activation(2, {s.rows, y_columns});
  if (const int64_t bytes = gate_keep_bytes(bed.exec, p); keep && bytes > 0) {
    p.keep = bed.exec.arena->tensor(DType::kU8, {s.rows, bytes});
  }
  const NormStats stats = make_norm_stats(bed.exec, s.rows, s.groups);
  gate_forward(bed.exec, p, y, stats);
  const Tensor dy = bed.activation(3, {s.rows, y_columns});
  const Tensor dpacked = bed.activation(4, {s.rows, 4 * w});
  const Tensor dweight = bed.parameter(5, {p.norm.weight.elements()});
  const Tensor dbias = bed.parameter(6, {p.norm.weight.elements()});
  const Tensor u_bias = bed.parameter(7, {w});
  gate_backward(bed.exec, p, stats, dy, dpacked.columns(0, w), dpacked.columns(2 * w, w),
                {dweight, dbias, sum_u ? u_bias : Tensor{}});
  return {{"y", false, bed.values(y)},
          {"du, da and what lies between", true, bed.values(dpacked)},
          {"dweight", true, bed.values(dweight)},
          {"dbias", true, bed.values(dbias)},
          {"bias of u", true, bed.values(u_bias)}};
}

TEST_F(GpuGateTest, ForwardAndBackward) {
  for (const Shape& s :
       {Shape{700, 512}, Shape{33, 128}, Shape{5, 1000}, Shape{19, 37}, Shape{0, 64},
        Shape{300, 512, 4}, Shape{17, 60, 5}, Shape{600, 1024}, Shape{300, 2048}, Shape{400, 4096},
        Shape{30, 4096, 8}, Shape{20, 8192}, Shape{9, 2049}}) {
    for (const bool concat : {true, false}) {
      for (const float dropout : {0.f, 0.3f}) {
        SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns << " / " << s.groups
                                        << (concat ? " concat" : " gated") << " p " << dropout);
        expect_like_cpu([&](ModeBed& bed) { return run_gate(bed, s, concat, dropout); });
      }
    }
  }
}

TEST_F(GpuGateTest, KeptBitsChangeNothing) {
  for (const Shape& s :
       {Shape{300, 512}, Shape{40, 256}, Shape{30, 1024}, Shape{50, 120}, Shape{19, 37},
        Shape{40, 512, 4}, Shape{17, 60, 5}, Shape{40, 2048}, Shape{30, 4096}, Shape{20, 8192}}) {
    for (const bool concat : {true, false}) {
      for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
        const auto run = [&](bool keep) {
          return test::run_in(Device::cuda(), precision,
                              [&](ModeBed& bed) { return run_gate(bed, s, concat, 0.3f, keep); });
        };
        const Outputs kept = run(true), drawn = run(false);
        for (size_t i = 0; i < kept.size(); ++i) {
          EXPECT_EQ(kept[i].values, drawn[i].values) << kept[i].name << " of " << s.columns;
        }
      }
    }
  }
}

/// Of the values as they are stored. A float passes as many additions as a warp has rows, 8 warps
/// and the result.
TEST_F(GpuGateTest, BiasOfUGetsTheSumsOfItsGradient) {
  constexpr int64_t kWarps = 2 * 132 * 8;
  for (const Shape& s : {Shape{9000, 512}, Shape{700, 512}, Shape{19, 37}, Shape{1, 64}}) {
    for (const Precision precision : {Precision::kBf16, Precision::kF32}) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns);
      const auto run = [&](bool sum_u) {
        return test::run_in(Device::cuda(), precision, [&](ModeBed& bed) {
          return run_gate(bed, s, true, 0.3f, true, sum_u);
        });
      };
      const Outputs with = run(true), without = run(false);
      for (size_t i = 0; i + 1 < with.size(); ++i) {
        EXPECT_EQ(with[i].values, without[i].values) << with[i].name;
      }
      const int64_t rows_of_a_warp = s.rows / kWarps + 1;
      const auto additions = static_cast<double>(rows_of_a_warp + 8 + 1);
      for (int64_t j = 0; j < s.columns; ++j) {
        const auto at = static_cast<size_t>(j);
        const double before = without.back().values[at];
        double sum = before, size = std::abs(before);
        for (int64_t r = 0; r < s.rows; ++r) {
          const double du = with[1].values[static_cast<size_t>(r * 4 * s.columns + j)];
          sum += du;
          size += std::abs(du);
        }
        ASSERT_NEAR(with.back().values[at], sum, additions * 0x1p-24 * size) << "column " << j;
      }
    }
  }
}

TEST_F(GpuGateTest, DropsWhatTheCpuDrops) {
  for (const Shape& s : {Shape{100, 512}, Shape{60, 64}, Shape{40, 1000}, Shape{50, 37}}) {
    // The last two drop nothing and everything.
    for (const float p : {0.1f, 0.5f, 0.7f, 0.9999f, 1e-6f, 0.99999994f}) {
      for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
        const auto dropped = [&](Device device) {
          const Outputs outputs = test::run_in(
              device, precision, [&](ModeBed& bed) { return run_gate(bed, s, true, p); });
          std::vector<bool> zeros;
          for (const double y : outputs[0].values) zeros.push_back(y == 0);
          return zeros;
        };
        EXPECT_EQ(dropped(Device::cuda()), dropped(Device::cpu())) << s.columns << ", p " << p;
      }
    }
  }
}

/// As wide as u, v, q and k together of a layer of 1,024, and odd; the gradient lies among others.
TEST_F(GpuGateTest, SiluAndItsBiasOfWideRows) {
  for (const Shape& s : {Shape{9, 37}, Shape{3000, 264}, Shape{700, 1024}, Shape{300, 2048},
                         Shape{257, 3072}, Shape{300, 4096}}) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.columns);
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const Tensor x = bed.activation(1, {s.rows, s.columns}, 4);
      const Tensor y = bed.activation(2, {s.rows, s.columns});
      silu_forward(bed.exec, x, y);
      const Tensor dx = bed.activation(3, {s.rows, 2 * s.columns}).columns(s.columns, s.columns);
      silu_backward(bed.exec, bed.activation(4, {s.rows, s.columns}), x, dx);
      const Tensor bias = bed.parameter(5, {s.columns}), same = bed.parameter(5, {s.columns});
      column_sum(bed.exec, dx, bias);
      const Tensor again = bed.activation(4, {s.rows, s.columns});
      silu_backward(bed.exec, again, x, again, same);
      EXPECT_EQ(bed.values(again), bed.values(dx));
      EXPECT_EQ(bed.values(same), bed.values(bias)) << "sums in the same pass";
      return {{"y", false, bed.values(y)},
              {"dx", true, bed.values(dx)},
              {"bias", true, bed.values(bias)}};
    });
  }
}

/// Most of these numbers are infinite: nothing may become NaN.
TEST_F(GpuGateTest, SiluOfHugeNumbers) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    ModeBed bed(Device::cuda(), precision);
    const Tensor x = bed.activation(1, {10, 64}, 1e40), y = bed.activation(2, {10, 64});
    const Tensor dx = bed.activation(3, {10, 64});
    silu_forward(bed.exec, x, y);
    silu_backward(bed.exec, bed.activation(4, {10, 64}), x, dx);
    const std::vector<double> in = bed.values(x), out = bed.values(y);
    const std::vector<double> gradient = bed.values(dx);
    const std::vector<double> dy = bed.values(bed.activation(4, {10, 64}));
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_GT(std::abs(in[i]), 1000);
      if (in[i] > 0) {
        EXPECT_EQ(out[i], in[i]);
        EXPECT_EQ(gradient[i], dy[i]);
      } else {
        EXPECT_NEAR(out[i], 0, 1e-30);
        EXPECT_NEAR(gradient[i], 0, 1e-30);
      }
    }
  }
}

TEST_F(GpuGateTest, Silu) {
  for (const Shape& s : {Shape{40, 512}, Shape{7, 13}, Shape{0, 8}}) {
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const Tensor x = bed.activation(1, {s.rows, s.columns}, 20);
      const Tensor y = bed.activation(2, {s.rows, s.columns});
      silu_forward(bed.exec, x, y);
      const Tensor dy = bed.activation(3, {s.rows, 2 * s.columns}).columns(s.columns, s.columns);
      silu_backward(bed.exec, dy, x, dy);
      return {{"y", false, bed.values(y)}, {"dx", true, bed.values(dy)}};
    });
  }
}

}  // namespace
}  // namespace segue::ops
