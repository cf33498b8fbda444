#include "ops/contextual.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::bytes_of;
using test::dot;
using test::expect_gradient;
using test::expect_independent_of_threads;
using test::TestBed;

struct Linear {
  Tensor e, weight, bias, y, dy, de, dweight, dbias;

  Linear(TestBed& bed, int64_t slots, int64_t samples, int64_t in, int64_t out) {
    const DType type = bed.exec.dtype();
    e = bed.random(1, {slots, samples, in});
    weight = bed.random(2, {slots, in, out});
    bias = bed.random(3, {slots, out});
    dy = bed.random(4, {samples, slots, out});
    y = bed.zeros(type, {samples, slots, out});
    de = bed.random(5, {slots, samples, in});
    dweight = bed.zeros(type, {slots, in, out});
    dbias = bed.zeros(type, {slots, out});
  }
};

TEST(ContextualTest, EverySlotHasItsOwnLinearMap) {
  TestBed bed(Precision::kF64);
  const Linear t(bed, 3, 4, 5, 6);
  contextual_linear_forward(bed.exec, t.e, t.weight, t.bias, t.y);
  for (int64_t b = 0; b < 4; ++b) {
    for (int64_t s = 0; s < 3; ++s) {
      for (int64_t o = 0; o < 6; ++o) {
        double expected = t.bias.select(s).ptr<double>()[o];
        for (int64_t i = 0; i < 5; ++i) {
          expected += t.e.select(s).row<double>(b)[i] * t.weight.select(s).row<double>(i)[o];
        }
        ASSERT_NEAR(t.y.select(b).row<double>(s)[o], expected, 1e-12);
      }
    }
  }
}

void check_linear_gradients(int64_t samples) {
  TestBed bed(Precision::kF64);
  const Linear t(bed, 3, samples, 4, 5);
  const auto f = [&] {
    contextual_linear_forward(bed.exec, t.e, t.weight, t.bias, t.y);
    return dot(t.y, t.dy);
  };
  contextual_linear_backward(bed.exec, t.dy, t.e, t.weight, t.de, t.dweight, t.dbias);
  expect_gradient(t.e, t.de, f);
  expect_gradient(t.weight, t.dweight, f);
  expect_gradient(t.bias, t.dbias, f);
}

TEST(ContextualTest, LinearGradients) { check_linear_gradients(7); }
TEST(ContextualTest, LinearGradientsOfOneSample) { check_linear_gradients(1); }
TEST(ContextualTest, LinearOfNoSamples) { check_linear_gradients(0); }

TEST(ContextualTest, LinearGradientsAreOptionalAndAdded) {
  TestBed bed(Precision::kF64);
  const Linear t(bed, 2, 3, 4, 5);
  contextual_linear_backward(bed.exec, t.dy, t.e, t.weight, {}, {}, t.dbias);
  const double once = t.dbias.ptr<double>()[3];
  contextual_linear_backward(bed.exec, t.dy, t.e, t.weight, t.de, {}, t.dbias);
  EXPECT_DOUBLE_EQ(t.dbias.ptr<double>()[3], 2 * once);
}

TEST(ContextualTest, LinearRoundsOnceInBf16Mode) {
  TestBed bed(Precision::kBf16);
  const Linear t(bed, 2, 3, 4, 5);
  for (float& value : t.weight.span<float>()) value *= 1.001f;  // parameters are floats
  contextual_linear_forward(bed.exec, t.e, t.weight, t.bias, t.y);
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t o = 0; o < 5; ++o) {
      double exact = static_cast<double>(round_to_bf16(t.bias.select(1).ptr<float>()[o]));
      for (int64_t i = 0; i < 4; ++i) {
        exact += static_cast<double>(t.e.select(1).row<float>(b)[i]) *
                 static_cast<double>(round_to_bf16(t.weight.select(1).row<float>(i)[o]));
      }
      const float y = t.y.select(b).row<float>(1)[o];
      EXPECT_EQ(y, round_to_bf16(y));
      EXPECT_NEAR(y, exact, std::abs(exact) * 0x1p-8 + 1e-6);  // half a unit of bf16's last place
    }
  }
}

TEST(ContextualTest, ActionRowsAreMadeOfTheirBits) {
  TestBed bed(Precision::kF64);
  const Tensor table = bed.random(1, {3, 2}), target = bed.random(2, {1, 6});
  const Tensor y = bed.random(3, {3, 6});
  action_encode_forward(bed.exec, table, target, bed.ints({5, 8, 0}), y);
  const auto expect_row = [&](int64_t r, const std::vector<double>& expected) {
    EXPECT_EQ(std::vector<double>(y.row<double>(r), y.row<double>(r) + 6), expected);
  };
  const double* a = table.ptr<double>();
  expect_row(0, {a[0], a[1], 0, 0, a[4], a[5]});
  expect_row(1, std::vector<double>(target.ptr<double>(), target.ptr<double>() + 6));
  expect_row(2, std::vector<double>(6, 0.0));
}

std::vector<int32_t> some_codes(int64_t n) {
  std::vector<int32_t> codes;
  for (int64_t i = 0; i < n; ++i) {
    codes.push_back(static_cast<int32_t>((TestBed::number(9, i) + 1) * 0.5 * 9));
  }
  return codes;
}

