#include "attention/hstu_attention.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/hstu_mask.h"
#include "base/bf16.h"
#include "base/parallel.h"
#include "ops/test_util.h"

namespace segue::attention {
namespace {

using ops::test::TestBed;

// ---- problems
// ------------------------------------------------------------------------------------

struct Case {
  std::string name;
  std::vector<int64_t> lengths;
  std::vector<int64_t> targets;  // empty: none
  HstuMask mask;
  int64_t heads = 2;
  int64_t qk_dim = 8;
  int64_t v_dim = 8;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

constexpr double kUntouched = -77;

/// Inputs and outputs of a case as strided views of packed buffers, with rows before the first
/// sequence and after the last, and columns between the operands, that nobody may write.
class Problem {
 public:
  Problem(TestBed& bed, const Case& c, uint64_t seed = 1) : bed_(bed), case_(c) {
    offsets.push_back(kRowsBefore);
    int64_t longest = 1;
    for (const int64_t n : c.lengths) {
      offsets.push_back(offsets.back() + n);
      longest = std::max(longest, n);
    }
    rows = offsets.back() + 2;
    const int64_t qk = c.heads * c.qk_dim;
    const int64_t v = c.heads * c.v_dim;
    width_ = kPad + v + 2 * qk;
    packed_ = bed.random(seed, {rows, width_});
    params.v = value_part(packed_);
    params.q = query_part(packed_);
    params.k = key_part(packed_);
    grad_o = bed.random(seed + 1, {rows, v}).split_columns(c.heads);
    dbias = bed.zeros(bed.exec.parameter_dtype(), {v + 2 * qk});
    params.offsets = offsets;
    params.num_targets = c.targets;
    params.mask = c.mask;
    // Scores well outside of the linear part of silu.
    params.alpha = 4 / std::sqrt(static_cast<double>(c.qk_dim));
    params.scale = 1.0 / static_cast<double>(longest);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  struct Result {
    Tensor o, grads;  // grads is packed like the input
  };
  Result outputs(DType dtype) {
    Result r{bed_.zeros(dtype, {rows, case_.heads * case_.v_dim}),
             bed_.zeros(dtype, {rows, width_})};
    for (const Tensor& t : {r.o, r.grads}) {
      dispatch_real(dtype, [&](auto zero) {
        for (auto& x : t.span<decltype(zero)>()) x = static_cast<decltype(zero)>(kUntouched);
      });
    }
    return r;
  }
  Result run() {
    const Result r = outputs(bed_.exec.dtype());
    hstu_attention_forward(bed_.exec, params, r.o.split_columns(case_.heads));
    hstu_attention_backward(bed_.exec, params, grad_o, query_part(r.grads), key_part(r.grads),
                            value_part(r.grads), dbias);
    return r;
  }
  Result reference() {
    const Result r = outputs(DType::kF64);
    hstu_attention_reference(params, r.o.split_columns(case_.heads));
    hstu_attention_backward_reference(params, grad_o, query_part(r.grads), key_part(r.grads),
                                      value_part(r.grads));
    return r;
  }

  /// dbias was zero, and has got the sums over the rows of sequences of grads (double).
  void expect_bias(const Tensor& grads) const {
    for (int64_t i = 0; i < dbias.elements(); ++i) {
      double sum = 0, size = 0;
      for (int64_t r = offsets.front(); r < offsets.back(); ++r) {
        const double x = grads.row<double>(r)[kPad + i];
        sum += x;
        size += std::abs(x);
      }
      ASSERT_NEAR(dbias.ptr<double>()[i], sum, 1e-12 * size) << "column " << i;
    }
  }

  Tensor value_part(const Tensor& t) const { return part(t, kPad, case_.v_dim); }
  Tensor query_part(const Tensor& t) const {
    return part(t, kPad + case_.heads * case_.v_dim, case_.qk_dim);
  }
  Tensor key_part(const Tensor& t) const {
    return part(t, kPad + case_.heads * (case_.v_dim + case_.qk_dim), case_.qk_dim);
  }

  std::vector<int64_t> offsets;
  int64_t rows = 0;
  HstuAttentionParams params;
  Tensor grad_o, dbias;

 private:
  static constexpr int64_t kRowsBefore = 3;
  static constexpr int64_t kPad = 5;

  Tensor part(const Tensor& t, int64_t begin, int64_t dim) const {
    return t.columns(begin, case_.heads * dim).split_columns(case_.heads);
  }

  TestBed& bed_;
  const Case& case_;
  Tensor packed_;
  int64_t width_ = 0;
};

/// Largest difference over the largest expected value, element by element of two dense tensors.
double relative_error(const Tensor& actual, const Tensor& expected) {
  return dispatch_real(actual.dtype, [&](auto zero) {
    const auto x = actual.span<decltype(zero)>();
    const auto y = expected.span<double>();
    double difference = 0;
    double largest = 1e-30;
    for (size_t i = 0; i < y.size(); ++i) {
      if (y[i] == kUntouched) {
        EXPECT_EQ(static_cast<double>(x[i]), kUntouched) << "written outside of all sequences";
        continue;
      }
      difference = std::max(difference, std::abs(static_cast<double>(x[i]) - y[i]));
      largest = std::max(largest, std::abs(y[i]));
    }
    return difference / largest;
  });
}

std::vector<Case> cases() {
  // Blocks are 64 queries and 512 keys; a forward task has 512 queries.
  const std::vector<int64_t> edges{0, 1, 2, 63, 64, 65, 0, 127, 128, 129, 200};
  const std::vector<int64_t> edge_targets{0, 1, 2, 1, 0, 65, 0, 3, 70, 1, 150};
  return {
      {"causal", edges, {}, {}},
      {"targets", edges, edge_targets, {}},
      {"groups", edges, edge_targets, {.target_group = 3}, 1, 4, 4},
      {"context", edges, edge_targets, {.contextual_len = 8}},
      {"long_context", edges, edge_targets, {.contextual_len = 70}, 1},
      {"window", edges, edge_targets, {.window = 10}},
      {"window_full", edges, edge_targets, {.window = 65, .min_full = 20}, 1},
      {"semilocal", edges, edge_targets, {.window = 10, .global_prefix = 7}},
      {"semilocal_all", edges, edge_targets, {5, 17, 9, 4, 40}, 1},
      {"everything", edges, edge_targets, {5, 17, 9, 4}, 3, 5, 7},
      {"wide_values", {40, 3, 90}, {1, 1, 1}, {}, 2, 3, 24},
      {"wide_keys", {40, 3, 90}, {1, 1, 1}, {}, 2, 33, 1},
      {"head_128", {70, 130}, {1, 1}, {}, 4, 128, 128},
      {"key_blocks", {511, 512, 513, 1026}, {1, 0, 2, 1}, {}, 1, 4, 4},
      {"key_blocks_context", {511, 1030}, {1, 2}, {.contextual_len = 9}, 1, 4, 4},
      {"key_blocks_window", {1100}, {1}, {.window = 100, .min_full = 30}, 1, 4, 4},
      {"key_blocks_semilocal", {1300}, {1}, {.window = 100, .global_prefix = 60}, 1, 4, 4},
      {"many_targets", {1200}, {1100}, {.target_group = 2}, 1, 4, 4},
      {"nothing", {}, {}, {}},
      {"all_empty", {0, 0}, {0, 0}, {.contextual_len = 3}},
  };
}

class HstuAttentionCase : public testing::TestWithParam<Case> {};

TEST_P(HstuAttentionCase, FloatIsNearTheReference) {
  TestBed bed(Precision::kF32);
  Problem problem(bed, GetParam());
  const int64_t used = bed.exec.arena->used();
  const Problem::Result expected = problem.reference();
  const Problem::Result actual = problem.run();
  int64_t longest = 1;
  for (const int64_t n : GetParam().lengths) longest = std::max(longest, n);
  // Rounding errors of a sum of n terms grow like sqrt(n).
  const double tolerance = 4.0 * static_cast<double>(std::numeric_limits<float>::epsilon()) *
                           std::sqrt(static_cast<double>(longest));
  EXPECT_LE(relative_error(actual.o, expected.o), tolerance);
  EXPECT_LE(relative_error(actual.grads, expected.grads), tolerance);

  // Scratch went back: what is left is the four result tensors.
  const auto padded = [](const Tensor& t) { return (t.bytes() + 255) / 256 * 256; };
  EXPECT_EQ(bed.exec.arena->used() - used,
            padded(actual.o) + padded(actual.grads) + padded(expected.o) + padded(expected.grads));
}

TEST_P(HstuAttentionCase, DoubleEqualsTheReference) {
  TestBed bed(Precision::kF64);
  Problem problem(bed, GetParam(), 5);
  const Problem::Result expected = problem.reference();
  const Problem::Result actual = problem.run();
  EXPECT_LE(relative_error(actual.o, expected.o), 1e-12);
  EXPECT_LE(relative_error(actual.grads, expected.grads), 1e-12);
  problem.expect_bias(expected.grads);
}

INSTANTIATE_TEST_SUITE_P(Shapes, HstuAttentionCase, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

// ---- gradients
// -----------------------------------------------------------------------------------

/// Dense double inputs, so that every element can be moved on its own.
void check_gradients(const Case& c) {
  SCOPED_TRACE(c.name);
  TestBed bed(Precision::kF64, 64 << 20);
  std::vector<int64_t> offsets{0};
  for (const int64_t n : c.lengths) offsets.push_back(offsets.back() + n);
  const int64_t rows = offsets.back();
  HstuAttentionParams p;
  p.q = bed.random(1, {rows, c.heads, c.qk_dim}, 2);
  p.k = bed.random(2, {rows, c.heads, c.qk_dim}, 2);
  p.v = bed.random(3, {rows, c.heads, c.v_dim}, 2);
  p.offsets = offsets;
  p.num_targets = c.targets;
  p.mask = c.mask;
  p.alpha = 1 / std::sqrt(static_cast<double>(c.qk_dim));
  p.scale = 0.25;
  const Tensor grad_o = bed.random(4, {rows, c.heads, c.v_dim});
  const Tensor o = bed.zeros(DType::kF64, {rows, c.heads, c.v_dim});
  const Tensor dq = bed.zeros(DType::kF64, {rows, c.heads, c.qk_dim});
  const Tensor dk = bed.zeros(DType::kF64, {rows, c.heads, c.qk_dim});
  const Tensor dv = bed.zeros(DType::kF64, {rows, c.heads, c.v_dim});
  hstu_attention_backward(bed.exec, p, grad_o, dq, dk, dv);
  const auto loss = [&] {
    hstu_attention_forward(bed.exec, p, o);
    return ops::test::dot(o, grad_o);
  };
  ops::test::expect_gradient(p.q, dq, loss);
  ops::test::expect_gradient(p.k, dk, loss);
  ops::test::expect_gradient(p.v, dv, loss);
}

TEST(HstuAttention, BackwardIsTheDerivativeOfForward) {
  check_gradients({"causal", {4, 0, 1, 5}, {}, {}, 2, 3, 2});
  check_gradients({"targets", {6, 3, 2}, {2, 3, 1}, {.target_group = 2}, 1, 2, 3});
  check_gradients({"context", {7, 2}, {2, 1}, {.contextual_len = 2}, 2, 2, 2});
  check_gradients({"window", {8, 1}, {2, 0}, {1, 2, 1, 1}, 1, 3, 2});
}

// ---- determinism
// ---------------------------------------------------------------------------------

const Case& mixed_case() {
  static const Case kMixed{
      "mixed", {30, 600, 1, 0, 130, 513}, {1, 3, 1, 0, 40, 1}, {6, 50, 10, 2}, 3};
  return kMixed;
}

TEST(HstuAttention, BitsDoNotDependOnThreads) {
  for (const Precision precision : {Precision::kF32, Precision::kF64, Precision::kBf16}) {
    TestBed bed(precision);
    Problem problem(bed, mixed_case());
    ops::test::expect_independent_of_threads([&] {
      const Problem::Result r = problem.run();
      std::vector<uint8_t> bytes = ops::test::bytes_of(r.o);
      const std::vector<uint8_t> grads = ops::test::bytes_of(r.grads);
      bytes.insert(bytes.end(), grads.begin(), grads.end());
      return bytes;
    });
  }
}

TEST(HstuAttention, BitsOfASequenceDoNotDependOnItsNeighbours) {
  TestBed bed(Precision::kF32);
  Problem problem(bed, mixed_case());
  const Problem::Result together = problem.run();
  const std::vector<int64_t> offsets = problem.offsets;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    const std::vector<int64_t> alone{offsets[b], offsets[b + 1]};
    problem.params.offsets = alone;
    problem.params.num_targets = std::span(mixed_case().targets).subspan(b, 1);
    const Problem::Result r = problem.run();
    const int64_t n = alone[1] - alone[0];
    EXPECT_EQ(ops::test::bytes_of(r.o.rows(alone[0], n)),
              ops::test::bytes_of(together.o.rows(alone[0], n)));
    EXPECT_EQ(ops::test::bytes_of(r.grads.rows(alone[0], n)),
              ops::test::bytes_of(together.grads.rows(alone[0], n)));
  }
}

// ---- bf16
// ----------------------------------------------------------------------------------------

/// One sequence and head, rounded by hand: p and ds to bf16, results once.
struct RoundedReference {
  std::vector<double> o, dq, dk, dv;

