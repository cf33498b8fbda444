#include "ops/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/row_loop.h"
#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::bytes_of;
using test::dot;
using test::expect_gradient;
using test::expect_independent_of_threads;
using test::TestBed;

TEST(RowsTest, GatherCopiesConvertsAndFillsWithZero) {
  TestBed bed;
  const Tensor from = bed.random(1, {5, 3});
  const Tensor to = bed.zeros(DType::kF64, {4, 3});
  gather_rows(bed.exec, from, bed.ints({4, -1, 0, 4}), to);
  for (int64_t c = 0; c < 3; ++c) {
    EXPECT_EQ(to.row<double>(0)[c], static_cast<double>(from.row<float>(4)[c]));
    EXPECT_EQ(to.row<double>(1)[c], 0.0);
    EXPECT_EQ(to.row<double>(2)[c], static_cast<double>(from.row<float>(0)[c]));
    EXPECT_EQ(to.row<double>(3)[c], static_cast<double>(from.row<float>(4)[c]));
  }
}

TEST(RowsTest, GatherTakesWideIndicesAndStridedViews) {
  TestBed bed;
  const Tensor from = bed.random(1, {6, 10});
  const Tensor to = bed.zeros(DType::kF32, {2, 7});
  const Tensor index = bed.zeros(DType::kI64, {2});
  index.ptr<int64_t>()[0] = 5;
  index.ptr<int64_t>()[1] = 2;
  gather_rows(bed.exec, from.columns(4, 3), index, to.columns(2, 3));
  for (int64_t c = 0; c < 3; ++c) {
    EXPECT_EQ(to.row<float>(0)[2 + c], from.row<float>(5)[4 + c]);
    EXPECT_EQ(to.row<float>(1)[2 + c], from.row<float>(2)[4 + c]);
  }
  EXPECT_EQ(to.row<float>(0)[1], 0.f);
  EXPECT_EQ(to.row<float>(0)[5], 0.f);
}

TEST(RowsTest, ScatterPutsRowsInTheirPlaces) {
  TestBed bed;
  const Tensor from = bed.random(1, {3, 4});
  const Tensor to = bed.zeros(DType::kF32, {5, 6});
  const Tensor index = bed.zeros(DType::kI64, {3});
  for (int64_t i = 0; i < 3; ++i) index.ptr<int64_t>()[i] = 4 - 2 * i;
  scatter_rows(bed.exec, from, index, to.columns(1, 4));
  for (int64_t c = 0; c < 4; ++c) {
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_EQ(to.row<float>(4 - 2 * i)[1 + c], from.row<float>(i)[c]);
    EXPECT_EQ(to.row<float>(1)[1 + c], 0.f);
  }
  EXPECT_EQ(to.row<float>(4)[0], 0.f);
  index.ptr<int64_t>()[0] = 5;
  EXPECT_THROW(scatter_rows(bed.exec, from, index, to.columns(1, 4)), Error);
}

TEST(RowsTest, ConvertChangesTheTypeAlone) {
  TestBed bed;
  const Tensor from = bed.random(1, {4, 6});
  const Tensor to = bed.zeros(DType::kF64, {4, 5});
  convert(bed.exec, from.columns(2, 3), to.columns(1, 3));
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 3; ++c) {
      EXPECT_EQ(to.row<double>(r)[1 + c], static_cast<double>(from.row<float>(r)[2 + c]));
    }
    EXPECT_EQ(to.row<double>(r)[0], 0.0);
    EXPECT_EQ(to.row<double>(r)[4], 0.0);
  }
}

TEST(RowsTest, NothingToDo) {
  TestBed bed;
  const Tensor none = bed.zeros(DType::kF32, {0, 4});
  const Tensor table = bed.zeros(DType::kF32, {3, 4});
  gather_rows(bed.exec, none, bed.ints({}), none);
  gather_rows(bed.exec, none, bed.ints({-1, -1, -1}), table);
  segment_sum(bed.exec, none, bed.ints({}), table);
  segment_sum(bed.exec, table, bed.ints({-1, -1, -1}), none);
  multiply_forward(bed.exec, none, none, none);
  add(bed.exec, none, none, none);
  relu_forward(bed.exec, none, none);
  round_rows_to_f16(bed.exec, none);
  EXPECT_EQ(table.row<float>(2)[3], 0.f);
}

