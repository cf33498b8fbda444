// Attention shared by ranks gives what one rank gives on the same samples.

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "model/ranker_test_util.h"

namespace segue::model {
namespace {

constexpr double kTimeout = 30;
constexpr int64_t kWhole = 1 << 20;

/// How the samples of a batch lie on ranks.
struct Split {
  int group = 2;                 // ranks that share attention
  std::vector<int64_t> samples;  // per rank
  std::vector<int64_t> cuts;     // micro-batch tokens per rank; empty: no cuts

  int ranks() const { return static_cast<int>(samples.size()); }
  int64_t first(int rank) const {
    int64_t n = 0;
    for (int q = 0; q < rank; ++q) n += samples[static_cast<size_t>(q)];
    return n;
  }
  int64_t cut(int rank) const { return cuts.empty() ? kWhole : cuts[static_cast<size_t>(rank)]; }
  Batch part(const Batch& batch, int rank) const {
    return batch.slice(first(rank), samples[static_cast<size_t>(rank)]);
  }
};

Batch eight_samples() { return tiny_batch({4, 0, 1, 6, 9, 2, 7, 3}, {1, 2, 3, 1, 2, 0, 1, 2}); }

/// What a step leaves, summed over ranks.
struct Outcome {
  double loss = 0, flops = 0;
  std::vector<double> gradients;
  std::map<std::pair<int64_t, int64_t>, std::vector<double>> rows;  // by table and id
  std::map<int64_t, std::vector<double>> logits;                    // by rank, then [tasks][labels]
  int64_t collectives = 0;                                          // of rank 0

  void add(TinyRanker& m, const Pass& pass, int rank) {
    loss += pass.loss;
    flops += pass.model_flops;
    logits[rank] = pass.logits;
    dispatch_real(m.ranker.parameters().grads().dtype, [&]<class T>(T) {
      const auto grads = m.ranker.parameters().grads().span<T>();
      gradients.resize(grads.size());
      for (size_t i = 0; i < grads.size(); ++i) gradients[i] += static_cast<double>(grads[i]);
      for (int64_t t = 0; t < m.tables.count(); ++t) {
        const Tensor& g = pass.row_gradients[static_cast<size_t>(t)];
        if (!g) continue;
        const auto ids = pass.ticket.slots(static_cast<sparse::TableId>(t));
        for (size_t u = 0; u < ids.size(); ++u) {
          std::vector<double>& row = rows[{t, ids[u]}];
          row.resize(static_cast<size_t>(g.size(1)));
          const T* from = g.row<T>(static_cast<int64_t>(u));
          for (size_t c = 0; c < row.size(); ++c) row[c] += static_cast<double>(from[c]);
        }
      }
    });
  }
};

int64_t labels_of(const ModelConfig& config, const Batch& batch) {
  return BatchLayout(config, batch).labels();
}

Outcome run_alone(const ModelConfig& config, DType dtype, const Batch& batch, bool training) {
  TinyRanker m(config, dtype);
  Outcome out;
  out.add(m, m.run(batch, {.training = training, .micro_batch_tokens = kWhole}), 0);
  return out;
}

Outcome run_shared(const ModelConfig& config, DType dtype, const Batch& batch, const Split& split,
                   bool training) {
  Outcome out;
  std::mutex mutex;
  const auto denominator = static_cast<double>(labels_of(config, batch));
  const BatchLayout whole(config, batch);
  const bool one_group = split.ranks() == split.group;
  comm::run_as_threads(split.ranks(), kTimeout, [&](comm::World& world) {
    const auto group = HeadGroup::open(world, Device::cpu(), split.group, config.heads);
    TinyRanker m(config, dtype);
    m.ranker.set_head_group(group.get());
    PassOptions options{.training = training,
                        .micro_batch_tokens = split.cut(world.rank()),
                        .loss_denominator = denominator};
    const auto prepared = m.ranker.new_batch();
    m.ranker.prepare(split.part(batch, world.rank()), options.micro_batch_tokens,
                     training ? sparse::Mode::kTraining : sparse::Mode::kEvaluation, *prepared);
    // A group finds out itself, but not about other groups.
    if (!one_group) prepared->maxima = {whole.most_before_targets, whole.most_targets};
    const Pass pass = m.run(*prepared, options);
    const std::lock_guard lock(mutex);
    out.add(m, pass, world.rank());
    if (world.rank() == 0) out.collectives = group->heads().traffic().collectives;
  });
  return out;
}

/// Largest number of micro-batches among the ranks of the first group.
int64_t micro_batches(const ModelConfig& config, const Batch& batch, const Split& split) {
  int64_t most = 0;
  for (int q = 0; q < split.group; ++q) {
    const BatchLayout layout(config, split.part(batch, q));
    most = std::max(most, std::ssize(cut_micro_batches(layout, split.cut(q))));
  }
  return most;
}

void expect_near(double found, double expected, double tolerance) {
  EXPECT_NEAR(found, expected, tolerance * std::max(1.0, std::abs(expected)));
}

/// Logits of all ranks as one rank has them.
void expect_logits(const Outcome& found, const Outcome& alone, size_t tasks, double tolerance) {
  const std::vector<double>& expected = alone.logits.at(0);
  const size_t labels = expected.size() / tasks;
  size_t first = 0;
  for (const auto& [rank, logits] : found.logits) {
    const size_t mine = logits.size() / tasks;
    ASSERT_LE(first + mine, labels);
    for (size_t k = 0; k < tasks; ++k) {
      for (size_t i = 0; i < mine; ++i) {
        expect_near(logits[k * mine + i], expected[k * labels + first + i], tolerance);
      }
    }
    first += mine;
  }
  EXPECT_EQ(first, labels);
}

void expect_outcome(const Outcome& found, const Outcome& alone, size_t tasks, double tolerance) {
  expect_near(found.loss, alone.loss, tolerance);
  expect_near(found.flops, alone.flops, 1e-12);
  expect_logits(found, alone, tasks, tolerance);
  ASSERT_EQ(found.gradients.size(), alone.gradients.size());
  for (size_t i = 0; i < alone.gradients.size(); ++i) {
    expect_near(found.gradients[i], alone.gradients[i], tolerance);
  }
  ASSERT_EQ(found.rows.size(), alone.rows.size());
  for (const auto& [id, row] : alone.rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      expect_near(found.rows.at(id).at(c), row[c], tolerance);
    }
  }
}

/// In float and double, training and evaluation; `full_layers` of the model are not collapsed.
void expect_same(const ModelConfig& config, const Batch& batch, const Split& split,
                 int64_t full_layers) {
  const int64_t micro = micro_batches(config, batch, split);
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    const double tolerance = dtype == DType::kF64 ? 1e-11 : 1e-5;
    for (const bool training : {true, false}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + (training ? " training" : " evaluation"));
      const Outcome alone = run_alone(config, dtype, batch, training);
      const Outcome shared = run_shared(config, dtype, batch, split, training);
      expect_outcome(shared, alone, config.tasks.size(), tolerance);
      EXPECT_EQ(shared.collectives, (training ? 4 : 2) * full_layers * micro);
    }
  }
}

