#include "ops/assemble.h"

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

/// A batch of random tokens: content rows and contextual rows mixed, some without action or
/// encoding.
struct Batch {
  AssembleParams p;
  AssembleGradients gradients;
  Tensor x, dx;

  Batch(TestBed& bed, int64_t tokens, int64_t dim, float dropout, int32_t hot_share = 0) {
    constexpr int32_t kContent = 7, kContext = 4, kCodes = 3, kPositions = 6, kTimes = 5;
    p.content = bed.random(1, {kContent, dim});
    p.context = bed.random(2, {kContext, dim});
    p.action_rows = bed.random(3, {kCodes, dim});
    p.position_table = bed.random(4, {kPositions, dim});
    p.time_table = bed.random(5, {kTimes, dim});
    p.scale = 1.75;
    const auto index = [&](uint64_t seed, int32_t rows, bool optional) {
      std::vector<int32_t> values;
      for (int64_t t = 0; t < tokens; ++t) {
        const double u = 0.5 * (TestBed::number(seed, t) + 1);
        const auto row = static_cast<int32_t>(u * (rows + (optional ? 1 : 0)));
        const bool hot = TestBed::number(seed + 50, t) * 50 + 50 < hot_share;
        values.push_back(hot ? 0 : (row == rows ? -1 : row));
      }
      return bed.ints(values);
    };
    p.row_index = index(6, kContent + kContext, true);
    p.action_index = index(7, kCodes, true);
    p.position_index = index(8, kPositions, true);
    p.time_index = index(9, kTimes, true);
    p.dropout.p = dropout;
    p.dropout.site = 3;
    std::vector<int32_t> sample, token;
    for (int32_t t = 0; t < tokens; ++t) {
      sample.push_back(t / 3 + 100);
      token.push_back(t % 3);
    }
    p.dropout.rows = {bed.ints(sample), bed.ints(token)};
    x = bed.zeros(bed.exec.dtype(), {tokens, dim});
    dx = bed.random(10, {tokens, dim});
    const DType type = bed.exec.parameter_dtype();
    gradients = {bed.zeros(type, {kContent, dim}), bed.zeros(type, {kContext, dim}),
                 bed.zeros(type, {kCodes, dim}), bed.zeros(type, {kPositions, dim}),
                 bed.zeros(type, {kTimes, dim})};
  }
};

void check_all_gradients(int64_t tokens, int64_t dim, float dropout) {
  TestBed bed(Precision::kF64);
  Batch batch(bed, tokens, dim, dropout);
  const auto f = [&] {
    assemble_forward(bed.exec, batch.p, batch.x);
    return dot(batch.x, batch.dx);
  };
  assemble_backward(bed.exec, batch.p, batch.dx, batch.gradients);
  expect_gradient(batch.p.content, batch.gradients.content, f);
  expect_gradient(batch.p.context, batch.gradients.context, f);
  expect_gradient(batch.p.action_rows, batch.gradients.action, f);
  expect_gradient(batch.p.position_table, batch.gradients.position, f);
  expect_gradient(batch.p.time_table, batch.gradients.time, f);
}

TEST(AssembleTest, Gradients) { check_all_gradients(23, 5, 0.f); }
TEST(AssembleTest, GradientsWithDropout) { check_all_gradients(23, 13, 0.3f); }
TEST(AssembleTest, GradientsOfOneToken) { check_all_gradients(1, 4, 0.3f); }
TEST(AssembleTest, EmptyBatch) { check_all_gradients(0, 4, 0.3f); }

TEST(AssembleTest, GradientsAreAdded) {
  TestBed bed(Precision::kF64);
  Batch batch(bed, 11, 3, 0.f);
  assemble_backward(bed.exec, batch.p, batch.dx, batch.gradients);
  const std::vector<double> once(batch.gradients.time.span<double>().begin(),
                                 batch.gradients.time.span<double>().end());
  assemble_backward(bed.exec, batch.p, batch.dx, batch.gradients);
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_DOUBLE_EQ(batch.gradients.time.span<double>()[i], 2 * once[i]);
  }
}