TEST(RowsTest, IndicesOutsideTheTableAreErrors) {
  TestBed bed;
  const Tensor three = bed.random(1, {3, 2});
  const Tensor to = bed.zeros(DType::kF32, {1, 2});
  for (const int32_t bad : {3, -2}) {
    try {
      gather_rows(bed.exec, three, bed.ints({bad}), to);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
      EXPECT_NE(std::string(error.what()).find("gather_rows"), std::string::npos) << error.what();
    }
    EXPECT_THROW(segment_sum(bed.exec, to, bed.ints({bad}), three), Error);
  }
  // Nothing was added before the bad index was seen.
  const std::vector<uint8_t> before = bytes_of(three);
  EXPECT_THROW(segment_sum(bed.exec, three, bed.ints({0, 1, 7}), three), Error);
  EXPECT_EQ(bytes_of(three), before);
}

template <class Index>
void expect_rows_checked() {
  constexpr Index kLow = std::numeric_limits<Index>::min(),
                  kHigh = std::numeric_limits<Index>::max();
  const auto range = [](const std::vector<Index>& index, int64_t rows) {
    const RowRange r = check_rows("test", index.data(), 0, std::ssize(index), rows);
    return std::pair(r.begin, r.end);
  };
  using Range = std::pair<int64_t, int64_t>;
  EXPECT_EQ(range({}, 0), Range(0, 0));
  EXPECT_EQ(range({-1, -1}, 0), Range(0, 0));
  EXPECT_EQ(range({0}, 1), Range(0, 1));
  EXPECT_EQ(range({7, -1, 3, 9, 3}, 10), Range(3, 10));
  EXPECT_EQ(range({kHigh - 1}, kHigh), Range(kHigh - 1, kHigh));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();  // more rows than Index counts
  EXPECT_EQ(range({3, -1}, kMost), Range(3, 4));
  EXPECT_THROW(range({3, kLow}, kMost), Error);
  EXPECT_THROW(range({3, -2}, kMost), Error);
  for (const Index bad : {Index{-2}, Index{10}, kLow, kHigh}) {
    EXPECT_THROW(range({1, -1, bad, 2}, 10), Error) << bad;
    const std::vector<Index> around = {bad, 1, 2, bad};  // what is not asked for does not matter
    EXPECT_EQ(check_rows("test", around.data(), 1, 3, 10).end, 3);
  }
}

TEST(RowsTest, RangeOfIndices) {
  expect_rows_checked<int32_t>();
  expect_rows_checked<int64_t>();
}

TEST(RowsTest, OtherDevicesAreUnsupported) {
  TestBed bed;
  const Tensor x = bed.random(1, {1, 1});
  bed.exec.device = Device::cuda();
  try {
    add(bed.exec, x, x, x);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

/// Destinations with a share of the items each: one hot, some rare, one empty, some items dropped.
std::vector<int32_t> skewed_index(int64_t n, int32_t destinations) {
  std::vector<int32_t> index;
  for (int64_t i = 0; i < n; ++i) {
    const double u = TestBed::number(77, i);
    if (u < 0.2) {
      index.push_back(1);
    } else if (u < 0.25) {
      index.push_back(-1);
    } else {
      index.push_back(static_cast<int32_t>((u - 0.25) / 0.75 * (destinations - 2)) + 2);
    }
  }
  return index;
}

TEST(RowsTest, SegmentSumMatchesPlainLoop) {
  TestBed bed(Precision::kF64);
  for (const int64_t n : {1, 255, 256, 257, 3000}) {
    const std::vector<int32_t> index = skewed_index(n, 40);
    const Tensor from = bed.random(2, {n, 70});
    const Tensor to = bed.random(3, {40, 70});
    std::vector<double> expected(to.span<double>().begin(), to.span<double>().end());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t d = index[static_cast<size_t>(i)];
      if (d < 0) continue;
      for (int64_t c = 0; c < 70; ++c) {
        expected[static_cast<size_t>(d * 70 + c)] += 0.5 * from.row<double>(i)[c];
      }
    }
    const int64_t used = bed.exec.arena->used();
    const Tensor index_tensor = bed.ints(index);
    segment_sum(bed.exec, from, index_tensor, to, 0.5);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(to.span<double>()[i], expected[i], 1e-12) << n << " items, element " << i;
    }
    EXPECT_LE(bed.exec.arena->used(), used + index_tensor.bytes() + 256);  // scratch is given back
  }
}

