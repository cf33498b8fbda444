// What layers take from an arena is what they plan: every tensor of forward and backward is in
// forward_memory and backward_memory.

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "comm/world.h"
#include "model/arena_plan.h"
#include "model/dense_stack.h"
#include "model/head_group.h"
#include "model/mlp.h"
#include "model/postprocessor.h"
#include "model/preprocessor.h"
#include "model/stu.h"
#include "ops/test_util.h"

namespace segue::model {
namespace {

using ops::test::TestBed;

/// In double, so that statistics of so many rows, and of twice as many, differ in size.
constexpr int64_t kRows = 32;

struct Taken {
  int64_t kept = 0;  // in use after forward
  int64_t peak = 0;
};

template <class Forward, class Backward>
Taken taken(const Exec& exec, Forward&& forward, Backward&& backward) {
  const int64_t before = exec.arena->used();
  const auto saved = forward();
  const int64_t kept = exec.arena->used() - before;
  backward(saved);
  return {kept, exec.arena->high_water() - before};
}

template <class Forward, class Backward>
Taken planned(Forward&& forward, Backward&& backward) {
  ArenaPlan plan(Precision::kF64, Device::cpu());
  const auto run = [&] { return forward(plan.exec), 0; };
  return taken(plan.exec, run, [&](int) {
    const Arena::Mark scratch(*plan.exec.arena);
    backward(plan.exec);
  });
}

/// Both make and run a layer for some rows. What is kept is equal. Ops have scratch of their own on
/// top, which for few rows does not depend on their number: peaks grow alike, or but for a share.
void expect_planned(const std::function<Taken(int64_t rows)>& run,
                    const std::function<Taken(int64_t rows)>& plan, int64_t rows = kRows,
                    double share = 0) {
  const int threads = base::num_threads();
  base::set_num_threads(1);  // ops have scratch for each
  const Taken few = run(rows), many = run(2 * rows);
  base::set_num_threads(threads);
  const Taken few_planned = plan(rows), many_planned = plan(2 * rows);
  EXPECT_EQ(few.kept, few_planned.kept);
  EXPECT_EQ(many.kept, many_planned.kept);
  EXPECT_GE(few.peak, few_planned.peak);
  const auto growth = static_cast<double>(many_planned.peak - few_planned.peak);
  EXPECT_NEAR(static_cast<double>(many.peak - few.peak), growth, share * growth);
}

template <class Layer>
struct Made {
  template <class... Arguments>
  explicit Made(const Arguments&... arguments) : layer(parameters, "", arguments...) {
    parameters.add("another", {1}, ops::Init::kZeros);  // some layers have none
    parameters.allocate(Device::cpu(), DType::kF64, 1);
  }
  Parameters parameters;
  Layer layer;
};

/// Of a layer from rows of `in` columns to rows of `out`; plan(exec, rows) is its backward's.
template <class Layer, class Plan>
void expect_dense_planned(const Layer& layer, int64_t in, int64_t out, const Plan& plan) {
  expect_planned(
      [&](int64_t rows) {
        TestBed bed(Precision::kF64);
        const Tensor x = bed.random(1, {rows, in}), dy = bed.random(2, {rows, out});
        const Tensor dx = bed.random(3, {rows, in});
        return taken(
            bed.exec, [&] { return layer.forward(bed.exec, x); },
            [&](const typename Layer::Saved& s) { layer.backward(bed.exec, s, dy, dx); });
      },
      [&](int64_t rows) {
        return planned([&](const Exec& exec) { layer.forward_memory(exec, rows); },
                       [&](const Exec& exec) { plan(exec, rows); });
      });
}

TEST(MlpMemoryTest, IsThatOfItsPlan) {
  for (const auto& [relu, norm] : {std::pair(false, true), {false, false}, {true, true}}) {
    SCOPED_TRACE(testing::Message() << relu << norm);
    const Made<Mlp> made(
        MlpConfig{.in = 5, .hidden = 12, .out = 7, .relu = relu, .final_norm = norm});
    expect_dense_planned(made.layer, 5, 7, [&made](const Exec& exec, int64_t rows) {
      made.layer.backward_memory(exec, rows);
    });
  }
}

TEST(DenseStackMemoryTest, IsThatOfItsPlan) {
  for (const bool relu : {false, true}) {
    const Made<DenseStack> made(DenseStackConfig{{5, 8, 6, 4}, relu});
    expect_dense_planned(made.layer, 5, 4, [&made](const Exec& exec, int64_t rows) {
      const Tensor dy(nullptr, DType::kF64, Device::cpu(), {rows, 4});
      made.layer.backward_memory(exec, rows, dy);
    });
  }
}

TEST(PostprocessorMemoryTest, IsThatOfItsPlan) {
  for (const PostprocessorKind kind : {PostprocessorKind::kL2, PostprocessorKind::kLayerNorm,
                                       PostprocessorKind::kTimestampLayerNorm}) {
    const Made<Postprocessor> made(Postprocessor::Config{.kind = kind, .dim = 8});
    const Postprocessor& post = made.layer;
    expect_planned(
        [&](int64_t rows) {
          TestBed bed(Precision::kF64);
          const Tensor dy = bed.random(2, {rows, 8}), dx = bed.random(3, {rows, 8});
          const std::vector<int64_t> times(static_cast<size_t>(rows), 90'061);
          const auto forward = [&] {
            const Tensor x = post.make_input(bed.exec, rows);
            for (int64_t r = 0; r < rows; ++r) std::fill_n(x.row<double>(r), 8, 0.5);
            return post.forward(bed.exec, x, host_view(std::span(times)));
          };
          return taken(bed.exec, forward,
                       [&](const Postprocessor::Saved& s) { post.backward(bed.exec, s, dy, dx); });
        },
        [&](int64_t rows) {
          return planned(
              [&](const Exec& exec) {
                post.make_input(exec, rows);
                post.forward_memory(exec, rows);
              },
              [&](const Exec& exec) { post.backward_memory(exec, rows); });
        });
  }
}

TEST(PreprocessorMemoryTest, IsThatOfItsPlan) {
  for (const auto& [features, slots, numbers] : {std::tuple(2, 3, 0), {0, 0, 0}, {1, 0, 6}}) {
    SCOPED_TRACE(features);
    const Made<Preprocessor> made(PreprocessorConfig{.embedding_dim = 4,
                                                     .hidden = 5,
                                                     .dim = 8,
                                                     .additional_features = features,
                                                     .contextual_tokens = slots,
                                                     .action_bits = 2,
                                                     .action_dim = 3,
                                                     .numbers = numbers,
                                                     .numeric_hidden = 7});
    const Preprocessor& pre = made.layer;
    expect_planned(
        [&, features = features, slots = slots, numbers = numbers](int64_t rows) {
          TestBed bed(Precision::kF64);
          const int64_t inputs = rows * (1 + features) + slots * rows;
          const Tensor x = bed.random(1, {inputs, 4}), dx = bed.random(2, {inputs, 4});
          const Tensor codes = bed.ints(std::vector<int32_t>(static_cast<size_t>(rows), 3));
          const Tensor dy = bed.random(3, {pre.row_count({rows, rows, rows}), 8});
          const Tensor given = numbers > 0 ? bed.random(4, {rows, numbers}) : Tensor();
          return taken(
              bed.exec,
              [&] { return pre.forward(bed.exec, pre.split_inputs(x, rows, rows), codes, given); },
              [&](const Preprocessor::Saved& s) { pre.backward(bed.exec, s, dy, dx); });
        },
        [&](int64_t rows) {
          const Preprocessor::Sizes n{rows, rows, rows};
          return planned([&](const Exec& exec) { pre.forward_memory(exec, n); },
                         [&](const Exec& exec) { pre.backward_memory(exec, n); });
        });
  }
}

/// Rows beside which the scratch of attention is small. That of sums over rows grows with them.
constexpr int64_t kManyRows = 2048;
constexpr double kSums = 0.03;
constexpr int64_t kDim = 32;

std::vector<std::pair<std::string, StuConfig>> stu_configs() {
  const StuConfig plain{.dim = kDim, .heads = 2, .qk_dim = 4, .v_dim = 32, .dropout = 0.2};
  std::vector<std::pair<std::string, StuConfig>> all{{"concat", plain}};
  StuConfig c = plain;
  c.kind = LayerKind::kGated;
  all.emplace_back("gated", c);
  c.recompute = {.normed_input = true, .uvqk = true, .gate = true};
  all.emplace_back("gated, recomputed", c);
  c.kind = LayerKind::kConcat;
  all.emplace_back("recomputed", c);
  c.recompute.uvqk = false;
  c.output_norm = OutputNorm::kGroup;
  all.emplace_back("group norm, partly recomputed", c);
  return all;
}

/// Half of their tokens are targets.
struct ShortSequences {
  explicit ShortSequences(int64_t rows) {
    const int64_t length = std::min<int64_t>(rows, 256);
    while (offsets.back() < rows) offsets.push_back(offsets.back() + length);
    num_targets.assign(offsets.size() - 1, length / 2);
    seq = {.offsets = offsets, .num_targets = num_targets, .training = true};
  }
  /// With what only those who compute need.
  void fill(TestBed& bed) {
    std::vector<int32_t> ones(static_cast<size_t>(offsets.back()), 1), rows;
    seq.rows = {bed.ints(ones), bed.ints(ones)};
    for (size_t b = 1; b < offsets.size(); ++b) {
      for (int64_t t = num_targets[b - 1]; t > 0; --t) {
        rows.push_back(static_cast<int32_t>(offsets[b] - t));
      }
    }
    ones.resize(rows.size());
    targets = {bed.ints(rows), {bed.ints(ones), bed.ints(ones)}};
  }
  std::vector<int64_t> offsets{0}, num_targets;
  Sequences seq;
  TargetTokens targets;
};

TEST(StuMemoryTest, IsThatOfItsPlan) {
  for (const auto& [name, config] : stu_configs()) {
    SCOPED_TRACE(name);
    const Made<StuLayer> made(config);
    const StuLayer& layer = made.layer;
    expect_planned(
        [&](int64_t rows) {
          TestBed bed(Precision::kF64);
          ShortSequences some(rows);
          some.fill(bed);
          const Tensor x = bed.random(1, {rows, kDim}), dx = bed.random(2, {rows, kDim});
          return taken(
              bed.exec, [&] { return layer.forward(bed.exec, some.seq, x); },
              [&](const StuLayer::Saved& s) { layer.backward(bed.exec, some.seq, s, dx, dx); });
        },
        [&](int64_t rows) {
          const ShortSequences some(rows);
          return planned([&](const Exec& exec) { layer.forward_memory(exec, some.seq); },
                         [&](const Exec& exec) { layer.backward_memory(exec, some.seq); });
        },
        kManyRows, kSums);
  }
}

TEST(StuTargetsMemoryTest, IsThatOfItsPlan) {
  for (const auto& [name, config] : stu_configs()) {
    if (config.kind != LayerKind::kConcat) continue;
    SCOPED_TRACE(name);
    const Made<StuLayer> made(config);
    const StuLayer& layer = made.layer;
    expect_planned(
        [&](int64_t rows) {
          TestBed bed(Precision::kF64);
          ShortSequences some(rows);
          some.fill(bed);
          const Tensor x = bed.random(1, {rows, kDim}), dx = bed.random(2, {rows, kDim});
          const Tensor dy = bed.random(3, {rows / 2, kDim});
          return taken(
              bed.exec, [&] { return layer.forward_targets(bed.exec, some.seq, x, some.targets); },
              [&](const StuLayer::TargetSaved& s) {
                layer.backward_targets(bed.exec, some.seq, s, dy, dx);
              });
        },
        [&](int64_t rows) {
          const ShortSequences some(rows);
          return planned(
              [&](const Exec& exec) { layer.targets_forward_memory(exec, some.seq, {}); },
              [&](const Exec& exec) { layer.targets_backward_memory(exec, some.seq); });
        });
  }
}

/// Of ranks with as many tokens each.
GroupSequences group_of(const std::vector<int64_t>& offsets, int ranks) {
  GroupSequences group;
  for (int r = 0; r < ranks; ++r) {
    const int64_t first = group.tokens();
    for (size_t b = 1; b < offsets.size(); ++b) group.offsets.push_back(first + offsets[b]);
    group.rank_offsets.push_back(group.tokens());
  }
  group.num_targets.assign(group.offsets.size() - 1, 0);
  return group;
}

TEST(StuHeadsMemoryTest, IsThatOfItsPlan) {
  constexpr int kRanks = 2;
  constexpr double kTimeout = 30;
  for (const auto& named : stu_configs()) {
    SCOPED_TRACE(named.first);
    const StuConfig& config = named.second;
    expect_planned(
        [&](int64_t rows) {
          Taken of_first;
          comm::run_as_threads(kRanks, kTimeout, [&](comm::World& world) {
            const Made<StuLayer> made(config);
            const auto heads = HeadGroup::open(world, Device::cpu(), kRanks, config.heads);
            TestBed bed(Precision::kF64);
            ShortSequences some(rows);
            some.fill(bed);
            const GroupSequences group = group_of(some.offsets, kRanks);
            some.seq.heads = heads.get();
            some.seq.group = &group;
            const Tensor x = bed.random(1, {rows, kDim}), dx = bed.random(2, {rows, kDim});
            const Taken t = taken(
                bed.exec, [&] { return made.layer.forward(bed.exec, some.seq, x); },
                [&](const StuLayer::Saved& s) {
                  made.layer.backward(bed.exec, some.seq, s, dx, dx);
                });
            if (world.rank() == 0) of_first = t;
          });
          return of_first;
        },
        [&](int64_t rows) {
          const Made<StuLayer> made(config);
          ShortSequences some(rows);
          const GroupSequences group = group_of(some.offsets, kRanks);
          some.seq.group = &group;
          return planned([&](const Exec& exec) { made.layer.forward_memory(exec, some.seq); },
                         [&](const Exec& exec) { made.layer.backward_memory(exec, some.seq); });
        },
        kManyRows, kSums);
  }
}

}  // namespace
}  // namespace segue::model
