#include "ops/loss.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::bytes_of;
using test::expect_gradient;
using test::expect_independent_of_threads;
using test::TestBed;

double loss_of(const Exec& exec, TaskKind kind, const Tensor& logits, const Tensor& labels,
               const Tensor& weights, double factor, const Tensor& dlogits,
               const Tensor& predictions) {
  double sum = 0;
  loss_forward_backward(exec, kind, logits, labels, weights, factor, dlogits, predictions,
                        Tensor(&sum, DType::kF64, Device::cpu(), {1}));
  return sum;
}

struct Task {
  Tensor logits, labels, weights, dlogits, predictions;

  Task(TestBed& bed, int64_t n, double range) {
    logits = bed.random(1, {n}, range);
    labels = bed.random(2, {n});
    weights = bed.random(3, {n});
    dispatch_real(bed.exec.dtype(), [&](auto zero_value) {
      using T = decltype(zero_value);
      for (T& label : labels.span<T>()) label = label > 0 ? 1 : 0;
      for (T& weight : weights.span<T>()) weight = std::abs(weight);
    });
    dlogits = bed.random(4, {n});
    predictions = bed.random(5, {n});
  }
  double run(const Exec& exec, TaskKind kind, double factor) const {
    return loss_of(exec, kind, logits, labels, weights, factor, dlogits, predictions);
  }
};

TEST(LossTest, Gradients) {
  for (const TaskKind kind : {TaskKind::kBinary, TaskKind::kRegression}) {
    TestBed bed(Precision::kF64);
    const Task task(bed, 9, 3);
    task.run(bed.exec, kind, 0.7);
    const Tensor gradient = bed.zeros(DType::kF64, {9});
    copy(gradient, task.dlogits);
    expect_gradient(task.logits, gradient, [&] { return task.run(bed.exec, kind, 0.7); });
  }
}

TEST(LossTest, BinaryValues) {
  TestBed bed;
  const Task task(bed, 50, 4);
  double expected = 0;
  const double loss = task.run(bed.exec, TaskKind::kBinary, 0.2);
  for (size_t i = 0; i < 50; ++i) {
    const double p = 1 / (1 + std::exp(-static_cast<double>(task.logits.span<float>()[i])));
    const double y = task.labels.span<float>()[i], w = task.weights.span<float>()[i];
    expected += 0.2 * w * -(y * std::log(p) + (1 - y) * std::log(1 - p));
    EXPECT_NEAR(task.predictions.span<float>()[i], p, 1e-7);
  }
  EXPECT_NEAR(loss, expected, 1e-9);
}

// Samples go in blocks of 64, of which the last is rarely full.
TEST(LossTest, AsExactAsTheCLibraryForAnyNumberOfSamples) {
  for (const int64_t n : {1, 63, 64, 65, 1024, 3000}) {
    TestBed bed(Precision::kF64);
    const Task task(bed, n, 40);
    double expected = 0;
    const double loss = task.run(bed.exec, TaskKind::kBinary, 0.2);
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const double z = task.logits.span<double>()[i], y = task.labels.span<double>()[i];
      const double scale = 0.2 * task.weights.span<double>()[i], e = std::exp(-std::abs(z));
      const double p = (z >= 0 ? 1 : e) / (1 + e);
      expected += scale * (std::max(z, 0.0) - z * y + std::log1p(e));
      EXPECT_DOUBLE_EQ(task.predictions.span<double>()[i], p);
      EXPECT_NEAR(task.dlogits.span<double>()[i], scale * (p - y), 1e-16);
    }
    EXPECT_NEAR(loss, expected, 1e-14 * expected) << n;
  }
}

TEST(LossTest, NotANumberStaysOne) {
  TestBed bed;
  const Task task(bed, 70, 1);
  task.logits.span<float>()[66] = std::nanf("");
  EXPECT_TRUE(std::isnan(task.run(bed.exec, TaskKind::kBinary, 1)));
  for (size_t i = 0; i < 70; ++i) {
    EXPECT_EQ(std::isnan(task.dlogits.span<float>()[i]), i == 66);
    EXPECT_EQ(std::isnan(task.predictions.span<float>()[i]), i == 66);
  }
}