TEST(RowsTest, SegmentSumIsIndependentOfThreads) {
  TestBed bed;
  const int64_t n = 20000;
  const Tensor index = bed.ints(skewed_index(n, 300));
  const Tensor from = bed.random(2, {n, 33});
  const Tensor to = bed.zeros(DType::kF32, {300, 33});
  expect_independent_of_threads([&] {
    zero(to);
    segment_sum(bed.exec, from, index, to, 3.0);
    return bytes_of(to);
  });
}

TEST(RowsTest, SegmentSumWidensFloats) {
  TestBed bed;
  const Tensor from = bed.random(1, {2, 2});
  const Tensor to = bed.zeros(DType::kF64, {1, 2});
  segment_sum(bed.exec, from, bed.ints({0, 0}), to);
  EXPECT_EQ(to.ptr<double>()[1], static_cast<double>(from.row<float>(0)[1]) +
                                     static_cast<double>(from.row<float>(1)[1]));
}

TEST(RowsTest, MultiplyGradient) {
  TestBed bed(Precision::kF64);
  const Tensor a = bed.random(1, {3, 4}), b = bed.random(2, {3, 4}), dy = bed.random(3, {3, 4});
  const Tensor y = bed.zeros(DType::kF64, {3, 4});
  const Tensor da = bed.random(4, {3, 4}), db = bed.random(5, {3, 4});
  const auto f = [&] {
    multiply_forward(bed.exec, a, b, y);
    return dot(y, dy);
  };
  multiply_backward(bed.exec, dy, a, b, da, db);
  expect_gradient(a, da, f);
  expect_gradient(b, db, f);
  const std::vector<uint8_t> before = bytes_of(db);
  multiply_backward(bed.exec, dy, a, b, {}, db);
  EXPECT_EQ(bytes_of(db), before);
}

TEST(RowsTest, ReluGradientAndNan) {
  TestBed bed(Precision::kF64);
  const Tensor x = bed.random(1, {5, 4}), dy = bed.random(3, {5, 4});
  const Tensor y = bed.zeros(DType::kF64, {5, 4}), dx = bed.random(4, {5, 4});
  relu_backward(bed.exec, dy, x, dx);
  expect_gradient(x, dx, [&] {
    relu_forward(bed.exec, x, y);
    return dot(y, dy);
  });
  x.ptr<double>()[0] = std::numeric_limits<double>::quiet_NaN();
  relu_forward(bed.exec, x, y);
  EXPECT_TRUE(std::isnan(y.ptr<double>()[0]));
}

// Contiguous matrices are gone over as one long row, views row by row.
TEST(RowsTest, ViewsGiveWhatWholeMatricesGive) {
  TestBed bed;
  const int64_t rows = 5000, columns = 9;  // several tasks
  const Tensor wide = bed.random(1, {rows, columns + 4}), view = wide.columns(3, columns);
  const Tensor x = bed.zeros(DType::kF32, {rows, columns}),
               y = bed.zeros(DType::kF32, {rows, columns});
  const Tensor into = bed.zeros(DType::kF32, {rows, columns + 4}), part = into.columns(2, columns);
  convert(bed.exec, view, x);
  relu_forward(bed.exec, x, y);
  relu_forward(bed.exec, view, part);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      ASSERT_EQ(x.row<float>(r)[c], view.row<float>(r)[c]);
      ASSERT_EQ(y.row<float>(r)[c], std::max(0.F, view.row<float>(r)[c]));
      ASSERT_EQ(part.row<float>(r)[c], y.row<float>(r)[c]);
    }
    for (const int64_t c : {0, 1, 11, 12}) ASSERT_EQ(into.row<float>(r)[c], 0.F);
  }
}