TEST(ContextualTest, ActionGradients) {
  for (const int64_t n : {0, 1, 600}) {
    TestBed bed(Precision::kF64);
    const Tensor table = bed.random(1, {3, 2}), target = bed.random(2, {1, 6});
    const Tensor code = bed.ints(some_codes(n));
    const Tensor y = bed.zeros(DType::kF64, {n, 6}), dy = bed.random(3, {n, 6});
    const Tensor dtable = bed.zeros(DType::kF64, {3, 2}), dtarget = bed.zeros(DType::kF64, {1, 6});
    const auto f = [&] {
      action_encode_forward(bed.exec, table, target, code, y);
      return dot(y, dy);
    };
    action_encode_backward(bed.exec, dy, code, dtable, dtarget);
    expect_gradient(table, dtable, f);
    expect_gradient(target, dtarget, f);
  }
}

TEST(ContextualTest, ActionGradientsAreIndependentOfThreads) {
  TestBed bed;
  const Tensor code = bed.ints(some_codes(5000)), dy = bed.random(3, {5000, 24});
  const Tensor dtable = bed.zeros(DType::kF32, {3, 8}), dtarget = bed.zeros(DType::kF32, {1, 24});
  expect_independent_of_threads([&] {
    zero(dtable);
    zero(dtarget);
    action_encode_backward(bed.exec, dy, code, dtable, dtarget);
    std::vector<uint8_t> bytes = bytes_of(dtable);
    const std::vector<uint8_t> more = bytes_of(dtarget);
    bytes.insert(bytes.end(), more.begin(), more.end());
    return bytes;
  });
}

TEST(ContextualTest, ActionsRoundInBf16Mode) {
  TestBed bed(Precision::kBf16);
  const Tensor table = bed.zeros(DType::kF32, {1, 1}), target = bed.zeros(DType::kF32, {1, 1});
  table.ptr<float>()[0] = 1.2345f;
  target.ptr<float>()[0] = 2.3456f;
  const Tensor y = bed.zeros(DType::kF32, {2, 1});
  action_encode_forward(bed.exec, table, target, bed.ints({1, 2}), y);
  EXPECT_EQ(y.ptr<float>()[0], round_to_bf16(1.2345f));
  EXPECT_EQ(y.ptr<float>()[1], round_to_bf16(2.3456f));
}

TEST(ContextualTest, UnknownActionCodesAreErrors) {
  TestBed bed;
  const Tensor table = bed.zeros(DType::kF32, {3, 2}), target = bed.zeros(DType::kF32, {1, 6});
  const Tensor y = bed.zeros(DType::kF32, {1, 6});
  for (const int32_t bad : {9, -1}) {
    try {
      action_encode_forward(bed.exec, table, target, bed.ints({bad}), y);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
    }
    EXPECT_THROW(action_encode_backward(bed.exec, y, bed.ints({bad}), table, target), Error);
  }
}

TEST(ContextualTest, CyclicFeaturesOfHourAndDay) {
  TestBed bed;
  const std::vector<double> unit = {3600, 86400}, count = {24, 7};
  CyclicParams p;
  p.unit_seconds = unit;
  p.units_per_period = count;
  const std::vector<int64_t> timestamps = {0, 6 * 3600 + 59, 86400 + 3600, 7 * 86400};
  const Tensor out = bed.zeros(DType::kF32, {4, 9});
  cyclic_time_features(bed.exec, p, host_view(std::span(timestamps)), out.columns(5, 4));
  const double tau = 2 * 3.14159265358979323846;
  const double expected[4][4] = {
      {1, 0, 1, 0},
      {0, 1, 1, 0},
      {std::cos(tau / 24), std::sin(tau / 24), std::cos(tau / 7), std::sin(tau / 7)},
      {1, 0, 1, 0}};
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 4; ++c) {
      EXPECT_NEAR(out.row<float>(r)[5 + c], expected[r][c], 1e-6) << r << " " << c;
    }
    EXPECT_EQ(out.row<float>(r)[4], 0.f);
  }
}

TEST(ContextualTest, CyclicFeaturesUseFloatsAndTheGivenPi) {
  TestBed bed(Precision::kF64);
  const std::vector<double> unit = {3600}, count = {24};
  CyclicParams p;
  p.unit_seconds = unit;
  p.units_per_period = count;
  p.pi = 3.14;
  // As a float this second is the next full hour already.
  const std::vector<int64_t> timestamps = {1700002799};
  ASSERT_EQ(static_cast<float>(timestamps[0]), 1700002816.f);
  const Tensor out = bed.zeros(DType::kF64, {1, 2});
  cyclic_time_features(bed.exec, p, host_view(std::span(timestamps)), out);
  const double hour = 472223 % 24;
  EXPECT_NEAR(out.ptr<double>()[0], std::cos(hour / 24 * 2 * 3.14), 1e-6);
  EXPECT_NEAR(out.ptr<double>()[1], std::sin(hour / 24 * 2 * 3.14), 1e-6);
  cyclic_time_features(bed.exec, p, host_view(std::span(timestamps).first(0)), out.rows(0, 0));

  const Tensor rounded = bed.zeros(DType::kF32, {1, 2});
  cyclic_time_features(bed.exec.with(Precision::kBf16), p, host_view(std::span(timestamps)),
                       rounded);
  EXPECT_EQ(rounded.ptr<float>()[0], round_to_bf16(static_cast<float>(out.ptr<double>()[0])));

  // The hour before 0 is hour 23 of its day. With this pi an angle of -1 hours is another one.
  const std::vector<int64_t> before = {-1};
  cyclic_time_features(bed.exec, p, host_view(std::span(before)), out);
  EXPECT_NEAR(out.ptr<double>()[0], std::cos(23.0 / 24 * 2 * 3.14), 1e-6);
  EXPECT_NEAR(out.ptr<double>()[1], std::sin(23.0 / 24 * 2 * 3.14), 1e-6);
}

}  // namespace
}  // namespace segue::ops
