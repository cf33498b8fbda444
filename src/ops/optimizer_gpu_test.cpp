#include "ops/gpu_test_util.h"
#include "ops/loss.h"
#include "ops/optimizer.h"

namespace segue::ops {
namespace {

using test::expect_like_cpu;
using test::ModeBed;
using test::Outputs;
using GpuOptimizerTest = test::GpuTest;
using GpuLossTest = test::GpuTest;

TEST_F(GpuOptimizerTest, DenseUpdatesWithAClippedGradient) {
  for (const DenseOptimizer kind : kDenseOptimizers) {
    for (const int64_t n : {1, 1000, 70001}) {
      expect_like_cpu(
          [&](ModeBed& bed) -> Outputs {
            const Tensor g = bed.parameter(1, {n}), parameter = bed.parameter(2, {n});
            std::vector<Tensor> states;
            for (size_t s = 0; s < dense_states(kind).size(); ++s) {
              states.push_back(bed.parameter(3 + s, {n}, 0));
            }
            const Tensor squares = bed.exec.arena->tensor(DType::kF64, {2});
            const Tensor squared[] = {parameter, g};
            sums_of_squares(bed.exec, squared, squares);
            DenseUpdateParams p{.kind = kind, .weight_decay = 0.01, .clip_norm = 0.5};
            for (p.t = 1; p.t <= 3; ++p.t) {
              dense_update(bed.exec, p, squares.narrow(0, 1, 1), g, states, parameter);
            }
            dense_update(bed.exec, p, {}, g, states, parameter);
            Outputs outputs = {{"squares", false, bed.values(squares)},
                               {"parameter", false, bed.values(parameter)}};
            for (const Tensor& state : states)
              outputs.push_back({"state", false, bed.values(state)});
            return outputs;
          },
          Precision::kF32);
    }
  }
}

TEST_F(GpuOptimizerTest, NothingToSum) {
  ModeBed bed(Device::cuda(), Precision::kF32);
  const Tensor sum = bed.scalar(3);
  sum_of_squares(bed.exec, bed.parameter(1, {0}), sum);
  EXPECT_EQ(bed.values(sum)[0], 0.0);
}

TEST_F(GpuOptimizerTest, UpdatesChangeNothingUnlessAllIsFinite) {
  ModeBed bed(Device::cuda(), Precision::kF32);
  const Tensor off = bed.scalar(std::nan("")), on = bed.scalar(1);
  const Tensor ids = bed.longs({1, 5});
  for (const RowOptimizer kind : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdam}) {
    const Tensor table = bed.parameter(1, {10, 64});
    const Tensor state = bed.parameter(2, {10, row_state_size(kind, 64)}, 0);
    const Tensor g = bed.parameter(3, {2, 64});
    RowUpdateParams p;
    p.kind = kind;
    p.lr = 0.1;
    const std::vector<double> before = bed.values(table), state_before = bed.values(state);
    rowwise_update(bed.exec, p, {ids, g, table, state}, off);
    EXPECT_EQ(bed.values(table), before);
    EXPECT_EQ(bed.values(state), state_before);
    rowwise_update(bed.exec, p, {ids, g, table, state}, on);
    EXPECT_NE(bed.values(table), before);
  }
  const Tensor g = bed.parameter(4, {64}), m = bed.parameter(5, {64});
  const Tensor states[] = {m, bed.parameter(6, {64}, 0)}, parameter = bed.parameter(7, {64});
  const std::vector<double> before = bed.values(parameter), moments = bed.values(m);
  dense_update(bed.exec, {}, {}, g, states, parameter, off);
  EXPECT_EQ(bed.values(parameter), before);
  EXPECT_EQ(bed.values(m), moments);
  dense_update(bed.exec, {}, {}, g, states, parameter, on);
  EXPECT_NE(bed.values(m), moments);
}

TEST_F(GpuOptimizerTest, RowwiseUpdates) {
  for (const RowOptimizer kind : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdagrad,
                                  RowOptimizer::kSgd, RowOptimizer::kAdam}) {
    for (const int64_t dim : {512, 128, 20, 3}) {
      for (const int64_t n : {0, 90}) {
        expect_like_cpu(
            [&](ModeBed& bed) -> Outputs {
              const int64_t rows = 200;
              std::vector<int64_t> ids;
              for (int64_t i = 0; i < n; ++i) ids.push_back(i * 37 % rows);
              const Tensor table = bed.parameter(1, {rows, dim});
              const int64_t state_size = row_state_size(kind, dim);
              const Tensor state = bed.parameter(2, {rows, state_size}, 0);
              RowUpdateParams p;
              p.kind = kind;
              p.lr = 0.1;
              const Tensor g = bed.parameter(3, {n, dim});
              rowwise_update(bed.exec, p, {bed.longs(ids), g, table, state});
              rowwise_update(bed.exec, p, {bed.longs(ids), g, table, state});
              return {{"table", false, bed.values(table)}, {"state", false, bed.values(state)}};
            },
            Precision::kF32);
      }
    }
  }
}

TEST_F(GpuLossTest, BinaryAndRegression) {
  for (const TaskKind kind : {TaskKind::kBinary, TaskKind::kRegression}) {
    for (const int64_t n : {0, 1, 3000, 70000}) {  // the last by several blocks
      for (const bool weighted : {false, true}) {
        expect_like_cpu(
            [&](ModeBed& bed) -> Outputs {
              const Tensor logits = bed.parameter(1, {n, 3}, 30),
                           dlogits = bed.parameter(2, {n, 3});
              const Tensor labels = bed.parameter(3, {n});
              const Tensor weights = weighted ? bed.parameter(4, {n}) : Tensor();
              const Tensor predictions = bed.parameter(5, {n}), sum = bed.scalar(2);
              loss_forward_backward(bed.exec, kind, logits.column(1), labels, weights, 0.3,
                                    dlogits.column(1), predictions, sum);
              loss_forward_backward(bed.exec, kind, logits.column(0), labels, weights, 0.3, {}, {},
                                    sum);
              return {{"loss", false, bed.values(sum)},
                      {"dlogits", true, bed.values(dlogits)},
                      {"predictions", false, bed.values(predictions)}};
            },
            Precision::kF32);
      }
    }
  }
}

}  // namespace
}  // namespace segue::ops
