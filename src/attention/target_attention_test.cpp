#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/hstu_attention.h"
#include "ops/gemm.h"
#include "ops/test_util.h"

namespace segue::attention {
namespace {

using ops::Trans;
using ops::test::TestBed;

struct Case {
  std::string name;
  std::vector<int64_t> lengths;
  std::vector<int64_t> targets;
  HstuMask mask;
  int64_t heads = 2;
  int64_t qk_dim = 3;
  int64_t v_dim = 4;
  int64_t dim = 6;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// h, the projections of keys and values, the queries of all rows, and da, the gradient of
/// attention at the target rows: all that both ways are computed from.
struct Problem {
  Problem(TestBed& test_bed, const Case& test_case) : bed(test_bed), c(test_case) {
    int64_t longest = 1;
    for (size_t b = 0; b < c.lengths.size(); ++b) {
      const int64_t n = c.lengths[b];
      for (int64_t t = n - c.targets[b]; t < n; ++t) target_rows.push_back(offsets.back() + t);
      offsets.push_back(offsets.back() + n);
      longest = std::max(longest, n);
    }
    rows = offsets.back();
    targets = static_cast<int64_t>(target_rows.size());
    alpha = 2 / std::sqrt(static_cast<double>(c.qk_dim));
    scale = 1.0 / static_cast<double>(longest);
    // Rows of h with a gap between them.
    h = bed.random(1, {rows, c.dim + 3}).columns(0, c.dim);
    w_k = bed.random(2, {c.dim, c.heads * c.qk_dim});
    b_k = bed.random(3, {1, c.heads * c.qk_dim});
    w_v = bed.random(4, {c.dim, c.heads * c.v_dim});
    b_v = bed.random(5, {1, c.heads * c.v_dim});
    q = bed.random(6, {rows, c.heads * c.qk_dim}, 2);
    da = bed.random(7, {targets, c.heads * c.v_dim});
  }

  Tensor make(std::initializer_list<int64_t> shape) { return bed.zeros(bed.exec.dtype(), shape); }

