#include "ops/assemble.h"
#include "ops/contextual.h"
#include "ops/gpu_test_util.h"
#include "ops/rows.h"

namespace segue::ops {
namespace {

using test::expect_equal_to_cpu;
using test::expect_like_cpu;
using test::ModeBed;
using test::Outputs;
using GpuRowsTest = test::GpuTest;
using GpuAssembleTest = test::GpuTest;
using GpuContextualTest = test::GpuTest;

/// n indices in [-1, rows); `hot` of 4 fall on row 1.
std::vector<int32_t> indices(uint64_t seed, int64_t n, int64_t rows, uint64_t hot = 0) {
  std::vector<int32_t> index;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t bits = base::splitmix64(seed + static_cast<uint64_t>(i));
    const auto random = static_cast<int32_t>((bits >> 8) % static_cast<uint64_t>(rows + 1)) - 1;
    index.push_back(bits % 4 < hot ? 1 : random);
  }
  return index;
}

TEST_F(GpuRowsTest, GatherCopiesRows) {
  for (const int64_t columns : {512, 24, 7}) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      expect_equal_to_cpu(
          [&](ModeBed& bed) -> Outputs {
            const std::vector<int32_t> index = indices(3, 300, 40);
            const Tensor from = bed.activation(1, {40, 2 * columns}).columns(columns, columns);
            const Tensor to = bed.activation(2, {300, columns});
            gather_rows(bed.exec, from, bed.ints(index), to);
            const Tensor same = bed.activation(4, {300, columns});
            gather_rows(bed.exec, from, bed.longs({index.begin(), index.end()}), same);
            const Tensor none = bed.activation(5, {0, columns});
            gather_rows(bed.exec, from, bed.ints({}), none);
            return {{"i32", false, bed.values(to)}, {"i64", false, bed.values(same)}};
          },
          precision);
    }
  }
}

TEST_F(GpuRowsTest, ScatterCopiesRows) {
  for (const int64_t columns : {512, 24, 7, 1}) {
    expect_equal_to_cpu(
        [&](ModeBed& bed) -> Outputs {
          std::vector<int64_t> index;
          for (int64_t i = 0; i < 300; ++i) index.push_back(i * 7 % 400);
          const Tensor from = bed.parameter(1, {300, columns});
          const Tensor to = bed.parameter(2, {400, columns});
          scatter_rows(bed.exec, from, bed.longs(index), to);
          const Tensor wide = bed.parameter(3, {400, 2 * columns});
          scatter_rows(bed.exec, from, bed.longs(index), wide.columns(columns, columns));
          scatter_rows(bed.exec, from.rows(0, 0), bed.longs({}), to);
          return {{"whole", false, bed.values(to)}, {"columns", false, bed.values(wide)}};
        },
        Precision::kF32);
  }
}

/// Few and many destinations, all items on one, lengths around those of the chunks.
TEST_F(GpuRowsTest, SegmentSum) {
  struct Sum {
    int64_t n, rows, columns;
    uint64_t hot;
  };
  for (const Sum s : {Sum{0, 5, 64, 0}, Sum{1, 2, 64, 0}, Sum{16, 3, 512, 4},
                      Sum{1000, 300, 512, 1}, Sum{3000, 9, 96, 0}, Sum{20000, 2000, 64, 2},
                      Sum{20000, 2, 40, 4}, Sum{500, 50, 37, 1}, Sum{400, 30, 1032, 1}}) {
    SCOPED_TRACE(testing::Message() << s.n << " items, " << s.rows << " rows, hot " << s.hot);
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const std::vector<int32_t> index = indices(s.columns, s.n, s.rows, s.hot);
      const Tensor from = bed.activation(1, {s.n, s.columns + 8}).columns(8, s.columns);
      const Tensor to = bed.parameter(2, {s.rows, s.columns});
      segment_sum(bed.exec, from, bed.ints(index), to, 0.5);
      return {{"sum", true, bed.values(to)}};
    });
  }
}

TEST_F(GpuRowsTest, ElementwiseIsBitEqual) {
  for (const bool strided : {false, true}) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      expect_equal_to_cpu(
          [&](ModeBed& bed) -> Outputs {
            const auto matrix = [&](uint64_t seed) {
              const Tensor wide = bed.activation(seed, {50, 67});
              return strided ? wide.columns(2, 64) : wide;
            };
            const Tensor a = matrix(1), b = matrix(2);
            const Tensor product = matrix(3), sum = matrix(4), scaled = matrix(5), relu = matrix(6);
            multiply_forward(bed.exec, a, b, product);
            add(bed.exec, a, b, sum);
            scale(bed.exec, a, 0.37, scaled);
            relu_forward(bed.exec, a, relu);
            const Tensor da = matrix(7), db = matrix(8), dx = matrix(9), half = matrix(10);
            multiply_backward(bed.exec, sum, a, b, da, db);
            relu_backward(bed.exec, b, a, dx);
            round_rows_to_f16(bed.exec, half);
            const Tensor parameter = bed.parameter(11, {7, 9});
            round_rows_to_bf16(bed.exec, parameter);
            return {{"product", false, bed.values(product)},
                    {"sum", false, bed.values(sum)},
                    {"scaled", false, bed.values(scaled)},
                    {"relu", false, bed.values(relu)},
                    {"da", false, bed.values(da)},
                    {"db", false, bed.values(db)},
                    {"dx", false, bed.values(dx)},
                    {"half", false, bed.values(half)},
                    {"rounded", false, bed.values(parameter)}};
          },
          precision);
    }
  }
}