ModelConfig four_heads(ModelConfig c) {
  c.heads = 4;
  c.v_dim = 3;  // not that of queries and keys
  c.layers = 3;
  return c;
}

const RecomputeConfig kRecomputeAll{.normed_input = true, .uvqk = true, .gate = true};

TEST(RankerHeadsTest, ConcatLayersWithTheLastOneCollapsed) {
  expect_same(tiny_config(), eight_samples(), {.group = 2, .samples = {3, 5}}, 1);
}

TEST(RankerHeadsTest, FourRanksWithFourHeads) {
  ModelConfig c = four_heads(tiny_config());
  expect_same(c, eight_samples(), {.group = 4, .samples = {2, 1, 4, 1}}, 2);
  c.recompute = kRecomputeAll;
  expect_same(c, eight_samples(), {.group = 4, .samples = {2, 1, 4, 1}}, 2);
}

TEST(RankerHeadsTest, GatedInterleavedLayers) {
  ModelConfig c = four_heads(tiny_gated_config());
  expect_same(c, eight_samples(), {.group = 2, .samples = {6, 2}}, 3);
  c.recompute = kRecomputeAll;
  expect_same(c, eight_samples(), {.group = 4, .samples = {2, 2, 3, 1}}, 3);
}

TEST(RankerHeadsTest, WindowsContextGroupNormAndTheLongestOfTheGroup) {
  expect_same(tiny_masked_config(), eight_samples(), {.group = 2, .samples = {3, 5}}, 2);
  // The longest history and the most candidates are on different ranks.
  expect_same(tiny_masked_config(), tiny_batch({9, 2, 3}, {1, 4, 0}),
              {.group = 2, .samples = {1, 2}}, 2);
}

TEST(RankerHeadsTest, TruncatedLayers) {
  ModelConfig c = four_heads(tiny_config());
  c.truncation = {1, 2};
  expect_same(c, eight_samples(), {.group = 2, .samples = {3, 5}}, 2);
  expect_same(c, eight_samples(), {.group = 4, .samples = {2, 1, 4, 1}}, 2);
  expect_same(c, tiny_batch({9, 2, 3}, {1, 4, 0}), {.group = 2, .samples = {0, 3}}, 2);
  c = tiny_masked_config();
  c.truncation = {1, 1};
  expect_same(c, eight_samples(), {.group = 2, .samples = {3, 5}}, 2);
}

TEST(RankerHeadsTest, RecomputeOneByOne) {
  for (const RecomputeConfig& recompute :
       {RecomputeConfig{.normed_input = true}, RecomputeConfig{.uvqk = true},
        RecomputeConfig{.gate = true}}) {
    ModelConfig c = tiny_config();
    c.recompute = recompute;
    expect_same(c, eight_samples(), {.group = 2, .samples = {4, 4}}, 1);
  }
}

