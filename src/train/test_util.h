#pragma once

// For tests only.

#include <string>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "data/synth/random_batches.h"
#include "train/run_config.h"
#include "train/step/random_schema.h"
#include "train/step/trainer.h"

namespace segue::train {

/// Everything that a ranker can have, very small; dropout on.
inline RunConfig tiny_config() {
  RunConfig c;
  model::ModelConfig& m = c.model;
  m.dim = 16;
  m.heads = 2;
  m.qk_dim = m.v_dim = 8;
  m.layers = 2;
  m.hidden = m.item_hidden = m.head_hidden = 16;
  m.max_seq_len = 24;
  m.position_buckets = 32;
  m.time_buckets = 16;
  m.item = {"item", "candidate_item", "item"};
  m.additional = {{"artist", "candidate_artist", "artist"}};
  m.contextual = {{"user", "user", 1, 0}, {"hour", "hour", 1, 0}};
  m.tasks = {{"listen", ops::TaskKind::kBinary, 1, 1.0}, {"like", ops::TaskKind::kBinary, 2, 0.5}};
  for (const auto& [name, rows] : {std::pair("item", 60), std::pair("artist", 20),
                                   std::pair("user", 40), std::pair("hour", 24)}) {
    sparse::TableConfig table;
    table.name = name;
    table.rows = rows;
    c.sparse.tables.push_back(table);
  }
  c.sparse.dim = 8;
  c.optimizer.lr = 1e-3;
  c.optimizer.sparse_lr = 0.05;
  c.data.batch_size = 24;
  c.data.random.lengths.low = 0;
  c.data.random.lengths.high = 20;
  c.data.random.signal = 3;
  c.train.steps = 6;
  c.train.log_every = 2;
  c.eval.max_batches = 2;
  c.train.arena_gib = 0.5;
  c.train.device = "cpu";
  return c;
}

/// Tables, dense part and activations of some size each: what depends on tokens outweighs the rest,
/// samples are as long as the plan of memory fears, ids nearly all different.
inline RunConfig filling_memory(RunConfig c) {
  c.model.dim = 32;
  c.model.max_seq_len = 128;
  c.sparse.dim = 16;
  c.sparse.tables[0].rows = 100'000;
  c.sparse.tables[1].rows = 50'000;
  c.data.random.lengths.low = 120;
  c.data.random.lengths.high = 121;
  c.data.random.ids = {data::DistributionKind::kUniform, 0, 100'000};
  c.data.batch_size = 48;
  c.train.micro_batch_tokens = 2000;
  c.train.arena_gib = 0;
  return c;
}

/// The same model on a synthetic store of at most 200 users, items and artists.
inline RunConfig store_config(const std::string& store) {
  RunConfig c = tiny_config();
  c.model.item = {"item_id", "item_candidate_id", "item"};
  c.model.additional = {{"artist_id", "item_candidate_artist_id", "artist"}};
  c.model.contextual = {{"uid", "user", 1, 0}};
  c.model.tasks = {{"listen", ops::TaskKind::kBinary, 1, 1.0}};
  c.sparse.tables.resize(3);
  for (sparse::TableConfig& table : c.sparse.tables) table.rows = 200;
  c.data.store = store;
  c.data.stream.min_history = 4;
  return c;
}

inline data::RandomBatches random_batches(const RunConfig& c) {
  return data::RandomBatches(random_schema(*make_model(c), c.sparse, c.data.random.candidates),
                             c.data.random_config(), static_cast<uint64_t>(c.train.seed));
}

/// A step, or a prediction, on a batch that was not prepared ahead.
inline StepStats step_on(Trainer& trainer, const Batch& batch) {
  const auto prepared = trainer.model().new_batch();
  trainer.prepare(batch, *prepared);
  StepStats stats = trainer.step(*prepared);
  trainer.stream()->synchronize();  // updates read the prepared batch
  return stats;
}
inline model::Pass predict_on(Trainer& trainer, const Batch& batch) {
  const auto prepared = trainer.model().new_batch();
  trainer.prepare(batch, *prepared, sparse::Mode::kEvaluation);
  return trainer.predict(*prepared);
}

/// Losses of the first steps of a run.
inline std::vector<double> losses_of(const RunConfig& config, int64_t steps = 6) {
  config.validate();
  Trainer trainer(config, Device::cpu());
  const data::RandomBatches data = random_batches(config);
  Batch batch;
  std::vector<double> losses;
  for (int64_t step = 1; step <= steps; ++step) {
    data.fill(step, batch);
    losses.push_back(step_on(trainer, batch).loss);
  }
  return losses;
}

/// Sets the number of threads for one scope.
class ThreadsScope {
 public:
  explicit ThreadsScope(int threads) : before_(base::num_threads()) {
    base::set_num_threads(threads);
  }
  ~ThreadsScope() { base::set_num_threads(before_); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  int before_;
};

}  // namespace segue::train
