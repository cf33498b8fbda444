#include "ops/bags.h"

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

// Five bags: three ids, none, one, an absent one, four of which two are the same.
const std::vector<int32_t> kIndex = {2, 0, 3, 1, -1, 3, 3, -1, 0};
const std::vector<int64_t> kOffsets = {0, 3, 3, 4, 5, 9};

std::vector<int32_t> bags_of(const std::vector<int64_t>& offsets) {
  std::vector<int32_t> bag(static_cast<size_t>(offsets.back()));
  bag_of_each(offsets, bag);
  return bag;
}

TEST(BagsTest, BagOfEachId) {
  EXPECT_EQ(bags_of(kOffsets), (std::vector<int32_t>{0, 0, 0, 2, 3, 4, 4, 4, 4}));
  EXPECT_TRUE(bags_of({0}).empty());
  EXPECT_TRUE(bags_of({0, 0, 0}).empty());
}

TEST(BagsTest, SumsTheRowsOfEveryBag) {
  TestBed bed;
  const Tensor from = bed.random(1, {4, 6});
  const Tensor y = bed.random(2, {5, 9});  // overwritten in its middle columns alone
  const Tensor before = bed.zeros(DType::kF32, {5, 9});
  copy(before, y);
  bag_sum_forward(bed.exec, from, bed.ints(kIndex), host_view(std::span(kOffsets)),
                  y.columns(2, 6));
  for (int64_t c = 0; c < 6; ++c) {
    const auto x = [&](int64_t r) { return from.row<float>(r)[c]; };
    EXPECT_EQ(y.row<float>(0)[2 + c], x(2) + x(0) + x(3));
    EXPECT_EQ(y.row<float>(1)[2 + c], 0.f);
    EXPECT_EQ(y.row<float>(2)[2 + c], x(1));
    EXPECT_EQ(y.row<float>(3)[2 + c], 0.f);
    EXPECT_EQ(y.row<float>(4)[2 + c], x(3) + x(3) + x(0));
  }
  for (int64_t b = 0; b < 5; ++b) {
    for (const int64_t c : {0, 1, 8}) EXPECT_EQ(y.row<float>(b)[c], before.row<float>(b)[c]);
  }
}

// Rows of large tables are asked for ahead: past the last id, past absent ones and past wrong ones.
// Columns are summed in blocks of 64, 32, 16, 8 and 1.
TEST(BagsTest, SumsRowsOfALargeTable) {
  for (const int64_t columns : {1, 8, 64, 64 + 32 + 16 + 8 + 3, 256}) {
    TestBed bed;
    const int64_t rows = (int64_t{5} << 20) / (4 * columns), bags = 50;
    const Tensor from = bed.random(1, {rows, columns}), y = bed.zeros(DType::kF32, {bags, columns});
    std::vector<int32_t> index;
    std::vector<int64_t> offsets = {0};
    for (int64_t b = 0; b < bags; ++b) {
      for (int64_t i = 0; i < b % 7; ++i) {
        const int64_t n = b * 997 + i * 7919;
        index.push_back(n % 5 == 0 ? -1 : static_cast<int32_t>(n % rows));
      }
      offsets.push_back(static_cast<int64_t>(index.size()));
    }
    bag_sum_forward(bed.exec, from, bed.ints(index), host_view(std::span(offsets)), y);
    for (int64_t b = 0; b < bags; ++b) {
      for (int64_t c = 0; c < columns; ++c) {
        float sum = 0;
        for (auto i = static_cast<size_t>(offsets[static_cast<size_t>(b)]);
             i < static_cast<size_t>(offsets[static_cast<size_t>(b) + 1]); ++i) {
          if (index[i] >= 0) sum += from.row<float>(index[i])[c];
        }
        ASSERT_EQ(y.row<float>(b)[c], sum) << columns << " " << b << " " << c;
      }
    }
    index.back() = static_cast<int32_t>(rows);
    EXPECT_THROW(bag_sum_forward(bed.exec, from, bed.ints(index), host_view(std::span(offsets)), y),
                 Error);
  }
}

TEST(BagsTest, GradientsMatchFiniteDifferences) {
  TestBed bed(Precision::kF64);
  const Tensor from = bed.random(1, {4, 3}), dy = bed.random(2, {5, 3});
  const Tensor y = bed.zeros(DType::kF64, {5, 3}), dfrom = bed.zeros(DType::kF64, {4, 3});
  const Tensor index = bed.ints(kIndex), offsets = host_view(std::span(kOffsets));
  bag_sum_backward(bed.exec, dy, index, bed.ints(bags_of(kOffsets)), dfrom);
  expect_gradient(from, dfrom, [&] {
    bag_sum_forward(bed.exec, from, index, offsets, y);
    return dot(y, dy);
  });
}

TEST(BagsTest, BackwardAddsToWhatIsThere) {
  TestBed bed(Precision::kF64);
  const Tensor dy = bed.random(2, {5, 3}), index = bed.ints(kIndex);
  const Tensor bag = bed.ints(bags_of(kOffsets));
  const Tensor once = bed.zeros(DType::kF64, {4, 3}), twice = bed.zeros(DType::kF64, {4, 3});
  bag_sum_backward(bed.exec, dy, index, bag, once);
  for (int i = 0; i < 2; ++i) bag_sum_backward(bed.exec, dy, index, bag, twice);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_NEAR(twice.span<double>()[i], 2 * once.span<double>()[i], 1e-15);
  }
}