TEST(AssembleTest, EverythingButTheRowsIsOptional) {
  TestBed bed(Precision::kF64);
  Batch batch(bed, 9, 4, 0.f);
  AssembleParams p;
  p.context = batch.p.context;
  p.row_index = bed.ints({0, 1, 2, 3, -1, 3, 2, 1, 0});
  assemble_forward(bed.exec, p, batch.x);
  EXPECT_EQ(batch.x.row<double>(3)[2], batch.p.context.row<double>(3)[2]);
  EXPECT_EQ(batch.x.row<double>(4)[2], 0.0);
  AssembleGradients only_context;
  only_context.context = batch.gradients.context;
  assemble_backward(bed.exec, p, batch.dx, only_context);
  EXPECT_DOUBLE_EQ(only_context.context.row<double>(1)[0],
                   batch.dx.row<double>(1)[0] + batch.dx.row<double>(7)[0]);
  assemble_backward(bed.exec, p, batch.dx, {});
}

TEST(AssembleTest, DropoutKeepsTheRightShareAndItsMean) {
  TestBed bed;
  const int64_t dim = 512;
  Batch batch(bed, 60, dim, 0.2f);
  AssembleParams p;
  p.content = bed.zeros(DType::kF32, {1, dim});
  for (float& value : p.content.span<float>()) value = 1;
  p.row_index = bed.ints(std::vector<int32_t>(60, 0));
  p.dropout = batch.p.dropout;
  assemble_forward(bed.exec, p, batch.x);
  int64_t dropped = 0;
  for (const float value : batch.x.span<float>()) {
    if (value == 0) {
      ++dropped;
    } else {
      ASSERT_EQ(value, 1.25f);
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped) / (60 * dim), 0.2, 0.01);  // four standard deviations
}

TEST(AssembleTest, DropoutMatchesTheDefinition) {
  for (const int64_t dim : {1, 8, 127, 128, 300}) {
    TestBed bed;
    Batch batch(bed, 4, dim, 0.4f);
    AssembleParams p;
    p.content = bed.zeros(DType::kF32, {1, dim});
    for (float& value : p.content.span<float>()) value = 1;
    p.row_index = bed.ints({0, 0, 0, 0});
    p.dropout = batch.p.dropout;
    assemble_forward(bed.exec, p, batch.x);
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t c = 0; c < dim; ++c) {
        const uint32_t bits = base::dropout_keep_bits(
            bed.exec.dropout_key, 3, static_cast<uint32_t>(p.dropout.rows.sample.ptr<int32_t>()[t]),
            static_cast<uint32_t>(p.dropout.rows.token.ptr<int32_t>()[t]),
            static_cast<uint32_t>(c / 8), base::dropout_threshold(0.4f));
        ASSERT_EQ(batch.x.row<float>(t)[c] != 0, ((bits >> (c % 8)) & 1u) != 0)
            << "token " << t << " column " << c << " of " << dim;
      }
    }
  }
}

TEST(AssembleTest, ANormOfTheResultComesAlong) {
  TestBed bed;
  Batch batch(bed, 12, 20, 0.3f);
  EXPECT_EQ(assemble_keep_bytes(bed.exec, batch.p, 20), 0);  // a CPU draws again
  FollowingNorm norm;
  norm.params.weight = bed.random(71, {20});
  norm.params.bias = bed.random(72, {20});
  norm.y = bed.zeros(DType::kF32, {12, 20});
  norm.stats = make_norm_stats(bed.exec, 12);
  assemble_forward(bed.exec, batch.p, batch.x, norm);
  const Tensor y = bed.zeros(DType::kF32, {12, 20});
  norm_forward(bed.exec, norm.params, batch.x, y, make_norm_stats(bed.exec, 12));
  EXPECT_GT(*std::max_element(y.span<float>().begin(), y.span<float>().end()), 0);
  EXPECT_TRUE(
      std::equal(y.span<float>().begin(), y.span<float>().end(), norm.y.span<float>().begin()));
}

