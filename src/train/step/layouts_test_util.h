#pragma once

// For tests only: the same training on any number of ranks.

#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "balance/exchange.h"
#include "comm/world.h"
#include "train/step/batch_pipeline.h"
#include "train/step/ranks.h"
#include "train/step/source.h"
#include "train/test_util.h"

namespace segue::train {

/// One way to spread a run over ranks.
struct Layout {
  int ranks = 1;
  sparse::Sharding sharding = sparse::Sharding::kTable;
  sparse::Wire wire = sparse::Wire::kF32;
  bool balance = false;
  bool pipeline = false;
  int tensor_parallel = 1;

  bool valid() const { return ranks % tensor_parallel == 0; }
  /// Each choice as a number, for covers.
  std::vector<int> choices() const {
    return {ranks,           static_cast<int>(sharding), static_cast<int>(wire),
            balance ? 1 : 0, pipeline ? 1 : 0,           tensor_parallel};
  }
  std::string name() const {
    static constexpr const char* kShardings[] = {"auto",   "table",     "row",
                                                 "column", "table_row", "replicated"};
    static constexpr const char* kWires[] = {"f32", "bf16", "f16"};
    return std::to_string(ranks) + "ranks_" + kShardings[static_cast<int>(sharding)] + "_" +
           kWires[static_cast<int>(wire)] + (balance ? "_balanced" : "") +
           (pipeline ? "_pipelined" : "") +
           (tensor_parallel > 1 ? "_tp" + std::to_string(tensor_parallel) : "");
  }
};

inline std::vector<Layout> all_layouts() {
  using sparse::Sharding;
  std::vector<Layout> all;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Sharding sharding : {Sharding::kTable, Sharding::kRow, Sharding::kColumn,
                                    Sharding::kTableRow, Sharding::kReplicated}) {
      for (const sparse::Wire wire :
           {sparse::Wire::kF32, sparse::Wire::kBf16, sparse::Wire::kF16}) {
        for (int bits = 0; bits < 8; ++bits) {
          const Layout layout{ranks,           sharding,        wire,
                              (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0 ? 2 : 1};
          if (layout.valid()) all.push_back(layout);
        }
      }
    }
  }
  return all;
}

/// Some of them, such that every two choices that can go together do so in one (greedy).
inline std::vector<Layout> pairwise_layouts() {
  using Pair = std::pair<std::pair<size_t, int>, std::pair<size_t, int>>;
  const auto pairs_of = [](const Layout& layout) {
    std::set<Pair> pairs;
    const std::vector<int> choices = layout.choices();
    for (size_t a = 0; a < choices.size(); ++a) {
      for (size_t b = a + 1; b < choices.size(); ++b) {
        pairs.insert({{a, choices[a]}, {b, choices[b]}});
      }
    }
    return pairs;
  };
  const std::vector<Layout> all = all_layouts();
  std::set<Pair> open;
  for (const Layout& layout : all) open.merge(pairs_of(layout));
  std::vector<Layout> chosen;
  while (!open.empty()) {
    const Layout* best = nullptr;
    size_t most = 0;
    for (const Layout& layout : all) {
      size_t covers = 0;
      for (const Pair& pair : pairs_of(layout)) covers += open.count(pair);
      if (covers > most) {
        most = covers;
        best = &layout;
      }
    }
    for (const Pair& pair : pairs_of(*best)) open.erase(pair);
    chosen.push_back(*best);
  }
  return chosen;
}

inline RunConfig layout_config(const Layout& layout) {
  RunConfig c = tiny_config();
  c.optimizer.lr = c.optimizer.sparse_lr = 1e-3;
  c.data.batch_size = 23;  // no two ranks have as many samples
  c.sparse.forward_wire = c.sparse.backward_wire = layout.wire;
  for (sparse::TableConfig& table : c.sparse.tables) table.sharding = layout.sharding;
  c.balance.on = layout.balance;
  c.parallel.pipeline = layout.pipeline ? Pipeline::kOn : Pipeline::kOff;
  c.parallel.tensor_parallel = layout.tensor_parallel;
  return c;
}

/// What a run must not let its layout change.
struct Trained {
  std::vector<double> losses, norms;
  double lifetime_auc = 0, eval_loss = 0;
};

inline Trained train_layout(comm::World& world, const Layout& layout, int64_t steps,
                            Device device = Device::cpu(), const comm::CommConfig& comm = {}) {
  RunConfig config = layout_config(layout);
  config.comm = comm;
  config.validate();
  Ranks ranks(world, config, device);
  Trainer trainer(config, device, ranks);
  const std::unique_ptr<Source> source = make_source(config, world.rank(), world.size());
  std::unique_ptr<balance::Balancer> balancer;
  if (layout.balance && !ranks.alone()) {
    balancer = std::make_unique<balance::Balancer>(config.balance, trainer.model().work().shape,
                                                   balance::CostWeights{100, 1}, *ranks.balance);
  }
  Trained trained;
  {
    BatchPipeline pipeline(trainer, sparse::Mode::kTraining, config.parallel.pipeline,
                           balancer.get());
    source->start(source->first());
    pipeline.start([&](Batch& batch) { return source->next(batch); });
    for (int64_t step = 0; step < steps; ++step) {
      const StepStats stats = trainer.step(*pipeline.next()->prepared);
      EXPECT_EQ(stats.samples, config.data.batch_size);
      trained.losses.push_back(stats.loss);
      trained.norms.push_back(stats.gradient_norm);
    }
    pipeline.settle();
  }
  Evaluator evaluator(config.model.tasks);
  BatchPipeline pipeline(trainer, sparse::Mode::kEvaluation, config.parallel.pipeline);
  source->start_evaluation(-1);
  pipeline.start([&](Batch& batch) { return source->next_evaluation(batch); });
  while (const BatchPipeline::Item* item = pipeline.next()) {
    evaluator.add(trainer.predict(*item->prepared));
  }
  trained.eval_loss = evaluator.result().loss;
  trained.lifetime_auc = trainer.lifetime().mean();
  return trained;
}

/// `tolerance`, relative, is that of losses: 1e-5 where only the order of sums differs, 1e-3 with
/// 16-bit wires. Sums in another order move the norm no more than that, nor predictions and so the
/// AUC (all 360 layouts on the CPU: losses 1.2e-7, norms 4.0e-7, AUC 4.4e-7). A 16-bit wire rounds
/// rows and their gradients, in bf16 by up to 2^-9 each; in a mean loss that averages out (5.9e-4),
/// a norm follows its largest parts and may move by both (2.0e-3).
inline void expect_same_training(const Trained& a, const Trained& b, double tolerance) {
  constexpr double kOrderOfSums = 1e-5, kTwoRoundings = 2.0 / 512;
  const double of_norm = tolerance <= kOrderOfSums ? tolerance : kTwoRoundings;
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    ASSERT_NEAR(a.losses[i], b.losses[i], tolerance * std::abs(b.losses[i])) << "step " << i + 1;
    ASSERT_NEAR(a.norms[i], b.norms[i], of_norm * std::abs(b.norms[i])) << "step " << i + 1;
  }
  EXPECT_NEAR(a.eval_loss, b.eval_loss, tolerance * b.eval_loss);
  EXPECT_NEAR(a.lifetime_auc, b.lifetime_auc, tolerance);
}

}  // namespace segue::train
