#include "model/dense_stack.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "ops/test_util.h"

namespace segue::model {
namespace {

using ops::test::bytes_of;
using ops::test::dot;
using ops::test::expect_gradient;
using ops::test::TestBed;

TEST(DenseStackFormsTest, NamesAndBoundsAreThePublishedOnes) {
  Parameters parameters;
  const DenseStack stack(parameters, "bot_l", {.widths = {16, 8, 4}});
  EXPECT_EQ(stack.out(), 4);
  parameters.allocate(Device::cpu(), DType::kF64, 3);
  const std::vector<std::string> names = {"bot_l.0.weight", "bot_l.0.bias", "bot_l.2.weight",
                                          "bot_l.2.bias"};
  const std::vector<std::vector<int64_t>> shapes = {{8, 16}, {8}, {4, 8}, {4}};
  ASSERT_EQ(parameters.all().size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const Parameter& p = parameters.all()[i];
    EXPECT_EQ(p.name, names[i]);
    EXPECT_EQ(p.shape, shapes[i]);
    const double bound = 1 / std::sqrt(i < 2 ? 16.0 : 8.0);
    double largest = 0;
    for (const double x : p.value.reshape({p.value.elements()}).span<double>()) {
      largest = std::max(largest, std::abs(x));
    }
    EXPECT_LE(largest, bound);
    EXPECT_GT(largest, bound / 2);
  }
}

TEST(DenseStackFormsTest, CountsTheParametersOfThePublishedModel) {
  Parameters bottom, top;
  const DenseStack a(bottom, "bottom", {.widths = {16, 8, 8}});
  const DenseStack b(top, "top", {.widths = {32, 32, 16, 1}, .final_relu = false});
  EXPECT_EQ(bottom.count(), 208);
  EXPECT_EQ(top.count(), 1601);
}

class DenseStackTest : public testing::TestWithParam<std::tuple<bool, int, int>> {};

TEST_P(DenseStackTest, GradientsMatchFiniteDifferences) {
  const auto [final_relu, layers, rows] = GetParam();
  TestBed bed(Precision::kF64);
  Parameters parameters;
  std::vector<int64_t> widths = {5, 4, 6, 3};
  widths.resize(static_cast<size_t>(layers) + 1);
  const DenseStack stack(parameters, "mlp", {widths, final_relu});
  parameters.allocate(Device::cpu(), DType::kF64, 11);
  const Tensor x = bed.random(1, {rows, 5}), dy = bed.random(2, {rows, widths.back()});
  const std::vector<uint8_t> dy_before = bytes_of(dy);
  const Tensor dx = bed.random(3, {rows, 5});  // overwritten
  parameters.zero_grads();
  stack.backward(bed.exec, stack.forward(bed.exec, x), dy, dx);
  EXPECT_EQ(bytes_of(dy), dy_before);
  const auto f = [&] {
    const Arena::Mark mark(*bed.exec.arena);
    return dot(stack.forward(bed.exec, x).y(), dy);
  };
  expect_gradient(x, dx, f);
  for (const Parameter& p : parameters.all()) {
    SCOPED_TRACE(p.name);
    expect_gradient(p.value.reshape({p.value.elements()}), p.grad.reshape({p.grad.elements()}), f);
  }
}
INSTANTIATE_TEST_SUITE_P(Forms, DenseStackTest,
                         testing::Combine(testing::Bool(), testing::Values(1, 2, 3),
                                          testing::Values(0, 1, 7)));

TEST(DenseStackFormsTest, ReluStandsBehindEveryLayerButTheLastIfAsked) {
  TestBed bed(Precision::kF64);
  Parameters parameters;
  const DenseStack with(parameters, "a", {.widths = {6, 40, 40}});
  const DenseStack without(parameters, "b", {.widths = {6, 40, 40}, .final_relu = false});
  parameters.allocate(Device::cpu(), DType::kF64, 11);
  const Tensor x = bed.random(1, {3, 6}, 5);
  const auto has_negative = [](const Tensor& t) {
    return std::ranges::any_of(t.span<double>(), [](double value) { return value < 0; });
  };
  const DenseStack::Saved a = with.forward(bed.exec, x), b = without.forward(bed.exec, x);
  EXPECT_FALSE(has_negative(a.out[0]));
  EXPECT_FALSE(has_negative(a.out[1]));
  EXPECT_FALSE(has_negative(b.out[0]));
  EXPECT_TRUE(has_negative(b.out[1]));
}

TEST(DenseStackFormsTest, WritesIntoColumnsOfALargerMatrix) {
  TestBed bed;
  Parameters parameters;
  const DenseStack stack(parameters, "a", {.widths = {6, 5, 4}});
  parameters.allocate(Device::cpu(), DType::kF32, 11);
  const Tensor x = bed.random(1, {3, 6}), wide = bed.random(2, {3, 7});
  const Tensor expected = stack.forward(bed.exec, x).y();
  const float left = wide.row<float>(1)[0], right = wide.row<float>(1)[5];
  stack.forward(bed.exec, x, wide.columns(1, 4));
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 4; ++c) {
      EXPECT_EQ(wide.row<float>(r)[1 + c], expected.row<float>(r)[c]);
    }
  }
  EXPECT_EQ(wide.row<float>(1)[0], left);
  EXPECT_EQ(wide.row<float>(1)[5], right);
}

}  // namespace
}  // namespace segue::model