  TestBed& bed;
  const Case& c;
  std::vector<int64_t> offsets{0};
  std::vector<int64_t> target_rows;
  int64_t rows = 0, targets = 0;
  double alpha = 0, scale = 0;
  Tensor h, w_k, b_k, w_v, b_v, q, da;
};

/// What a layer wants to know: attention at the target rows and all gradients.
struct Result {
  Tensor a;           // [targets, heads * v_dim]
  Tensor dq;          // [targets, heads * qk_dim]
  Tensor dh;          // [rows, dim]
  Tensor dw_k, db_k;  // [dim, heads * qk_dim], [1, heads * qk_dim]
  Tensor dw_v, db_v;  // [dim, heads * v_dim], [1, heads * v_dim]
};

void copy_row(const Tensor& to, int64_t to_row, const Tensor& from, int64_t from_row) {
  for (int64_t d = 0; d < from.size(1); ++d)
    to.row<double>(to_row)[d] = from.row<double>(from_row)[d];
}

/// Keys and values of every row, attention of every row, and only then the target rows.
Result the_long_way(Problem& p) {
  const Exec& exec = p.bed.exec;
  const int64_t heads = p.c.heads;
  const int64_t qk = heads * p.c.qk_dim;
  const int64_t width = heads * p.c.v_dim;
  const Tensor k = p.make({p.rows, qk});
  const Tensor v = p.make({p.rows, width});
  ops::gemm(exec, Trans::kNo, p.h, Trans::kNo, p.w_k, k, {.bias = p.b_k.reshape({qk})});
  ops::gemm(exec, Trans::kNo, p.h, Trans::kNo, p.w_v, v, {.bias = p.b_v.reshape({width})});
  HstuAttentionParams params;
  params.q = p.q.split_columns(heads);
  params.k = k.split_columns(heads);
  params.v = v.split_columns(heads);
  params.offsets = p.offsets;
  params.num_targets = p.c.targets;
  params.mask = p.c.mask;
  params.alpha = p.alpha;
  params.scale = p.scale;
  const Tensor o = p.make({p.rows, width});
  hstu_attention_forward(exec, params, o.split_columns(heads));

  const Tensor grad_o = p.make({p.rows, width});
  for (int64_t t = 0; t < p.targets; ++t) {
    copy_row(grad_o, p.target_rows[static_cast<size_t>(t)], p.da, t);
  }
  const Tensor dq = p.make({p.rows, qk});
  const Tensor dk = p.make({p.rows, qk});
  const Tensor dv = p.make({p.rows, width});
  hstu_attention_backward(exec, params, grad_o.split_columns(heads), dq.split_columns(heads),
                          dk.split_columns(heads), dv.split_columns(heads));

  Result r{p.make({p.targets, width}), p.make({p.targets, qk}), p.make({p.rows, p.c.dim}),
           p.make({p.c.dim, qk}),      p.make({1, qk}),         p.make({p.c.dim, width}),
           p.make({1, width})};
  for (int64_t t = 0; t < p.targets; ++t) {
    copy_row(r.a, t, o, p.target_rows[static_cast<size_t>(t)]);
    copy_row(r.dq, t, dq, p.target_rows[static_cast<size_t>(t)]);
  }
  ops::gemm(exec, Trans::kNo, dk, Trans::kYes, p.w_k, r.dh);
  ops::gemm(exec, Trans::kNo, dv, Trans::kYes, p.w_v, r.dh, {.accumulate = true});
  ops::gemm(exec, Trans::kYes, p.h, Trans::kNo, dk, r.dw_k);
  ops::gemm(exec, Trans::kYes, p.h, Trans::kNo, dv, r.dw_v);
  ops::column_sum(exec, dk, r.db_k.reshape({qk}));
  ops::column_sum(exec, dv, r.db_v.reshape({width}));
  return r;
}

/// [targets, heads, dim] as the [targets, dim] of one head.
Tensor of_head(const Tensor& t, int64_t head) {
  return t.reshape({t.size(0), t.size(1) * t.size(2)}).columns(head * t.size(2), t.size(2));
}

/// Without keys and values, as the last layer of a model does it.
Result the_short_way(Problem& p) {
  const Exec& exec = p.bed.exec;
  const int64_t heads = p.c.heads;
  const int64_t dim = p.c.dim;
  const int64_t qk = heads * p.c.qk_dim;
  const int64_t width = heads * p.c.v_dim;
  const auto k_head = [&](const Tensor& t, int64_t g) {
    return t.columns(g * p.c.qk_dim, p.c.qk_dim);
  };
  const auto v_head = [&](const Tensor& t, int64_t g) {
    return t.columns(g * p.c.v_dim, p.c.v_dim);
  };

  const Tensor q = p.make({p.targets, qk});
  for (int64_t t = 0; t < p.targets; ++t) {
    copy_row(q, t, p.q, p.target_rows[static_cast<size_t>(t)]);
  }
  for (double& x : q.span<double>()) x *= p.alpha;

  TargetAttentionParams params;
  params.h = p.h;
  params.offsets = p.offsets;
  params.num_targets = p.c.targets;
  params.mask = p.c.mask;
  params.key_query = p.make({p.targets, heads, dim});
  params.key_bias = p.make({p.targets, heads});
  params.scale = p.scale;
  for (int64_t g = 0; g < heads; ++g) {
    ops::gemm(exec, Trans::kNo, k_head(q, g), Trans::kYes, k_head(p.w_k, g),
              of_head(params.key_query, g));
    ops::gemm(exec, Trans::kNo, k_head(q, g), Trans::kYes, k_head(p.b_k, g),
              params.key_bias.columns(g, 1));
  }
  const Tensor z = p.make({p.targets, heads, dim});
  const Tensor p_sum = p.make({p.targets, heads});
  target_attention_forward(exec, params, z, p_sum);

  const Tensor dz = p.make({p.targets, heads, dim});
  const Tensor dp_sum = p.make({p.targets, heads});
  for (int64_t g = 0; g < heads; ++g) {
    ops::gemm(exec, Trans::kNo, v_head(p.da, g), Trans::kYes, v_head(p.w_v, g), of_head(dz, g));
    ops::gemm(exec, Trans::kNo, v_head(p.da, g), Trans::kYes, v_head(p.b_v, g),
              dp_sum.columns(g, 1));
  }
  Result r{p.make({p.targets, width}), p.make({p.targets, qk}), p.make({p.rows, dim}),
           p.make({dim, qk}),          p.make({1, qk}),         p.make({dim, width}),
           p.make({1, width})};
  const Tensor dkey_query = p.make({p.targets, heads, dim});
  const Tensor dkey_bias = p.make({p.targets, heads});
  for (double& x : r.dh.span<double>()) x = 99;  // must be overwritten
  target_attention_backward(exec, params, dz, dp_sum, r.dh, dkey_query, dkey_bias);

  for (int64_t g = 0; g < heads; ++g) {
    const auto sum_column = p_sum.columns(g, 1);
    const auto bias_column = dkey_bias.columns(g, 1);
    ops::gemm(exec, Trans::kNo, of_head(z, g), Trans::kNo, v_head(p.w_v, g), v_head(r.a, g));
    ops::gemm(exec, Trans::kNo, sum_column, Trans::kNo, v_head(p.b_v, g), v_head(r.a, g),
              {.accumulate = true});
    ops::gemm(exec, Trans::kYes, of_head(z, g), Trans::kNo, v_head(p.da, g), v_head(r.dw_v, g));
    ops::gemm(exec, Trans::kYes, sum_column, Trans::kNo, v_head(p.da, g), v_head(r.db_v, g));
    ops::gemm(exec, Trans::kNo, of_head(dkey_query, g), Trans::kNo, k_head(p.w_k, g),
              k_head(r.dq, g));
    ops::gemm(exec, Trans::kNo, bias_column, Trans::kNo, k_head(p.b_k, g), k_head(r.dq, g),
              {.accumulate = true});
    ops::gemm(exec, Trans::kYes, of_head(dkey_query, g), Trans::kNo, k_head(q, g),
              k_head(r.dw_k, g));
    ops::gemm(exec, Trans::kYes, bias_column, Trans::kNo, k_head(q, g), k_head(r.db_k, g));
  }
  for (double& x : r.dq.span<double>()) x *= p.alpha;
  return r;
}

void expect_equal(const Tensor& actual, const Tensor& expected, const char* what) {
  const auto x = actual.span<double>();
  const auto y = expected.span<double>();
  ASSERT_EQ(x.size(), y.size());
  double largest = 1e-30;
  for (const double value : y) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(x[i], y[i], 1e-10 * largest) << what << " element " << i;
  }
}

class TargetAttentionCase : public testing::TestWithParam<Case> {};

TEST_P(TargetAttentionCase, EqualsAttentionOnExplicitKeysAndValues) {
  TestBed bed(Precision::kF64);
  Problem problem(bed, GetParam());
  const Result expected = the_long_way(problem);
  const Result actual = the_short_way(problem);
  expect_equal(actual.a, expected.a, "attention");
  expect_equal(actual.dq, expected.dq, "dq");
  expect_equal(actual.dh, expected.dh, "dh");
  expect_equal(actual.dw_k, expected.dw_k, "dW_k");
  expect_equal(actual.db_k, expected.db_k, "db_k");
  expect_equal(actual.dw_v, expected.dw_v, "dW_v");
  expect_equal(actual.db_v, expected.db_v, "db_v");
}

INSTANTIATE_TEST_SUITE_P(
    Masks, TargetAttentionCase,
    testing::Values(Case{"one_target", {20, 1, 7, 64}, {1, 1, 1, 1}, {}},
                    Case{"targets", {20, 0, 7, 64, 3}, {4, 0, 7, 1, 0}, {}},
                    Case{"context", {20, 4, 3, 64}, {2, 1, 2, 3}, {.contextual_len = 3}},
                    Case{"window", {20, 4, 30}, {2, 1, 3}, {.window = 4, .min_full = 2}},
                    Case{"context_and_window", {20, 4, 30}, {2, 1, 3}, {2, 4, 1, 1}},
                    Case{"windowed_targets", {20, 4, 30}, {2, 1, 3}, {.window = 4}},
                    Case{"semilocal", {20, 4, 30}, {2, 1, 3}, {2, 4, 0, 1, 5}},
                    Case{"long_semilocal", {1300}, {2}, {0, 100, 0, 1, 60}, 2, 2, 2, 4},
                    Case{"one_head", {20, 4}, {2, 1}, {}, 1, 4, 2, 5},
                    Case{"many_targets", {100, 70}, {80, 70}, {}, 3, 2, 2, 4},
                    Case{"many_heads", {12}, {3}, {}, 70, 1, 1, 3},
                    Case{"long_history", {1100, 513, 512}, {40, 1, 2}, {}, 2, 2, 2, 4},
                    Case{"nothing", {0, 0}, {0, 0}, {}}),
    [](const auto& test) { return test.param.name; });

TEST(TargetAttention, FloatIsNearDouble) {
  const Case c{"float", {300, 0, 40, 700}, {3, 0, 1, 20}, {.contextual_len = 5}, 4, 0, 0, 16};
  const int64_t rows = 1040;
  const int64_t targets = 24;
  const std::vector<int64_t> offsets{0, 300, 300, 340, 1040};
  struct Tensors {
    Tensor z, p_sum, dh, dkey_query, dkey_bias;
  };
  const auto run = [&](TestBed& bed, const TestBed& source) {
    // The same numbers in both types: those that a float can hold.
    const auto input = [&](uint64_t seed, std::initializer_list<int64_t> shape) {
      const Tensor t = bed.zeros(bed.exec.dtype(), shape);
      dispatch_real(t.dtype, [&](auto zero) {
        int64_t i = 0;
        for (auto& x : t.span<decltype(zero)>()) {
          x = static_cast<decltype(zero)>(static_cast<float>(source.number(seed, i++)));
        }
      });
      return t;
    };
    TargetAttentionParams p;
    p.h = input(1, {rows, c.dim});
    p.offsets = offsets;
    p.num_targets = c.targets;
    p.mask = c.mask;
    p.key_query = input(2, {targets, c.heads, c.dim});
    p.key_bias = input(3, {targets, c.heads});
    p.scale = 1.0 / 512;
    const auto out = [&](std::initializer_list<int64_t> shape) {
      return bed.zeros(bed.exec.dtype(), shape);
    };
    const Tensors r{out({targets, c.heads, c.dim}), out({targets, c.heads}), out({rows, c.dim}),
                    out({targets, c.heads, c.dim}), out({targets, c.heads})};
    target_attention_forward(bed.exec, p, r.z, r.p_sum);
    target_attention_backward(bed.exec, p, input(4, {targets, c.heads, c.dim}),
                              input(5, {targets, c.heads}), r.dh, r.dkey_query, r.dkey_bias);
    return r;
  };
  TestBed wide(Precision::kF64);
  const Tensors expected = run(wide, wide);
  const double tolerance =
      4 * double{std::numeric_limits<float>::epsilon()} * std::sqrt(700.0);  // sums of 700 terms
  TestBed bed(Precision::kF32);
  const Tensors actual = run(bed, wide);
  const auto check = [&](const Tensor& a, const Tensor& b, const char* what) {
    const auto x = a.span<float>();
    const auto y = b.span<double>();
    double largest = 0;
    double difference = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      largest = std::max(largest, std::abs(y[i]));
      difference = std::max(difference, std::abs(double{x[i]} - y[i]));
    }
    EXPECT_LE(difference, tolerance * largest) << what;
  };
  check(actual.z, expected.z, "z");
  check(actual.p_sum, expected.p_sum, "p_sum");
  check(actual.dh, expected.dh, "dh");
  check(actual.dkey_query, expected.dkey_query, "dkey_query");
  check(actual.dkey_bias, expected.dkey_bias, "dkey_bias");

  ops::test::expect_independent_of_threads([&] {
    const Tensors r = run(bed, wide);
    std::vector<uint8_t> bytes;
    for (const Tensor& t : {r.z, r.p_sum, r.dh, r.dkey_query, r.dkey_bias}) {
      const std::vector<uint8_t> more = ops::test::bytes_of(t);
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    return bytes;
  });
}

}  // namespace
}  // namespace segue::attention