TEST_F(GpuRowsTest, ConvertRoundsToNearest) {
  ModeBed bed(Device::cuda(), Precision::kF32);
  const Tensor from = bed.parameter(1, {30, 24});
  const Tensor to = bed.exec.arena->tensor(DType::kBf16, {30, 24});
  convert(bed.exec, from, to);
  const std::vector<double> exact = bed.values(from), rounded = bed.values(to);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(rounded[i], static_cast<double>(round_to_bf16(static_cast<float>(exact[i]))));
  }
}

struct AssembleShape {
  int64_t tokens, dim;
  float dropout;
  bool actions, positions, times, context;
  int64_t codes = 9;  // of actions
};

struct Assembled {
  AssembleParams p;
  int64_t content_rows = 30, context_rows = 11, positions = 50, times = 21;
};

Assembled assembled(ModeBed& bed, const AssembleShape& s) {
  Assembled a;
  AssembleParams& p = a.p;
  if (!s.context) a.context_rows = 0;
  p.content = bed.activation(1, {a.content_rows, s.dim});
  if (s.context) p.context = bed.activation(2, {a.context_rows, s.dim});
  p.row_index = bed.ints(indices(11, s.tokens, a.content_rows + a.context_rows, 1));
  if (s.actions) {
    p.action_rows = bed.activation(3, {s.codes, s.dim});
    p.action_index = bed.ints(indices(12, s.tokens, s.codes));
  }
  p.scale = std::sqrt(static_cast<double>(s.dim));
  if (s.positions) {
    p.position_table = bed.parameter(4, {a.positions, s.dim});
    p.position_index = bed.ints(indices(13, s.tokens, a.positions));
  }
  if (s.times) {
    p.time_table = bed.parameter(5, {a.times, s.dim});
    p.time_index = bed.ints(indices(14, s.tokens, a.times, 2));
  }
  std::vector<int32_t> sample, token;
  for (int32_t t = 0; t < s.tokens; ++t) {
    sample.push_back(t / 100);
    token.push_back(t % 100);
  }
  p.dropout.p = s.dropout;
  p.dropout.site = 3;
  p.dropout.rows = {bed.ints(sample), bed.ints(token)};
  return a;
}

/// Room for the bits of dropout, where forward may leave them.
void keep_bits(ModeBed& bed, const AssembleShape& s, AssembleParams& p) {
  const int64_t bytes = assemble_keep_bytes(bed.exec, p, s.dim);
  if (bytes > 0) p.keep = bed.exec.arena->tensor(DType::kU8, {s.tokens, bytes});
}

// All of dropout's corners are among them: half and more is dropped, nothing is, everything is.
const std::vector<AssembleShape> kAssembleShapes = {
    {1000, 512, 0.2f, true, true, true, true},       {700, 512, 0, true, true, true, true},
    {30000, 64, 0.2f, true, true, true, true},       {9000, 264, 0.3f, true, true, true, false},
    {300, 64, 0.2f, false, true, false, true},       {300, 37, 0.2f, true, false, true, false},
    {50, 24, 0, false, false, false, false},         {0, 64, 0.2f, true, true, true, true},
    {300, 256, 0.7f, true, true, true, true},        {300, 64, 0.5f, true, true, true, true},
    {300, 64, 1e-6f, true, true, true, true},        {300, 72, 0.99999994f, true, true, true, true},
    {300, 520, 0.1f, true, true, true, true},        {300, 45, 0.7f, true, true, true, true},
    {5000, 128, 0.2f, true, false, false, true, 13}, {900, 512, 0.2f, true, true, true, true, 20}};

TEST_F(GpuAssembleTest, ForwardIsBitEqual) {
  for (const AssembleShape& s : kAssembleShapes) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      expect_equal_to_cpu(
          [&](ModeBed& bed) -> Outputs {
            const Tensor x = bed.activation(21, {s.tokens, s.dim});
            AssembleParams p = assembled(bed, s).p;
            assemble_forward(bed.exec, p, x);
            const Tensor same = bed.activation(22, {s.tokens, s.dim});
            keep_bits(bed, s, p);
            assemble_forward(bed.exec, p, same);
            return {{"x", false, bed.values(x)}, {"bits kept", false, bed.values(same)}};
          },
          precision);
    }
  }
}