TEST(AssembleTest, DropoutFollowsTheTokenAndNotTheRow) {
  TestBed bed;
  Batch batch(bed, 12, 20, 0.5f);
  assemble_forward(bed.exec, batch.p, batch.x);
  // The second half alone, as another rank or micro-batch would have it.
  AssembleParams half = batch.p;
  half.row_index = batch.p.row_index.rows(6, 6);
  half.action_index = batch.p.action_index.rows(6, 6);
  half.position_index = batch.p.position_index.rows(6, 6);
  half.time_index = batch.p.time_index.rows(6, 6);
  half.dropout.rows = {batch.p.dropout.rows.sample.rows(6, 6),
                       batch.p.dropout.rows.token.rows(6, 6)};
  const Tensor x = bed.zeros(DType::kF32, {6, 20});
  assemble_forward(bed.exec, half, x);
  EXPECT_EQ(bytes_of(x), bytes_of(batch.x.rows(6, 6)));
}

TEST(AssembleTest, IndependentOfThreads) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    TestBed bed(precision);
    Batch batch(bed, 6000, 40, 0.2f, 60);
    expect_independent_of_threads([&] {
      assemble_forward(bed.exec, batch.p, batch.x);
      std::vector<uint8_t> bytes = bytes_of(batch.x);
      for (const Tensor& g :
           {batch.gradients.content, batch.gradients.context, batch.gradients.action,
            batch.gradients.position, batch.gradients.time}) {
        zero(g);
      }
      assemble_backward(bed.exec, batch.p, batch.dx, batch.gradients);
      for (const Tensor& g :
           {batch.gradients.content, batch.gradients.context, batch.gradients.action,
            batch.gradients.position, batch.gradients.time}) {
        const std::vector<uint8_t> more = bytes_of(g);
        bytes.insert(bytes.end(), more.begin(), more.end());
      }
      return bytes;
    });
  }
}

/// What column `c` of token `t` reads, -1 giving zero; floats.
float value_at(const Tensor& table, const Tensor& index, int64_t t, int64_t c) {
  const int32_t row = index.ptr<int32_t>()[t];
  return row < 0 ? 0.f : table.row<float>(row)[c];
}

TEST(AssembleTest, Bf16ModeRoundsWhereTheReferenceDoes) {
  TestBed bed(Precision::kBf16);
  Batch batch(bed, 40, 9, 0.3f);
  for (float& value : batch.p.position_table.span<float>()) value *= 1.001f;  // tables are floats
  for (float& value : batch.p.time_table.span<float>()) value *= 1.001f;
  assemble_forward(bed.exec, batch.p, batch.x);
  assemble_backward(bed.exec, batch.p, batch.dx, batch.gradients);

  const uint32_t threshold = base::dropout_threshold(0.3f);
  const auto keep_scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(0.3f)));
  std::vector<float> content(7 * 9), position(6 * 9);
  for (int64_t t = 0; t < 40; ++t) {
    for (int64_t c = 0; c < 9; ++c) {
      const int32_t row = batch.p.row_index.ptr<int32_t>()[t];
      float x = row < 0 ? 0.f
                        : (row < 7 ? batch.p.content.row<float>(row)[c]
                                   : batch.p.context.row<float>(row - 7)[c]);
      x = round_to_bf16(x + value_at(batch.p.action_rows, batch.p.action_index, t, c));
      x = round_to_bf16(x * 1.75f);
      x = round_to_bf16(
          x + round_to_bf16(value_at(batch.p.position_table, batch.p.position_index, t, c) +
                            value_at(batch.p.time_table, batch.p.time_index, t, c)));
      const uint32_t bits = base::dropout_keep_bits(
          bed.exec.dropout_key, 3,
          static_cast<uint32_t>(batch.p.dropout.rows.sample.ptr<int32_t>()[t]),
          static_cast<uint32_t>(batch.p.dropout.rows.token.ptr<int32_t>()[t]),
          static_cast<uint32_t>(c / 8), threshold);
      const bool keep = (bits >> (c % 8)) & 1u;
      ASSERT_EQ(batch.x.row<float>(t)[c], keep ? round_to_bf16(x * keep_scale) : 0.f)
          << "token " << t << " column " << c;

      const float g = keep ? round_to_bf16(batch.dx.row<float>(t)[c] * keep_scale) : 0.f;
      const int32_t at = batch.p.position_index.ptr<int32_t>()[t];
      if (at >= 0) position[static_cast<size_t>(at * 9 + c)] += g;
      if (row >= 0 && row < 7) {
        content[static_cast<size_t>(row * 9 + c)] += round_to_bf16(g * 1.75f);
      }
    }
  }
  for (size_t i = 0; i < content.size(); ++i) {
    EXPECT_EQ(batch.gradients.content.span<float>()[i], content[i]);
  }
  for (size_t i = 0; i < position.size(); ++i) {
    EXPECT_EQ(batch.gradients.position.span<float>()[i], position[i]);
  }
}

