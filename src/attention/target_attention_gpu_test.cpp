#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "attention/hstu_attention.h"
#include "ops/gpu_test_util.h"
#include "ops/norm.h"
#include "ops/rows.h"

namespace segue::attention {
namespace {

using ops::test::expect_like_cpu;
using ops::test::ModeBed;
using ops::test::Outputs;

struct Geometry {
  std::vector<int64_t> lengths, targets;
  int64_t heads, dim;
  HstuMask mask;
};

std::vector<int64_t> offsets_of(const Geometry& g) {
  std::vector<int64_t> offsets(g.lengths.size() + 1, 0);
  std::partial_sum(g.lengths.begin(), g.lengths.end(), offsets.begin() + 1);
  return offsets;
}

Outputs run_targets(ModeBed& bed, const Geometry& g) {
  const Exec wide = bed.exec.rounds_to_bf16() ? bed.exec.with(Precision::kF32) : bed.exec;
  const std::vector<int64_t> offsets = offsets_of(g);
  const int64_t targets = std::accumulate(g.targets.begin(), g.targets.end(), int64_t{0});
  TargetAttentionParams p;
  p.h = bed.activation(1, {offsets.back(), g.dim});
  p.offsets = offsets;
  p.num_targets = g.targets;
  p.mask = g.mask;
  p.key_query = bed.parameter(2, {targets, g.heads, g.dim}, 0.3);
  p.key_bias = bed.parameter(3, {targets, g.heads}, 0.3);
  p.scale = 1.0 / 50;
  const Tensor z = wide.activation({targets, g.heads, g.dim});
  const Tensor p_sum = wide.activation({targets, g.heads});
  target_attention_forward(wide, p, z, p_sum);
  const Tensor dh = bed.exec.activation({offsets.back(), g.dim});
  const Tensor dkey_query = wide.activation({targets, g.heads, g.dim});
  const Tensor dkey_bias = wide.activation({targets, g.heads});
  target_attention_backward(wide, p, bed.parameter(4, {targets, g.heads, g.dim}, 0.3),
                            bed.parameter(5, {targets, g.heads}, 0.3), dh, dkey_query, dkey_bias);
  // What a GPU stores as bf16; nothing else is rounded here.
  if (bed.exec.device.is_cpu()) ops::round_rows_to_bf16(bed.exec, dh);
  return {{"z", false, bed.values(z)},
          {"p_sum", false, bed.values(p_sum)},
          {"dh", true, bed.values(dh)},
          {"dkey_query", true, bed.values(dkey_query)},
          {"dkey_bias", true, bed.values(dkey_bias)}};
}

/// The norm and target attention behind it. A GPU takes both at once, if it can.
Outputs run_normed(ModeBed& bed, const Geometry& g, double offset = 0) {
  const Exec& exec = bed.exec;
  const Exec wide = exec.rounds_to_bf16() ? exec.with(Precision::kF32) : exec;
  const std::vector<int64_t> offsets = offsets_of(g);
  const int64_t rows = offsets.back();
  const int64_t targets = std::accumulate(g.targets.begin(), g.targets.end(), int64_t{0});
  // Rows with a gap between them; their mean may be far from zero.
  const Tensor x = bed.activation(1, {rows, g.dim + 64}, 1, offset).columns(0, g.dim);
  ops::NormParams norm;
  norm.weight = bed.parameter(6, {g.dim}, 2);
  norm.bias = bed.parameter(7, {g.dim});
  norm.round_weights = true;
  const ops::NormStats stats = ops::make_norm_stats(exec, rows);
  TargetAttentionParams p;
  p.offsets = offsets;
  p.num_targets = g.targets;
  p.mask = g.mask;
  p.key_query = bed.parameter(2, {targets, g.heads, g.dim}, 0.1);
  p.key_bias = bed.parameter(3, {targets, g.heads}, 0.3);
  p.scale = 1.0 / 50;
  p.plan = target_attention_plan(exec, p);
  const Tensor dz = bed.parameter(4, {targets, g.heads, g.dim}, 0.3);
  const Tensor dp_sum = bed.parameter(5, {targets, g.heads}, 0.3);
  const Tensor z = wide.activation({targets, g.heads, g.dim});
  const Tensor p_sum = wide.activation({targets, g.heads});
  const Tensor dx = exec.activation({rows, g.dim});
  const Tensor dkey_query = wide.activation({targets, g.heads, g.dim});
  const Tensor dkey_bias = wide.activation({targets, g.heads});
  const ops::NormGradients dnorm{bed.parameter(8, {g.dim}), bed.parameter(9, {g.dim}), {}};
  if (exec.device.is_cuda() && exec.rounds_to_bf16()) {
    EXPECT_TRUE(target_attention_norms(exec, x));
    p.h = x;
    const TargetNorm both{norm, stats, wide.activation({targets, g.heads, g.dim})};
    target_attention_forward(exec, p, both, z, p_sum);
    target_attention_backward(exec, p, both, p_sum, dz, dp_sum, dx, dkey_query, dkey_bias, dnorm);
  } else {
    EXPECT_FALSE(target_attention_norms(exec, x));
    p.h = exec.activation({rows, g.dim});
    ops::norm_forward(exec, norm, x, p.h, stats);
    target_attention_forward(wide, p, z, p_sum);
    const Tensor dh = exec.activation({rows, g.dim});
    target_attention_backward(wide, p, dz, dp_sum, dh, dkey_query, dkey_bias);
    if (exec.device.is_cpu()) ops::round_rows_to_bf16(exec, dh);
    ops::norm_backward(exec, norm, dh, x, stats, {}, dx, dnorm);
  }
  return {{"z", false, bed.values(z)},
          {"p_sum", false, bed.values(p_sum)},
          {"dx", true, bed.values(dx)},
          {"dkey_query", true, bed.values(dkey_query)},
          {"dkey_bias", true, bed.values(dkey_bias)},
          {"dweight", true, bed.values(dnorm.weight)},
          {"dbias", true, bed.values(dnorm.bias)}};
}

class GpuTargetAttentionTest : public ops::test::GpuTest {};

TEST_F(GpuTargetAttentionTest, LikeTheCpu) {
  const Geometry cases[] = {
      {{300, 1, 0, 129, 128}, {1, 1, 0, 1, 1}, 4, 512, {}},
      {{40, 17, 5}, {3, 16, 0}, 2, 64, {}},
      {{40, 17, 5}, {1, 2, 1}, 3, 13, {.contextual_len = 2, .window = 6, .min_full = 2}},
      {{700, 3}, {2, 3}, 5, 128, {.contextual_len = 4}},
      {{700, 3}, {2, 3}, 5, 128, {.contextual_len = 4, .window = 50}},
      {{700, 300, 3}, {2, 1, 3}, 4, 64, {.window = 200, .global_prefix = 140}},
  };
  for (const Geometry& g : cases) {
    expect_like_cpu([&](ModeBed& bed) { return run_targets(bed, g); });
  }
}

// Where the tiles, chunks and groups of heads of tensor cores begin and end.
TEST_F(GpuTargetAttentionTest, NormedRowsAtTheEdgesOfTiles) {
  const std::vector<int64_t> lengths{1,   0,   31,  32,  33,  64,  65,  127, 128, 129,
                                     255, 256, 257, 258, 511, 512, 513, 700, 1,   2};
  std::vector<int64_t> one(lengths.size());
  for (size_t b = 0; b < lengths.size(); ++b) one[b] = std::min<int64_t>(lengths[b], 1);
  for (const int64_t dim : {64, 192, 512}) {
    for (const int64_t heads : {1, 3, 4}) {
      const Geometry g{lengths, one, heads, dim, {}};
      expect_like_cpu([&](ModeBed& bed) { return run_normed(bed, g); }, Precision::kBf16);
    }
  }
}

TEST_F(GpuTargetAttentionTest, NormedRowsWithTargetsAndGroupsOfHeads) {
  const HstuMask masks[] = {{},
                            {.contextual_len = 3},
                            {.contextual_len = 2, .window = 40, .min_full = 2},
                            {.window = 40},
                            {.contextual_len = 2, .window = 40, .global_prefix = 130}};
  for (const HstuMask& mask : masks) {
    for (const int64_t heads : {2, 4, 5, 8}) {
      const Geometry g{{300, 0, 1, 257, 40, 3, 9}, {3, 0, 1, 16, 0, 3, 2}, heads, 128, mask};
      expect_like_cpu([&](ModeBed& bed) { return run_normed(bed, g); }, Precision::kBf16);
    }
  }
}

TEST_F(GpuTargetAttentionTest, NormedRowsOfLongSequences) {
  for (const int64_t targets : {1, 2}) {
    const Geometry g{{4096, 5}, {targets, 0}, 4, 512, {}};
    expect_like_cpu([&](ModeBed& bed) { return run_normed(bed, g); }, Precision::kBf16);
  }
}

TEST_F(GpuTargetAttentionTest, NormedRowsFarFromZero) {
  const Geometry g{{300, 40}, {1, 1}, 4, 512, {}};
  expect_like_cpu([&](ModeBed& bed) { return run_normed(bed, g, 10); }, Precision::kBf16);
}

TEST_F(GpuTargetAttentionTest, FloatRowsAreNormedBefore) {
  const Geometry g{{300, 40}, {1, 2}, 4, 64, {}};
  expect_like_cpu([&](ModeBed& bed) { return run_normed(bed, g); }, Precision::kF32);
}

TEST_F(GpuTargetAttentionTest, ManySequences) {
  Geometry g{{}, {}, 2, 64, {}};
  for (int64_t b = 0; b < 2500; ++b) {
    g.lengths.push_back(b % 7 + 1);
    g.targets.push_back(b % 3 == 0 ? 0 : 1);
  }
  expect_like_cpu([&](ModeBed& bed) { return run_targets(bed, g); }, Precision::kF32);
}

TEST_F(GpuTargetAttentionTest, NoTargetsGiveNoGradients) {
  ModeBed bed(Device::cuda(), Precision::kF32);
  const Outputs outputs = run_targets(bed, {{5, 3}, {0, 0}, 2, 16, {}});
  EXPECT_EQ(outputs[2].values, std::vector<double>(8 * 16, 0.0));
}

// Shapes that have no kernel of their own.
TEST_F(GpuTargetAttentionTest, PlainAttentionLikeTheCpu) {
  const Geometry cases[] = {
      {{30, 1, 0, 67}, {1, 1, 0, 3}, 2, 24, {.target_group = 2}},
      {{50, 9}, {2, 9}, 3, 40, {.contextual_len = 3, .window = 5, .min_full = 4}},
  };
  for (const Geometry& g : cases) {
    expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const std::vector<int64_t> offsets = offsets_of(g);
      const int64_t rows = offsets.back(), v_dim = g.dim - 8;
      HstuAttentionParams p;
      p.q = bed.activation(1, {rows, g.heads, g.dim});
      p.k = bed.activation(2, {rows, g.heads, g.dim});
      p.v = bed.activation(3, {rows, g.heads, v_dim});
      p.offsets = offsets;
      p.num_targets = g.targets;
      p.mask = g.mask;
      p.alpha = 0.3;
      p.scale = 1.0 / 40;
      const Tensor o = bed.exec.activation({rows, g.heads, v_dim});
      hstu_attention_forward(bed.exec, p, o);
      const Tensor dq = bed.exec.activation({rows, g.heads, g.dim});
      const Tensor dk = bed.exec.activation({rows, g.heads, g.dim});
      const Tensor dv = bed.exec.activation({rows, g.heads, v_dim});
      hstu_attention_backward(bed.exec, p, bed.activation(4, {rows, g.heads, v_dim}), dq, dk, dv);
      return {{"o", false, bed.values(o)},
              {"dq", true, bed.values(dq)},
              {"dk", true, bed.values(dk)},
              {"dv", true, bed.values(dv)}};
    });
  }
}

}  // namespace
}  // namespace segue::attention