TEST(RowsTest, AddMayWriteIntoAnOperand) {
  TestBed bed;
  const Tensor a = bed.random(1, {70, 500}), b = bed.random(2, {70, 500});
  const float expected = a.row<float>(69)[499] + b.row<float>(69)[499];
  add(bed.exec, a, b, b);
  EXPECT_EQ(b.row<float>(69)[499], expected);
}

TEST(RowsTest, Bf16ModeRoundsOnce) {
  TestBed bed(Precision::kBf16);
  const Tensor a = bed.random(1, {9, 11}), b = bed.random(2, {9, 11});
  const Tensor sum = bed.zeros(DType::kF32, {9, 11}), product = bed.zeros(DType::kF32, {9, 11});
  const Tensor da = bed.zeros(DType::kF32, {9, 11});
  add(bed.exec, a, b, sum);
  multiply_forward(bed.exec, a, b, product);
  multiply_backward(bed.exec, sum, a, b, da, {});
  for (size_t i = 0; i < 99; ++i) {
    const float x = a.span<float>()[i], z = b.span<float>()[i];
    EXPECT_EQ(sum.span<float>()[i], round_to_bf16(x + z));
    EXPECT_EQ(product.span<float>()[i], round_to_bf16(x * z));
    EXPECT_EQ(da.span<float>()[i], round_to_bf16(sum.span<float>()[i] * z));
  }
}

TEST(RowsTest, RoundingInPlace) {
  TestBed bed;
  const Tensor x = bed.random(1, {3, 50});
  const Tensor original = bed.zeros(DType::kF32, {3, 50});
  copy(original, x);
  round_rows_to_bf16(bed.exec, x);  // kF32: activations are floats
  EXPECT_EQ(bytes_of(x), bytes_of(original));
  round_rows_to_bf16(bed.exec.with(Precision::kBf16), x.columns(10, 5));
  for (int64_t c = 0; c < 50; ++c) {
    const float value = original.row<float>(2)[c];
    EXPECT_EQ(x.row<float>(2)[c], c >= 10 && c < 15 ? round_to_bf16(value) : value);
  }
  copy(x, original);
  round_rows_to_f16(bed.exec, x);
  EXPECT_EQ(x.row<float>(1)[7], round_to_f16(original.row<float>(1)[7]));
  EXPECT_NE(x.row<float>(1)[7], original.row<float>(1)[7]);
}

TEST(RowsTest, SortedIndexIsStableAndKeepsNowhereLast) {
  const std::vector<int32_t> index = {2, -1, 0, 2, 0, -1, 1};
  std::vector<int32_t> keys(index.size()), items(index.size());
  sort_index(index, 4, keys, items);
  EXPECT_EQ(items, (std::vector<int32_t>{2, 4, 6, 0, 3, 1, 5}));
  EXPECT_EQ(keys, (std::vector<int32_t>{0, 0, 1, 2, 2, 4, 4}));
  sort_index({}, 0, {}, {});
}

TEST(RowsTest, SeveralTablesAreGatheredThroughTheWire) {
  TestBed bed;
  const Tensor a = bed.random(1, {5, 3}), b = bed.random(2, {4, 3});
  const Tensor to = bed.random(3, {5, 3});
  const TableRows parts[] = {{a, bed.ints({4, 0}), to.rows(0, 2)},
                             {b, bed.ints({1, -1, 3}), to.rows(2, 3)}};
  gather_tables(bed.exec, parts, DType::kF16);
  for (int64_t c = 0; c < 3; ++c) {
    EXPECT_EQ(to.row<float>(0)[c], round_to_f16(a.row<float>(4)[c]));
    EXPECT_EQ(to.row<float>(1)[c], round_to_f16(a.row<float>(0)[c]));
    EXPECT_EQ(to.row<float>(2)[c], round_to_f16(b.row<float>(1)[c]));
    EXPECT_EQ(to.row<float>(3)[c], 0.f);
    EXPECT_EQ(to.row<float>(4)[c], round_to_f16(b.row<float>(3)[c]));
  }
}

}  // namespace
}  // namespace segue::ops