TEST(RankerHeadsTest, UnevenAndEmptyBatches) {
  ModelConfig c = tiny_config();
  expect_same(c, eight_samples(), {.group = 2, .samples = {0, 8}}, 1);
  expect_same(c, eight_samples(), {.group = 2, .samples = {8, 0}}, 1);
  expect_same(four_heads(c), eight_samples(), {.group = 4, .samples = {0, 7, 0, 1}}, 2);
  expect_same(tiny_masked_config(), eight_samples(), {.group = 2, .samples = {0, 8}}, 2);
  expect_same(c, tiny_batch({}, {}), {.group = 2, .samples = {0, 0}}, 1);
  expect_same(c, tiny_batch({2, 3}, {0, 0}), {.group = 2, .samples = {1, 1}}, 1);
}

TEST(RankerHeadsTest, CutsThatDifferBetweenRanks) {
  ModelConfig c = tiny_config();
  expect_same(c, eight_samples(), {.group = 2, .samples = {3, 5}, .cuts = {20, 20}}, 1);
  expect_same(c, eight_samples(), {.group = 2, .samples = {3, 5}, .cuts = {kWhole, 1}}, 1);
  expect_same(c, eight_samples(), {.group = 2, .samples = {0, 8}, .cuts = {1, 15}}, 1);
  c.recompute = kRecomputeAll;
  expect_same(four_heads(c), eight_samples(),
              {.group = 4, .samples = {1, 3, 3, 1}, .cuts = {1, 1, 20, 20}}, 2);
}

TEST(RankerHeadsTest, AGridOfGroups) {
  expect_same(tiny_config(), eight_samples(), {.group = 2, .samples = {1, 3, 2, 2}}, 1);
  expect_same(tiny_masked_config(), eight_samples(), {.group = 2, .samples = {3, 1, 0, 4}}, 2);
}

TEST(RankerHeadsTest, PeersCollapseTheLastLayerTogether) {
  // Only rank 1 has too many candidates to collapse it.
  const Batch batch = tiny_batch({4, 2, 3}, {1, 2, ModelConfig::kMostTargetsOfOne + 1});
  expect_same(tiny_config(), batch, {.group = 2, .samples = {2, 1}}, 2);
}

TEST(RankerHeadsTest, ABatchIsPreparedWhileAnotherRuns) {
  constexpr int64_t kSteps = 6;
  const ModelConfig config = tiny_config();
  const Split split{.group = 2, .samples = {3, 5}, .cuts = {9, 20}};
  const Batch batch = eight_samples();
  const Outcome alone = run_alone(config, DType::kF64, batch, true);
  std::vector<Outcome> found(kSteps);
  std::mutex mutex;
  comm::run_as_threads(split.ranks(), kTimeout, [&](comm::World& world) {
    const auto group = HeadGroup::open(world, Device::cpu(), split.group, config.heads);
    TinyRanker m(config);
    m.ranker.set_head_group(group.get());
    const Batch mine = split.part(batch, world.rank());
    RankerBatch prepared[2];
    const auto prepare = [&](int64_t step) {
      m.ranker.prepare(mine, split.cut(world.rank()), sparse::Mode::kTraining, prepared[step % 2]);
    };
    prepare(0);
    for (int64_t step = 0; step < kSteps; ++step) {
      Arena::Mark scratch(*m.bed.exec.arena);
      std::thread ahead([&] { prepare(step + 1); });
      m.ranker.parameters().zero_grads();
      const Pass pass =
          m.ranker.run(m.bed.exec, prepared[step % 2],
                       {.loss_denominator = static_cast<double>(labels_of(config, batch))});
      ahead.join();
      const std::lock_guard lock(mutex);
      found[static_cast<size_t>(step)].add(m, pass, world.rank());
    }
  });
  for (const Outcome& f : found) expect_outcome(f, alone, config.tasks.size(), 1e-11);
}

TEST(RankerHeadsTest, SentBytesAreThoseOfTheFormula) {
  // Per layer and rank: (P - 1) / P of V, Q, K and of the output, and their gradients.
  const ModelConfig c = four_heads(tiny_gated_config());
  const Batch batch = eight_samples();
  constexpr int kRanks = 4;
  const Split split{.group = kRanks, .samples = {2, 2, 2, 2}};
  std::mutex mutex;
  int64_t sent = 0;
  comm::run_as_threads(kRanks, kTimeout, [&](comm::World& world) {
    const auto group = HeadGroup::open(world, Device::cpu(), kRanks, c.heads);
    TinyRanker m(c, DType::kF32);
    m.ranker.set_head_group(group.get());
    m.run(split.part(batch, world.rank()), {.loss_denominator = 1});
    const std::lock_guard lock(mutex);
    sent += group->heads().traffic().bytes_sent;
  });
  const int64_t tokens = BatchLayout(c, batch).tokens();
  const int64_t columns = c.heads * (2 * c.v_dim + 2 * c.qk_dim);
  EXPECT_EQ(sent, c.layers * 2 * tokens * columns * 4 * (kRanks - 1) / kRanks);
}

}  // namespace
}  // namespace segue::model
