#include "ops/optimizer.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::bytes_of;
using test::expect_independent_of_threads;
using test::TestBed;

TEST(OptimizerTest, FirstUpdateAtTheSecondCount) {
  for (const Precision precision : {Precision::kF32, Precision::kF64}) {
    TestBed bed(precision);
    const DType type = bed.exec.dtype();
    const Tensor g = bed.random(1, {3}), moments[] = {bed.zeros(type, {3}), bed.zeros(type, {3})};
    const Tensor parameter = bed.zeros(type, {3});
    DenseUpdateParams p;
    p.lr = 0.01;
    p.beta1 = 0.95;
    p.t = 2;
    dense_update(bed.exec, p, {}, g, moments, parameter);
    // (1 - b1) / (1 - b1^2) over sqrt((1 - b2) / (1 - b2^2)), as t starts at 2 with empty moments.
    const double moved = 0.05 / (1 - 0.95 * 0.95) / std::sqrt(0.001 / (1 - 0.999 * 0.999));
    EXPECT_NEAR(moved, 0.725, 1e-3);
    dispatch_real(type, [&](auto zero_value) {
      using T = decltype(zero_value);
      for (size_t i = 0; i < 3; ++i) {
        const double sign = g.span<T>()[i] > 0 ? 1 : -1;
        EXPECT_NEAR(parameter.span<T>()[i], -sign * moved * p.lr, 1e-8);
      }
    });
  }
}

/// The formula of every dense optimizer once more, for one element in double.
double plain_update(const DenseUpdateParams& p, double g, std::vector<double>& state, double w) {
  const auto t = static_cast<double>(p.t);
  switch (p.kind) {
    case DenseOptimizer::kAdam:
    case DenseOptimizer::kAdamW: {
      const bool decoupled = p.kind == DenseOptimizer::kAdamW;
      if (!decoupled) g += p.weight_decay * w;
      state[0] = p.beta1 * state[0] + (1 - p.beta1) * g;
      state[1] = p.beta2 * state[1] + (1 - p.beta2) * g * g;
      const double mean = state[0] / (1 - std::pow(p.beta1, t));
      const double root = std::sqrt(state[1] / (1 - std::pow(p.beta2, t)));
      return w - p.lr * mean / (root + p.eps) - (decoupled ? p.lr * p.weight_decay * w : 0);
    }
  }
  ADD_FAILURE() << "an optimizer without a formula here";
  return w;
}

TEST(OptimizerTest, DenseUpdatesFollowTheirFormulas) {
  for (const DenseOptimizer kind : kDenseOptimizers) {
    SCOPED_TRACE(published_name(kind));
    TestBed bed(Precision::kF64);
    const int64_t n = 17;
    const size_t states = dense_states(kind).size();
    std::vector<Tensor> state;
    for (size_t s = 0; s < states; ++s) state.push_back(bed.zeros(DType::kF64, {n}));
    const Tensor parameter = bed.random(2, {n});
    std::vector<double> w(parameter.span<double>().begin(), parameter.span<double>().end());
    std::vector<std::vector<double>> kept(w.size(), std::vector<double>(states));
    DenseUpdateParams p{.kind = kind, .lr = 0.02, .weight_decay = 0.1, .clip_norm = 1};
    const Tensor squares = bed.zeros(DType::kF64, {1});
    squares.ptr<double>()[0] = 4;
    for (p.t = 1; p.t <= 5; ++p.t) {
      const Tensor g = bed.random(static_cast<uint64_t>(10 + p.t), {n});
      dense_update(bed.exec, p, squares, g, state, parameter);
      for (size_t i = 0; i < w.size(); ++i) {
        w[i] = plain_update(p, clip_scale(4, 1) * g.span<double>()[i], kept[i], w[i]);
        ASSERT_NEAR(parameter.span<double>()[i], w[i], 1e-14);
        for (size_t s = 0; s < states; ++s) {
          ASSERT_NEAR(state[s].span<double>()[i], kept[i][s], 1e-14);
        }
      }
    }
  }
}