// The gradient of a bag is read where it is, in blocks of columns, for rows that many bags have
// too.
TEST(BagsTest, BackwardIsTheSumOverIdsOfAllWidths) {
  for (const int64_t columns : {1, 8, 20, 64 + 32 + 16 + 8 + 3}) {
    TestBed bed(Precision::kF64);
    const int64_t rows = 30, bags = 700;
    std::vector<int32_t> index;
    std::vector<int64_t> offsets = {0};
    for (int64_t b = 0; b < bags; ++b) {
      for (int64_t i = 0; i < b % 4; ++i) {
        const int64_t n = b * 997 + i * 7919;
        index.push_back(n % 11 == 0 ? -1 : n % 2 == 0 ? 7 : static_cast<int32_t>(n % rows));
      }
      offsets.push_back(static_cast<int64_t>(index.size()));
    }
    const Tensor wide = bed.random(2, {bags, columns + 3}), dy = wide.columns(1, columns);
    const Tensor dfrom = bed.random(3, {rows, columns});
    std::vector<double> expected(dfrom.span<double>().begin(), dfrom.span<double>().end());
    const std::vector<int32_t> bag = bags_of(offsets);
    for (size_t i = 0; i < index.size(); ++i) {
      for (int64_t c = 0; index[i] >= 0 && c < columns; ++c) {
        expected[static_cast<size_t>(index[i] * columns + c)] += dy.row<double>(bag[i])[c];
      }
    }
    bag_sum_backward(bed.exec, dy, bed.ints(index), bed.ints(bag), dfrom);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(dfrom.span<double>()[i], expected[i], 1e-11) << columns << " columns at " << i;
    }
  }
}

TEST(BagsTest, RoundsTheSumOnce) {
  TestBed bed(Precision::kBf16);
  const Tensor from = bed.zeros(DType::kF32, {2, 1}), y = bed.zeros(DType::kF32, {1, 1});
  from.ptr<float>()[0] = 1.f;
  from.ptr<float>()[1] = 0x1p-9f;  // half of what bf16 can tell at 1: twice of it counts
  const std::vector<int64_t> offsets = {0, 3};
  bag_sum_forward(bed.exec, from, bed.ints({0, 1, 1}), host_view(std::span(offsets)), y);
  EXPECT_EQ(y.ptr<float>()[0], round_to_bf16(1.f + 0x1p-8f));
  bag_sum_forward(bed.exec, from, bed.ints({1, 0, 0}), host_view(std::span(offsets)), y);
  EXPECT_EQ(y.ptr<float>()[0], round_to_bf16(2.f + 0x1p-9f));
}

TEST(BagsTest, NoBagsAndNoRows) {
  TestBed bed;
  const std::vector<int64_t> none = {0}, empty = {0, 0, 0}, absent = {0, 1};
  const Tensor rows = bed.zeros(DType::kF32, {0, 4}), y = bed.random(1, {2, 4});
  bag_sum_forward(bed.exec, rows, bed.ints({}), host_view(std::span(none)), rows);
  bag_sum_forward(bed.exec, rows, bed.ints({}), host_view(std::span(empty)), y);
  for (const float x : y.span<float>()) EXPECT_EQ(x, 0.f);
  bag_sum_forward(bed.exec, rows, bed.ints({-1}), host_view(std::span(absent)), y.rows(0, 1));
  bag_sum_backward(bed.exec, y, bed.ints({}), bed.ints({}), rows);
}

TEST(BagsTest, IndicesOutsideTheRowsAreErrors) {
  TestBed bed;
  const std::vector<int64_t> offsets = {0, 1};
  const Tensor from = bed.random(1, {4, 3}), y = bed.random(2, {1, 3});
  for (const int32_t bad : {4, -2}) {
    try {
      bag_sum_forward(bed.exec, from, bed.ints({bad}), host_view(std::span(offsets)), y);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
    }
  }
}

// Gradients of bags are read where they are, so a wrong bag would be memory of somebody else.
TEST(BagsDeathTest, BagsOutsideTheGradients) {
  TestBed bed;
  const Tensor dy = bed.random(1, {2, 3}), dfrom = bed.zeros(DType::kF32, {4, 3});
  const Tensor index = bed.ints({0, 1, 2});
  EXPECT_DEATH(bag_sum_backward(bed.exec, dy, index, bed.ints({0, 1, 2}), dfrom), "no such bag");
  EXPECT_DEATH(bag_sum_backward(bed.exec, dy, index, bed.ints({-1, 0, 1}), dfrom), "no such bag");
}

TEST(BagsTest, IndependentOfThreads) {
  TestBed bed;
  std::vector<int32_t> index;
  std::vector<int64_t> offsets = {0};
  for (int64_t b = 0; b < 3000; ++b) {
    for (int64_t i = 0; i < b % 7; ++i) index.push_back(static_cast<int32_t>(b * i % 40));
    offsets.push_back(static_cast<int64_t>(index.size()));
  }
  const Tensor from = bed.random(1, {40, 33}), y = bed.zeros(DType::kF32, {3000, 33});
  const Tensor dfrom = bed.zeros(DType::kF32, {40, 33});
  const Tensor rows = bed.ints(index), bag = bed.ints(bags_of(offsets));
  expect_independent_of_threads([&] {
    zero(dfrom);
    bag_sum_forward(bed.exec, from, rows, host_view(std::span(offsets)), y);
    bag_sum_backward(bed.exec, y, rows, bag, dfrom);
    std::vector<uint8_t> bytes = bytes_of(y);
    const std::vector<uint8_t> gradient = bytes_of(dfrom);
    bytes.insert(bytes.end(), gradient.begin(), gradient.end());
    return bytes;
  });
}

}  // namespace
}  // namespace segue::ops