  RoundedReference(const HstuAttentionParams& p, const Tensor& grad_o) {
    const int64_t n = p.q.size(0);
    const int64_t dim = p.q.size(2);
    const auto at = [dim](const Tensor& t, int64_t i, int64_t d) {
      return static_cast<double>(t.ptr<float>()[i * dim + d]);
    };
    const auto round = [](double x) { return double{round_to_bf16(static_cast<float>(x))}; };
    for (auto* x : {&o, &dq, &dk, &dv}) x->assign(static_cast<size_t>(n * dim), 0);
    const auto add = [dim](std::vector<double>& to, int64_t i, int64_t d, double x) {
      to[static_cast<size_t>(i * dim + d)] += x;
    };
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        if (!hstu_mask_reference(p.mask, i, j, n, p.num_targets[0])) continue;
        double s = 0;
        double dp = 0;
        for (int64_t d = 0; d < dim; ++d) {
          s += p.alpha * at(p.q, i, d) * at(p.k, j, d);
          dp += at(grad_o, i, d) * at(p.v, j, d);
        }
        const double sigma = 1 / (1 + std::exp(-s));
        const double score = round(s * sigma * p.scale);
        const double ds = round(dp * sigma * (1 + s * (1 - sigma)) * p.scale);
        for (int64_t d = 0; d < dim; ++d) {
          add(o, i, d, score * at(p.v, j, d));
          add(dv, j, d, score * at(grad_o, i, d));
          add(dq, i, d, p.alpha * ds * at(p.k, j, d));
          add(dk, j, d, p.alpha * ds * at(p.q, i, d));
        }
      }
    }
    for (auto* x : {&o, &dq, &dk, &dv}) {
      for (double& value : *x) value = round(value);
    }
  }
};

/// Float sums may end on the other side of a rounding boundary than double sums: one bf16 step at
/// most, and rarely.
void expect_rounded_alike(const Tensor& actual, const std::vector<double>& expected) {
  const auto x = actual.span<float>();
  double largest = 0;
  for (const double y : expected) largest = std::max(largest, std::abs(y));
  size_t different = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(x[i], round_to_bf16(x[i]));
    if (double{x[i]} == expected[i]) continue;
    ++different;
    ASSERT_NEAR(double{x[i]}, expected[i], 0x1p-7 * std::abs(expected[i]) + 1e-4 * largest);
  }
  EXPECT_LE(different * 50, x.size());
}

TEST(HstuAttention, Bf16ModeRoundsScoresAndResults) {
  TestBed bed(Precision::kBf16);
  const int64_t n = 150;
  const int64_t dim = 8;
  const std::vector<int64_t> offsets{0, n};
  const std::vector<int64_t> targets{2};
  HstuAttentionParams p;
  p.q = bed.random(1, {n, 1, dim}, 2);
  p.k = bed.random(2, {n, 1, dim}, 2);
  p.v = bed.random(3, {n, 1, dim});
  p.offsets = offsets;
  p.num_targets = targets;
  p.alpha = 0.35;
  p.scale = 1.0 / n;
  const Tensor grad_o = bed.random(4, {n, 1, dim});
  const Tensor o = bed.zeros(DType::kF32, {n, 1, dim});
  const Tensor dq = bed.zeros(DType::kF32, {n, 1, dim});
  const Tensor dk = bed.zeros(DType::kF32, {n, 1, dim});
  const Tensor dv = bed.zeros(DType::kF32, {n, 1, dim});
  hstu_attention_forward(bed.exec, p, o);
  hstu_attention_backward(bed.exec, p, grad_o, dq, dk, dv);
  const RoundedReference expected(p, grad_o);
  expect_rounded_alike(o, expected.o);
  expect_rounded_alike(dq, expected.dq);
  expect_rounded_alike(dk, expected.dk);
  expect_rounded_alike(dv, expected.dv);

  // Rounding the result of unrounded scores is something else: the test above would notice.
  const Tensor unrounded = bed.zeros(DType::kF32, {n, 1, dim});
  hstu_attention_forward(bed.exec.with(Precision::kF32), p, unrounded);
  size_t different = 0;
  for (size_t i = 0; i < expected.o.size(); ++i) {
    if (double{round_to_bf16(unrounded.span<float>()[i])} != expected.o[i]) ++different;
  }
  EXPECT_GT(different * 10, expected.o.size());
}

}  // namespace
}  // namespace segue::attention
