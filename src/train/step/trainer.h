#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "batch/batch.h"
#include "model/dense_optimizer.h"
#include "model/model.h"
#include "sparse/tables.h"
#include "tensor/arena.h"
#include "tensor/part_timer.h"
#include "train/checkpoint/checkpoint.h"
#include "train/plan/shard_planning.h"
#include "train/run_config.h"
#include "train/step/gradient_reducer.h"
#include "train/step/metrics.h"
#include "train/step/ranks.h"

namespace segue::train {

struct StepStats {
  int64_t step = 0;  // counts from 1
  double loss = 0;
  std::vector<double> task_losses;
  double gradient_norm = 0;  // of the dense parameters, before clipping
  model::LearningRates rates;
  int64_t samples = 0, tokens = 0;
  std::vector<int64_t> token_offsets;  // [samples + 1]
  double model_flops = 0;              // by formula, forward and backward
  int64_t launches = 0;                // kernels started on the GPU
  double seconds = 0;
};

/// One rank's model, tables and optimizer state, and what a training step does with them.
/// Everything that a step computes is a function of (config, steps done, batch): repeating a run
/// repeats its bits, on any number of threads.
class Trainer {
 public:
  /// `config` must be valid.
  Trainer(const RunConfig& config, Device device);
  /// One of several ranks, which outlive it: every call is collective then. Statistics, predictions
  /// and metrics are those of all ranks, on all of them.
  Trainer(const RunConfig& config, Device device, Ranks& ranks);
  /// As it was planned.
  Trainer(const RunConfig& config, Device device, Ranks& ranks, RunPlan plan);

  /// Host work that needs no weights and the copy to a GPU, which may go on while another batch is
  /// computed (one batch at a time); step() or predict(), as `mode` says, uses the prepared batch
  /// up.
  void prepare(const Batch& batch, model::PreparedBatch& prepared,
               sparse::Mode mode = sparse::Mode::kTraining);
  /// Forward, backward, tables, then clip and Adam. Error(kNumeric) when loss or gradients are not
  /// finite; parameters and tables are then as they were before the step. On a GPU the updates
  /// still run when it returns; the next step queues behind them.
  StepStats step(model::PreparedBatch& prepared);
  /// Predictions only: no dropout, nothing changes.
  model::Pass predict(model::PreparedBatch& prepared);

  /// Asked for what this rank wants when results are gathered, at the end of step() and predict().
  /// What ranks agree on travels with the results and is known afterwards.
  void set_wish(std::function<Ranks::StopSave()> wish) { wish_ = std::move(wish); }
  const Ranks::StopSave& agreed() const { return agreed_; }

  int64_t steps_done() const { return steps_done_; }
  const Ranks& ranks() const { return ranks_; }
  const RunPlan& plan() const { return plan_; }
  model::Model& model() { return *model_; }
  const model::Model& model() const { return *model_; }
  sparse::Tables& tables() { return tables_; }
  const sparse::Tables& tables() const { return tables_; }
  const Arena& arena() const { return arena_; }
  Device device() const { return arena_.device(); }
  const Stream* stream() const { return &stream_; }
  /// Device time of the parts of every train.track_layers_every-th step.
  PartTimer& timer() { return timer_; }

  /// Called in every step when a GPU has all of its work and the host has nothing to do but wait:
  /// what the host does here costs no time.
  void set_meanwhile(std::function<void()> meanwhile) { meanwhile_ = std::move(meanwhile); }

  /// Of the training predictions: since the start, and of the newest labels.
  const LifetimeAuc& lifetime() const { return counted().lifetime; }
  const WindowMetrics& window() const { return counted().window; }

  /// Everything that further steps depend on, beside steps_done() and the labels that window() has
  /// seen: to be read into before restore(); or to be saved, of tables as much as asked for.
  std::vector<CheckpointArray> arrays();
  CheckpointContents contents(sparse::Extent extent);
  /// A new run's weights, dense ones and tables, are those of the checkpoint.
  void begin_with(const Checkpoint& checkpoint);
  void restore(const Checkpoint& checkpoint, int64_t steps_done, int64_t window_labels_seen);

 private:
  /// Predictions of a step are counted while the next one runs, or when somebody asks.
  struct Metrics {
    LifetimeAuc lifetime;
    WindowMetrics window;
    std::optional<model::Pass> uncounted;
  };
  void add_metrics(std::vector<CheckpointArray>& arrays);
  const Metrics& counted() const;
  Trainer(const RunConfig& config, Device device, std::unique_ptr<Ranks> alone);
  Exec exec(int64_t step);
  model::PassOptions pass_options(const model::PreparedBatch& prepared, bool training);
  void combine_ranks(const Exec& exec, const model::Pass& pass, bool training);
  void wait_for_ranks() const;
  void gather_ranks(const model::PreparedBatch& prepared, bool training, model::Pass& pass);
  void update(const Exec& exec, model::Pass& pass, const StepStats& stats);
  void require_finite(const Exec& exec, const model::Pass& pass, int64_t step) const;

  RunConfig config_;
  std::unique_ptr<Ranks> alone_;
  Ranks& ranks_;
  RunPlan plan_;
  Arena arena_;
  Stream stream_, copy_stream_;
  PartTimer timer_;
  sparse::Tables tables_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<GradientReducer> reducer_;  // with several ranks
  std::function<Ranks::StopSave()> wish_;
  std::function<void()> meanwhile_;
  Ranks::StopSave agreed_;
  int64_t steps_done_ = 0;
  mutable Metrics metrics_;
};

/// The plan of this rank. Collective.
RunPlan plan_for(const RunConfig& config, const Ranks& ranks, Device device);

/// Type of parameters and tables in a precision.
DType parameter_dtype(Precision precision);

}  // namespace segue::train