TEST(LossTest, StartsAtLogTwo) {
  TestBed bed;
  const Task task(bed, 8, 1);
  zero(task.logits);
  for (float& weight : task.weights.span<float>()) weight = 1;
  EXPECT_DOUBLE_EQ(task.run(bed.exec, TaskKind::kBinary, 0.2 / 8), 0.2 * std::log(2.0));
}

TEST(LossTest, HugeLogitsStayFinite) {
  TestBed bed;
  const Task task(bed, 4, 1);
  const float logits[] = {1000, -1000, 1000, -1000}, labels[] = {1, 0, 0, 1};
  for (size_t i = 0; i < 4; ++i) {
    task.logits.span<float>()[i] = logits[i];
    task.labels.span<float>()[i] = labels[i];
    task.weights.span<float>()[i] = 1;
  }
  EXPECT_DOUBLE_EQ(task.run(bed.exec, TaskKind::kBinary, 1), 2000.0);
  const float gradients[] = {0, 0, 1, -1};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(task.dlogits.span<float>()[i], gradients[i]);
}

TEST(LossTest, RegressionPredictsTheLogit) {
  TestBed bed;
  const Task task(bed, 6, 2);
  task.run(bed.exec, TaskKind::kRegression, 1);
  EXPECT_EQ(bytes_of(task.predictions), bytes_of(task.logits));
}

TEST(LossTest, ColumnsOfSeveralTasks) {
  TestBed bed;
  const Task task(bed, 5, 2);
  const Tensor logits = bed.zeros(DType::kF32, {5, 3}), dlogits = bed.zeros(DType::kF32, {5, 3});
  const auto column = [](const Tensor& t, int64_t c) {
    Tensor view = t.columns(c, 1);
    view.rank = 1;
    return view;
  };
  for (int64_t i = 0; i < 5; ++i) logits.row<float>(i)[1] = task.logits.ptr<float>()[i];
  const double expected = task.run(bed.exec, TaskKind::kBinary, 0.5);
  EXPECT_EQ(loss_of(bed.exec, TaskKind::kBinary, column(logits, 1), task.labels, task.weights, 0.5,
                    column(dlogits, 1), {}),
            expected);
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(dlogits.row<float>(i)[0], 0.f);
    EXPECT_EQ(dlogits.row<float>(i)[1], task.dlogits.ptr<float>()[i]);
    EXPECT_EQ(dlogits.row<float>(i)[2], 0.f);
  }
}

TEST(LossTest, NoSamples) {
  TestBed bed;
  const Task task(bed, 0, 1);
  EXPECT_EQ(task.run(bed.exec, TaskKind::kBinary, 1), 0.0);
  EXPECT_EQ(loss_of(bed.exec, TaskKind::kBinary, task.logits, task.labels, task.weights, 1, {}, {}),
            0.0);
}

TEST(LossTest, AddsToTheSumAndNoWeightsAreOnes) {
  TestBed bed;
  const Task task(bed, 7, 2);
  for (float& weight : task.weights.span<float>()) weight = 1;
  const double expected = task.run(bed.exec, TaskKind::kBinary, 0.3);
  double sum = 2;
  loss_forward_backward(bed.exec, TaskKind::kBinary, task.logits, task.labels, {}, 0.3, {}, {},
                        Tensor(&sum, DType::kF64, Device::cpu(), {1}));
  EXPECT_EQ(sum, 2 + expected);
}

TEST(LossTest, IndependentOfThreads) {
  TestBed bed;
  const Task task(bed, 5000, 5);
  expect_independent_of_threads([&] {
    const double loss = task.run(bed.exec, TaskKind::kBinary, 0.3);
    std::vector<uint8_t> bytes = bytes_of(task.dlogits);
    const auto* raw = reinterpret_cast<const uint8_t*>(&loss);
    bytes.insert(bytes.end(), raw, raw + sizeof(loss));
    return bytes;
  });
}

}  // namespace
}  // namespace segue::ops