TEST(OptimizerTest, DecoupledDecayShrinksWeightsWithoutGradientsAndLeavesTheMoments) {
  TestBed bed;
  const Tensor g = bed.zeros(DType::kF32, {2}), parameter = bed.zeros(DType::kF32, {2});
  const Tensor moments[] = {bed.zeros(DType::kF32, {2}), bed.zeros(DType::kF32, {2})};
  parameter.ptr<float>()[0] = 2;
  dense_update(bed.exec, {.kind = DenseOptimizer::kAdamW, .lr = 0.5, .weight_decay = 0.25}, {}, g,
               moments, parameter);
  EXPECT_EQ(parameter.ptr<float>()[0], 1.75f);
  EXPECT_EQ(parameter.ptr<float>()[1], 0.f);
  for (const Tensor& m : moments) EXPECT_EQ(m.ptr<float>()[0], 0.f);
}

TEST(OptimizerTest, DenseOptimizersNameTheirStates) {
  for (const DenseOptimizer kind : kDenseOptimizers) {
    EXPECT_FALSE(published_name(kind).empty());
    for (const std::string_view name : dense_states(kind)) EXPECT_FALSE(name.empty());
  }
  // Checkpoints have these names.
  ASSERT_EQ(dense_states(DenseOptimizer::kAdam).size(), 2u);
  EXPECT_EQ(dense_states(DenseOptimizer::kAdam)[0], "adam_m");
  EXPECT_EQ(dense_states(DenseOptimizer::kAdam)[1], "adam_v");
  EXPECT_EQ(published_name(DenseOptimizer::kAdamW), "AdamW");
}

TEST(OptimizerTest, AdamEpsilonStandsOutsideTheRoot) {
  TestBed bed(Precision::kF64);
  const Tensor g = bed.zeros(DType::kF64, {1}), parameter = bed.zeros(DType::kF64, {1});
  const Tensor moments[] = {bed.zeros(DType::kF64, {1}), bed.zeros(DType::kF64, {1})};
  g.ptr<double>()[0] = 1e-8;
  dense_update(bed.exec, {.lr = 1}, {}, g, moments, parameter);
  EXPECT_NEAR(parameter.ptr<double>()[0], -0.5, 1e-6);
}

TEST(OptimizerTest, SumOfSquares) {
  TestBed bed;
  const Tensor sum = bed.zeros(DType::kF64, {1});
  sum.ptr<double>()[0] = 1;  // overwritten
  sum_of_squares(bed.exec, bed.zeros(DType::kF32, {0}), sum);
  EXPECT_EQ(sum.ptr<double>()[0], 0.0);
  for (const int64_t n : {1, 7, 8, 16384, 50001}) {
    const Tensor x = bed.random(1, {n});
    double expected = 0;
    for (const float value : x.span<float>()) {
      expected += static_cast<double>(value) * static_cast<double>(value);
    }
    sum_of_squares(bed.exec, x, sum);
    EXPECT_NEAR(sum.ptr<double>()[0], expected, 1e-12 * expected);
  }
}

TEST(OptimizerTest, ClipScale) {
  EXPECT_EQ(clip_scale(25, 1), 1 / (5 + 1e-6));
  EXPECT_EQ(clip_scale(25, 10), 1.0);
  EXPECT_EQ(clip_scale(25, 0), 1.0);
  EXPECT_EQ(clip_scale(0, 1), 1.0);
  EXPECT_TRUE(std::isnan(clip_scale(std::nan(""), 1)));
}

struct Table {
  Tensor weights, state, ids, gradients;
  RowUpdateParams p;

  Table(TestBed& bed, RowOptimizer kind, std::vector<int64_t> rows, int64_t dim = 6) {
    const DType type = bed.exec.dtype();
    const auto n = static_cast<int64_t>(rows.size());
    p.kind = kind;
    p.lr = 0.1;
    weights = bed.random(1, {10, dim});
    state = bed.zeros(type, {10, row_state_size(kind, dim)});
    ids = bed.zeros(DType::kI64, {n});
    std::copy(rows.begin(), rows.end(), ids.ptr<int64_t>());
    gradients = bed.random(2, {n, dim});
  }
  void update(const Exec& exec) const { rowwise_update(exec, p, {ids, gradients, weights, state}); }
};