TEST(AssembleTest, IndicesOutsideTheTablesAreErrors) {
  TestBed bed;
  for (int which = 0; which < 4; ++which) {
    Batch batch(bed, 5, 3, 0.f);
    Tensor* const indices[] = {&batch.p.row_index, &batch.p.action_index, &batch.p.position_index,
                               &batch.p.time_index};
    indices[which]->ptr<int32_t>()[2] = 11;
    try {
      assemble_forward(bed.exec, batch.p, batch.x);
      FAIL() << which;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
    }
    EXPECT_THROW(assemble_backward(bed.exec, batch.p, batch.dx, batch.gradients), Error);
  }
}

PositionParams geometry(std::span<const int64_t> offsets, std::span<const int64_t> targets,
                        int64_t contextual_len, int64_t position_buckets, int64_t time_buckets) {
  PositionParams p;
  p.offsets = offsets;
  p.num_targets = targets;
  p.contextual_len = contextual_len;
  p.position_buckets = position_buckets;
  p.time_buckets = time_buckets;
  return p;
}

TEST(AssembleTest, PositionsCountBackFromTheCandidate) {
  // 8 contextual tokens, 3 events, 1 candidate; then a sequence without tokens; then 2 candidates.
  const std::vector<int64_t> offsets = {0, 12, 12, 24}, targets = {1, 0, 2};
  std::vector<int32_t> index(24);
  position_indices(geometry(offsets, targets, 8, 8192, 1), index);
  EXPECT_EQ(index, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 11, 10, 9, 8,  //
                                         0, 1, 2, 3, 4, 5, 6, 7, 10, 9,  8, 8}));
}

TEST(AssembleTest, PositionsWithoutTargetsAndWithFewBuckets) {
  const std::vector<int64_t> offsets = {0, 6};
  std::vector<int32_t> index(6);
  position_indices(geometry(offsets, {}, 2, 100, 1), index);
  EXPECT_EQ(index, (std::vector<int32_t>{0, 1, 6, 5, 4, 3}));
  position_indices(geometry(offsets, {}, 2, 5, 1), index);
  EXPECT_EQ(index, (std::vector<int32_t>{0, 1, 4, 4, 4, 3}));
  position_indices(geometry(std::vector<int64_t>{0}, {}, 2, 5, 1), {});
}

TEST(AssembleTest, TimeBucketsGrowWithTheSquareRootOfMinutes) {
  const int64_t query = 30000000;
  const std::vector<int64_t> ages = {26000000, 86400, 3600, 240, 239, 60, 59, 0, -5, 0};
  std::vector<int64_t> timestamps;
  for (const int64_t age : ages) timestamps.push_back(query - age);
  const std::vector<int64_t> offsets = {0, 10, 10};
  std::vector<int32_t> index(10);
  time_indices(geometry(offsets, {}, 0, 1, 2049), timestamps, index);
  EXPECT_EQ(index, (std::vector<int32_t>{658, 37, 7, 2, 1, 1, 0, 0, 0, 0}));
  time_indices(geometry(offsets, {}, 0, 1, 30), timestamps, index);
  EXPECT_EQ(index, (std::vector<int32_t>{29, 29, 7, 2, 1, 1, 0, 0, 0, 0}));
}

TEST(AssembleTest, IndicesOfASliceStartAtItsFirstToken) {
  const std::vector<int64_t> offsets = {100, 103, 105};
  const std::vector<int64_t> timestamps = {0, 60, 240, 7, 7};
  std::vector<int32_t> index(5);
  time_indices(geometry(offsets, {}, 0, 9, 9), timestamps, index);
  EXPECT_EQ(index, (std::vector<int32_t>{2, 1, 0, 0, 0}));
  position_indices(geometry(offsets, {}, 0, 9, 9), index);
  EXPECT_EQ(index, (std::vector<int32_t>{3, 2, 1, 2, 1}));
}

}  // namespace
}  // namespace segue::ops