TEST_F(GpuAssembleTest, NormInTheSamePassChangesNothing) {
  std::vector<AssembleShape> shapes = kAssembleShapes;
  shapes.push_back({40, 1032, 0.2f, true, true, true, true});  // above 512 in two passes
  for (const AssembleShape& s : shapes) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      const auto run = [&](bool together) {
        return test::run_in(Device::cuda(), precision, [&](ModeBed& bed) -> Outputs {
          const AssembleParams p = assembled(bed, s).p;
          const Tensor x = bed.activation(21, {s.tokens, s.dim});
          FollowingNorm norm;
          norm.params.weight = bed.parameter(31, {s.dim});
          norm.params.bias = bed.parameter(32, {s.dim});
          norm.params.round_weights = true;
          norm.y = bed.activation(33, {s.tokens, s.dim});
          norm.stats = make_norm_stats(bed.exec, s.tokens);
          assemble_forward(bed.exec, p, x, together ? norm : FollowingNorm{});
          if (!together) norm_forward(bed.exec, norm.params, x, norm.y, norm.stats);
          return {{"x", false, bed.values(x)},
                  {"norm", false, bed.values(norm.y)},
                  {"mean", false, bed.values(norm.stats.mean)},
                  {"rstd", false, bed.values(norm.stats.rstd)}};
        });
      };
      const Outputs together = run(true), apart = run(false);
      for (size_t i = 0; i < apart.size(); ++i) {
        EXPECT_EQ(together[i].values, apart[i].values)
            << apart[i].name << " of " << s.dim << ", p " << s.dropout;
      }
    }
  }
}

Outputs assemble_gradients(ModeBed& bed, const AssembleShape& s, bool keep) {
  Assembled a = assembled(bed, s);
  if (keep) {
    keep_bits(bed, s, a.p);
    assemble_forward(bed.exec, a.p, bed.activation(20, {s.tokens, s.dim}));
  }
  const Tensor dx = bed.activation(21, {s.tokens, s.dim});
  AssembleGradients g;
  g.content = bed.parameter(22, {a.content_rows, s.dim});
  if (s.context) g.context = bed.parameter(23, {a.context_rows, s.dim});
  if (s.actions) g.action = bed.parameter(24, {s.codes, s.dim});
  if (s.positions) g.position = bed.parameter(25, {a.positions, s.dim});
  if (s.times) g.time = bed.parameter(26, {a.times, s.dim});
  assemble_backward(bed.exec, a.p, dx, g);
  Outputs out = {{"content", true, bed.values(g.content)}};
  if (g.context) out.push_back({"context", true, bed.values(g.context)});
  if (g.action) out.push_back({"action", true, bed.values(g.action)});
  if (g.position) out.push_back({"position", true, bed.values(g.position)});
  if (g.time) out.push_back({"time", true, bed.values(g.time)});
  return out;
}

TEST_F(GpuAssembleTest, Backward) {
  for (const AssembleShape& s : kAssembleShapes) {
    SCOPED_TRACE(testing::Message() << s.tokens << " tokens of " << s.dim << ", p " << s.dropout);
    expect_like_cpu([&](ModeBed& bed) { return assemble_gradients(bed, s, true); });
  }
}

TEST_F(GpuAssembleTest, KeptBitsChangeNothing) {
  for (const AssembleShape& s : kAssembleShapes) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      const auto run = [&](bool keep) {
        return test::run_in(Device::cuda(), precision,
                            [&](ModeBed& bed) { return assemble_gradients(bed, s, keep); });
      };
      const Outputs kept = run(true), drawn = run(false);
      for (size_t i = 0; i < kept.size(); ++i) {
        EXPECT_EQ(kept[i].values, drawn[i].values)
            << kept[i].name << " of " << s.dim << ", p " << s.dropout;
      }
    }
  }
}

TEST_F(GpuContextualTest, ActionCodes) {
  for (const int64_t n : {0, 9, 3000}) {
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      std::vector<int32_t> codes;
      for (int64_t i = 0; i < n; ++i) codes.push_back(static_cast<int32_t>(i * 7 % 9));
      const Tensor code = bed.ints(codes);
      const Tensor y = bed.activation(3, {n, 24});
      action_encode_forward(bed.exec, bed.parameter(1, {3, 8}), bed.parameter(2, {1, 24}), code, y);
      const Tensor dtable = bed.parameter(4, {3, 8}), dtarget = bed.parameter(5, {1, 24});
      action_encode_backward(bed.exec, bed.activation(6, {n, 24}), code, dtable, dtarget);
      return {{"y", false, bed.values(y)},
              {"dtable", true, bed.values(dtable)},
              {"dtarget", true, bed.values(dtarget)}};
    });
  }
}

TEST_F(GpuContextualTest, CyclicTimeFeatures) {
  const std::vector<double> unit = {3600, 86400}, count = {24, 7};
  for (const int64_t n : {0, 500}) {
    // In double the features are the float ones of the CPU: the bound allows 8 ulp of cos and sin.
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      std::vector<int64_t> times;
      for (int64_t i = 0; i < n; ++i)
        times.push_back((i % 2 == 0 ? 1700000000 : -1700000000) + i * 7919);
      CyclicParams p;
      p.unit_seconds = unit;
      p.units_per_period = count;
      p.pi = 3.14;
      const Tensor out = bed.activation(1, {n, 9});
      cyclic_time_features(bed.exec, p, bed.longs(times), out.columns(5, 4));
      return {{"features and what lies beside them", false, bed.values(out)}};
    });
  }
}

}  // namespace
}  // namespace segue::ops