TEST(OptimizerTest, UpdatesChangeNothingUnlessAllIsFinite) {
  TestBed bed;
  const Tensor finite = bed.zeros(DType::kF64, {3});
  finite.ptr<double>()[2] = std::nan("");
  const Tensor g = bed.random(1, {20}), parameter = bed.random(4, {20});
  const Tensor m = bed.random(2, {20}), v = bed.random(3, {20}), moments[] = {m, v};
  const Table t(bed, RowOptimizer::kRowwiseAdagrad, {3, 7});
  const auto run = [&] {
    dense_update(bed.exec, {}, {}, g, moments, parameter, finite);
    rowwise_update(bed.exec, t.p, {t.ids, t.gradients, t.weights, t.state}, finite);
    std::vector<uint8_t> bytes;
    for (const Tensor& x : {m, v, parameter, t.weights, t.state}) {
      const std::vector<uint8_t> part = bytes_of(x);
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
    return bytes;
  };
  const std::vector<uint8_t> off = run();
  EXPECT_EQ(run(), off);
  finite.ptr<double>()[2] = 1;
  EXPECT_NE(run(), off);
}

TEST(OptimizerTest, DenseOpsAreIndependentOfThreads) {
  TestBed bed;
  const int64_t n = 100003;
  const Tensor g = bed.random(1, {n}), parameter = bed.zeros(DType::kF32, {n});
  const Tensor m = bed.zeros(DType::kF32, {n}), v = bed.zeros(DType::kF32, {n}), moments[] = {m, v};
  expect_independent_of_threads([&] {
    for (const Tensor& t : {m, v, parameter}) zero(t);
    const Tensor squares = bed.zeros(DType::kF64, {1});
    sum_of_squares(bed.exec, g, squares);
    dense_update(bed.exec, {.clip_norm = 1}, squares, g, moments, parameter);
    return bytes_of(parameter);
  });
}

TEST(OptimizerTest, RowwiseAdagradKeepsOneNumberPerRow) {
  TestBed bed(Precision::kF64);
  const Table t(bed, RowOptimizer::kRowwiseAdagrad, {7, 2});
  std::vector<double> expected(t.weights.span<double>().begin(), t.weights.span<double>().end());
  t.update(bed.exec);
  t.update(bed.exec);
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t row = t.ids.ptr<int64_t>()[i];
    const double* g = t.gradients.row<double>(i);
    double mean = 0;
    for (int64_t c = 0; c < 6; ++c) mean += g[c] * g[c] / 6;
    EXPECT_NEAR(t.state.row<double>(row)[0], 2 * mean, 1e-14);
    for (int64_t c = 0; c < 6; ++c) {
      expected[static_cast<size_t>(row * 6 + c)] -=
          0.1 / (std::sqrt(mean) + 1e-8) * g[c] + 0.1 / (std::sqrt(2 * mean) + 1e-8) * g[c];
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(t.weights.span<double>()[i], expected[i], 1e-14) << i;
  }
}

TEST(OptimizerTest, RowwiseAdagradEpsilonStandsOutsideTheRoot) {
  TestBed bed;
  const Table t(bed, RowOptimizer::kRowwiseAdagrad, {0});
  zero(t.weights);
  for (float& g : t.gradients.span<float>()) g = 1e-8f;
  t.update(bed.exec);
  EXPECT_NEAR(t.weights.ptr<float>()[0], -0.05f, 1e-6f);  // under the root it would be -1e-5
}

TEST(OptimizerTest, ZeroGradientMovesNothing) {
  for (const RowOptimizer kind : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdagrad,
                                  RowOptimizer::kSgd, RowOptimizer::kAdam}) {
    TestBed bed;
    const Table t(bed, kind, {3, 4});
    zero(t.gradients);
    const std::vector<uint8_t> before = bytes_of(t.weights);
    t.update(bed.exec);
    EXPECT_EQ(bytes_of(t.weights), before);
  }
}

TEST(OptimizerTest, ElementwiseRowOptimizers) {
  TestBed bed(Precision::kF64);
  for (const RowOptimizer kind :
       {RowOptimizer::kAdagrad, RowOptimizer::kSgd, RowOptimizer::kAdam}) {
    Table t(bed, kind, {9, 0, 4});
    t.p.t = 3;
    std::vector<double> expected(t.weights.span<double>().begin(), t.weights.span<double>().end());
    t.update(bed.exec);
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t row = t.ids.ptr<int64_t>()[i];
      for (int64_t c = 0; c < 6; ++c) {
        const double g = t.gradients.row<double>(i)[c];
        double step = 0.1 * g;
        if (kind == RowOptimizer::kAdagrad) {
          step = 0.1 / (std::abs(g) + 1e-8) * g;
          EXPECT_NEAR(t.state.row<double>(row)[c], g * g, 1e-14);
        } else if (kind == RowOptimizer::kAdam) {
          step = 0.1 / (1 - std::pow(0.9, 3)) * 0.1 * g /
                 (std::sqrt(0.001 * g * g) / std::sqrt(1 - std::pow(0.999, 3)) + 1e-8);
          EXPECT_NEAR(t.state.row<double>(row)[c], 0.1 * g, 1e-14);
          EXPECT_NEAR(t.state.row<double>(row)[6 + c], 0.001 * g * g, 1e-14);
        }
        expected[static_cast<size_t>(row * 6 + c)] -= step;
      }
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(t.weights.span<double>()[i], expected[i], 1e-13);
    }
  }
}

