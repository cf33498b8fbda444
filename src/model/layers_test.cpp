#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/mlp.h"
#include "model/postprocessor.h"
#include "model/preprocessor.h"
#include "model/stu.h"
#include "ops/test_util.h"

namespace segue::model {
namespace {

using ops::test::dot;
using ops::test::expect_gradient;
using ops::test::TestBed;

constexpr uint64_t kSeed = 11;

/// Initial values hide mistakes (biases of zero, norm weights of one), so every parameter moves.
void perturb(Parameters& parameters) {
  uint64_t seed = 100;
  for (Parameter& p : parameters.all()) {
    int64_t i = 0;
    for (double& x : p.value.reshape({p.value.elements()}).span<double>()) {
      x += 0.3 * TestBed::number(seed, i++);
    }
    ++seed;
  }
}

/// Checks gradients of all parameters and of `x` for a layer given as forward and backward.
void check_layer(TestBed& bed, Parameters& parameters, const Tensor& x, const Tensor& weights,
                 const std::function<Tensor()>& forward,
                 const std::function<void(const Tensor& dy, const Tensor& dx)>& backward) {
  const auto f = [&] {
    Arena::Mark mark(*bed.exec.arena);
    return dot(forward(), weights);
  };
  parameters.zero_grads();
  const Tensor dx = bed.zeros(DType::kF64, {x.size(0), x.size(1)});
  backward(weights, dx);
  expect_gradient(x, dx, f);
  for (Parameter& p : parameters.all()) {
    SCOPED_TRACE(p.name);
    expect_gradient(p.value.reshape({p.value.elements()}), p.grad.reshape({p.grad.elements()}), f);
  }
}

class MlpTest : public testing::TestWithParam<std::tuple<bool, bool, int>> {};

TEST_P(MlpTest, GradientsMatchFiniteDifferences) {
  const auto [relu, final_norm, rows] = GetParam();
  TestBed bed(Precision::kF64);
  Parameters parameters;
  Mlp mlp(parameters, "mlp",
          {.in = 5, .hidden = 4, .out = 6, .relu = relu, .final_norm = final_norm});
  parameters.allocate(Device::cpu(), DType::kF64, kSeed);
  perturb(parameters);
  const Tensor x = bed.random(1, {rows, 5});
  const Tensor dy = bed.random(2, {rows, 6});
  check_layer(
      bed, parameters, x, dy, [&] { return mlp.forward(bed.exec, x).y; },
      [&](const Tensor& d, const Tensor& dx) {
        mlp.backward(bed.exec, mlp.forward(bed.exec, x), d, dx);
      });
}
INSTANTIATE_TEST_SUITE_P(Forms, MlpTest,
                         testing::Combine(testing::Bool(), testing::Bool(),
                                          testing::Values(0, 1, 3)));

class PostprocessorTest : public testing::TestWithParam<PostprocessorKind> {};

TEST_P(PostprocessorTest, GradientsMatchFiniteDifferences) {
  TestBed bed(Precision::kF64);
  Parameters parameters;
  Postprocessor post(parameters, "", {.kind = GetParam(), .dim = 6});
  parameters.add("unused", {1}, ops::Init::kZeros);  // the L2 form has no parameter of its own
  parameters.allocate(Device::cpu(), DType::kF64, kSeed);
  perturb(parameters);
  const std::vector<int64_t> times = {0, 3599, 1'000'000, 90'061};
  const Tensor x = bed.random(1, {4, 6});
  const Tensor dy = bed.random(2, {4, 6});
  check_layer(
      bed, parameters, x, dy,
      [&] { return post.forward(bed.exec, x, host_view(std::span(times))).y; },
      [&](const Tensor& d, const Tensor& dx) {
        post.backward(bed.exec, post.forward(bed.exec, x, host_view(std::span(times))), d, dx);
      });
}
INSTANTIATE_TEST_SUITE_P(Kinds, PostprocessorTest,
                         testing::Values(PostprocessorKind::kL2, PostprocessorKind::kLayerNorm,
                                         PostprocessorKind::kTimestampLayerNorm));

TEST(PreprocessorTest, GradientsMatchFiniteDifferences) {
  TestBed bed(Precision::kF64);
  const Exec& exec = bed.exec;
  Parameters parameters;
  Preprocessor pre(parameters, "",
                   {.embedding_dim = 4,
                    .hidden = 5,
                    .dim = 6,
                    .additional_features = 2,
                    .contextual_tokens = 3,
                    .action_bits = 2,
                    .action_dim = 3});
  parameters.allocate(Device::cpu(), DType::kF64, kSeed);
  perturb(parameters);
  constexpr int64_t kRows = 3, kSamples = 2;
  const Tensor inputs = bed.random(1, {kRows * 3 + 3 * kSamples, 4});
  const Tensor codes = bed.ints({0, 1, 2, 3, 4, 1});
  const auto forward = [&] {
    return pre.forward(exec, pre.split_inputs(inputs, kRows, kSamples), codes);
  };
  const Tensor all = bed.random(4, {kRows + 6 + 3 * kSamples, 6});
  ASSERT_EQ(all.size(0), pre.row_count({kRows, 6, kSamples}));
  const Preprocessor::RowGradients d = pre.split_rows(all, forward());
  const auto f = [&] {
    Arena::Mark mark(*exec.arena);
    const auto s = forward();
    return dot(s.rows, d.rows) + dot(s.action_rows, d.action_rows) +
           dot(s.context_rows, d.context_rows);
  };
  const Tensor dinputs = bed.random(7, {inputs.size(0), 4});  // overwritten
  pre.backward(exec, forward(), all, dinputs);
  expect_gradient(inputs, dinputs, f);
  for (Parameter& p : parameters.all()) {
    SCOPED_TRACE(p.name);
    expect_gradient(p.value.reshape({p.value.elements()}), p.grad.reshape({p.grad.elements()}), f);
  }
}

struct StuCase {
  const char* name;
  StuConfig config;
  std::vector<int64_t> lengths, targets;
};

StuConfig small_stu() {
  return {.dim = 6, .heads = 2, .qk_dim = 3, .v_dim = 4, .dropout = 0.2, .dropout_site = 3};
}

std::vector<StuCase> stu_cases() {
  std::vector<StuCase> cases;
  const std::vector<int64_t> lengths = {3, 0, 1, 5};
  const std::vector<int64_t> targets = {1, 0, 1, 2};
  cases.push_back({"concat", small_stu(), lengths, targets});
  StuConfig c = small_stu();
  c.kind = LayerKind::kGated;
  cases.push_back({"gated", c, lengths, targets});
  c = small_stu();
  c.output_norm = OutputNorm::kGroup;
  cases.push_back({"group_norm", c, lengths, targets});
  c.heads = 1;
  cases.push_back({"group_norm_of_one_head", c, lengths, targets});
  c = small_stu();
  c.mask = {.contextual_len = 2};
  cases.push_back({"contextual", c, lengths, targets});
  c = small_stu();
  c.mask = {.window = 2, .min_full = 1};
  c.kind = LayerKind::kGated;
  c.output_norm = OutputNorm::kGroup;
  cases.push_back({"window_gated_group", c, lengths, targets});
  c = small_stu();
  c.recompute = {.normed_input = true, .uvqk = true, .gate = true};
  cases.push_back({"recompute", c, lengths, targets});
  cases.push_back({"no_tokens", small_stu(), {0, 0}, {0, 0}});
  return cases;
}

/// Packed sequences with the identity that dropout needs.
struct PackedSequences {
  PackedSequences(TestBed& bed, const StuCase& c) : num_targets(c.targets) {
    offsets.push_back(0);
    std::vector<int32_t> sample, token, target_rows, target_sample, target_token;
    for (size_t b = 0; b < c.lengths.size(); ++b) {
      for (int64_t t = 0; t < c.lengths[b]; ++t) {
        sample.push_back(static_cast<int32_t>(b) + 7);
        token.push_back(static_cast<int32_t>(t));
        if (t >= c.lengths[b] - c.targets[b]) {
          target_rows.push_back(static_cast<int32_t>(offsets.back() + t));
          target_sample.push_back(sample.back());
          target_token.push_back(token.back());
        }
      }
      offsets.push_back(offsets.back() + c.lengths[b]);
    }
    seq = {.offsets = offsets,
           .num_targets = num_targets,
           .rows = {bed.ints(sample), bed.ints(token)},
           .score_scale = 0.2,
           .training = true};
    targets = {bed.ints(target_rows), {bed.ints(target_sample), bed.ints(target_token)}};
  }
  std::vector<int64_t> offsets, num_targets;
  Sequences seq;
  TargetTokens targets;
};

class StuTest : public testing::TestWithParam<size_t> {};

TEST_P(StuTest, GradientsMatchFiniteDifferences) {
  const StuCase c = stu_cases()[GetParam()];
  SCOPED_TRACE(c.name);
  TestBed bed(Precision::kF64);
  Parameters parameters;
  StuLayer layer(parameters, "", c.config);
  parameters.allocate(Device::cpu(), DType::kF64, kSeed);
  perturb(parameters);
  PackedSequences packed(bed, c);
  const int64_t tokens = packed.offsets.back();
  const Tensor x = bed.random(1, {tokens, 6});
  const Tensor dy = bed.random(2, {tokens, 6});
  check_layer(
      bed, parameters, x, dy, [&] { return layer.forward(bed.exec, packed.seq, x).x_out; },
      [&](const Tensor& d, const Tensor& dx) {
        layer.backward(bed.exec, packed.seq, layer.forward(bed.exec, packed.seq, x), d, dx);
      });
}
INSTANTIATE_TEST_SUITE_P(Cases, StuTest, testing::Range<size_t>(0, stu_cases().size()));

/// The layer at target rows equals the full layer, forward and backward, dropout included.
TEST(StuTargetsTest, EqualsTheFullLayerAtTargetRows) {
  for (const StuCase& c : stu_cases()) {
    SCOPED_TRACE(c.name);
    TestBed bed(Precision::kF64);
    Parameters parameters;
    StuLayer layer(parameters, "", c.config);
    if (c.config.kind != LayerKind::kConcat) continue;
    parameters.allocate(Device::cpu(), DType::kF64, kSeed);
    perturb(parameters);
    PackedSequences packed(bed, c);
    const int64_t tokens = packed.offsets.back();
    const int64_t targets = packed.targets.rows.size(0);
    const Tensor x = bed.random(1, {tokens, 6});
    const Tensor dy = bed.random(2, {targets, 6});
    const Tensor dy_full = bed.zeros(DType::kF64, {tokens, 6});
    for (int64_t i = 0; i < targets; ++i) {
      std::copy_n(dy.row<double>(i), 6, dy_full.row<double>(packed.targets.rows.ptr<int32_t>()[i]));
    }

    const auto full = layer.forward(bed.exec, packed.seq, x);
    const Tensor dx_full = bed.zeros(DType::kF64, {tokens, 6});
    parameters.zero_grads();
    layer.backward(bed.exec, packed.seq, full, dy_full, dx_full);
    const std::vector<double> expected(parameters.grads().span<double>().begin(),
                                       parameters.grads().span<double>().end());

    const auto some = layer.forward_targets(bed.exec, packed.seq, x, packed.targets);
    const Tensor dx = bed.zeros(DType::kF64, {tokens, 6});
    parameters.zero_grads();
    layer.backward_targets(bed.exec, packed.seq, some, dy, dx);

    for (int64_t i = 0; i < targets; ++i) {
      for (int64_t d = 0; d < 6; ++d) {
        EXPECT_NEAR(some.x_out.row<double>(i)[d],
                    full.x_out.row<double>(packed.targets.rows.ptr<int32_t>()[i])[d], 1e-12);
      }
    }
    for (int64_t i = 0; i < dx.elements(); ++i) {
      EXPECT_NEAR(dx.ptr<double>()[i], dx_full.ptr<double>()[i], 1e-12);
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(parameters.grads().span<double>()[i], expected[i], 1e-12);
    }
  }
}

}  // namespace
}  // namespace segue::model