TEST(OptimizerTest, StateSizes) {
  EXPECT_EQ(row_state_size(RowOptimizer::kRowwiseAdagrad, 512), 1);
  EXPECT_EQ(row_state_size(RowOptimizer::kAdagrad, 512), 512);
  EXPECT_EQ(row_state_size(RowOptimizer::kSgd, 512), 0);
  EXPECT_EQ(row_state_size(RowOptimizer::kAdam, 512), 1024);
}

TEST(OptimizerTest, StatesHaveNamesAndLieSideBySide) {
  for (const RowOptimizer kind : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdagrad,
                                  RowOptimizer::kSgd, RowOptimizer::kAdam}) {
    int64_t columns = 0;
    for (const RowState& state : row_states(kind)) {
      EXPECT_FALSE(state.name.empty());
      EXPECT_EQ(state.of_whole_row, row_states(kind).front().of_whole_row);
      columns += state.columns(512);
    }
    EXPECT_EQ(columns, row_state_size(kind, 512));
  }
  EXPECT_EQ(row_states(RowOptimizer::kAdam).size(), 2u);
  EXPECT_EQ(published_name(RowOptimizer::kRowwiseAdagrad), "RowWiseAdagrad");
  EXPECT_EQ(published_name(RowOptimizer::kAdam), "Adam");
}

TEST(OptimizerTest, BadRowsAreErrorsAndChangeNothing) {
  TestBed bed;
  for (const int64_t bad : {int64_t{10}, int64_t{-2}, int64_t{1} << 40}) {
    const Table t(bed, RowOptimizer::kRowwiseAdagrad, {1, 2, bad});
    const std::vector<uint8_t> before = bytes_of(t.weights);
    try {
      t.update(bed.exec);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
    }
    EXPECT_EQ(bytes_of(t.weights), before);
  }
}

TEST(OptimizerTest, NoRowIsUpdatedWhereThereIsNone) {
  TestBed bed;
  const Table some(bed, RowOptimizer::kRowwiseAdagrad, {1, -1, 2});
  const std::vector<uint8_t> before = bytes_of(some.weights);
  some.update(bed.exec);
  for (int64_t row = 0; row < some.weights.size(0); ++row) {
    const size_t bytes = before.size() / static_cast<size_t>(some.weights.size(0));
    const auto* was = before.data() + static_cast<size_t>(row) * bytes;
    const std::vector<uint8_t> is = bytes_of(some.weights.rows(row, 1));
    EXPECT_EQ(std::equal(is.begin(), is.end(), was), row != 1 && row != 2) << row;
  }
}

TEST(OptimizerTest, NoRowsAndDoubleGradients) {
  TestBed bed;
  const Table none(bed, RowOptimizer::kSgd, {});
  none.update(bed.exec);
  Table t(bed, RowOptimizer::kSgd, {5});
  t.gradients = bed.zeros(DType::kF64, {1, 6});
  t.gradients.ptr<double>()[2] = 1;
  const float before = t.weights.row<float>(5)[2];
  rowwise_update(bed.exec, t.p, {t.ids, t.gradients, t.weights, {}});  // SGD needs no state
  EXPECT_FLOAT_EQ(t.weights.row<float>(5)[2], before - 0.1f);
}

TEST(OptimizerTest, RowUpdatesAreIndependentOfThreads) {
  for (const RowOptimizer kind : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdam}) {
    expect_independent_of_threads([&] {
      TestBed bed;
      const Table t(bed, kind, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 5000);
      t.update(bed.exec);
      return bytes_of(t.weights);
    });
  }
}

}  // namespace
}  // namespace segue::ops
