#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "batch/batch.h"
#include "model/dense_optimizer.h"
#include "model/ranker.h"
#include "ops/metrics.h"
#include "sparse/tables.h"
#include "tensor/arena.h"
#include "train/run_config.h"

namespace segue::train {

struct StepStats {
  int64_t step = 0;  // counts from 1
  double loss = 0;
  std::vector<double> task_losses;
  double gradient_norm = 0;  // of the dense parameters, before clipping
  model::LearningRates rates;
  int64_t samples = 0, tokens = 0;
  double model_flops = 0;  // by formula, forward and backward
  double seconds = 0;
};

/// Quality of the predictions on batches that were not trained on.
struct TaskQuality {
  std::string name;
  bool binary = true;
  double loss = 0;  // mean per label, times the task's weight
  double auc = 0.5, normalized_entropy = 0, accuracy = 0, calibration = 0;  // binary tasks only
};
struct Evaluation {
  double loss = 0;
  std::vector<TaskQuality> tasks;
  int64_t samples = 0, labels = 0;

  /// Mean over the binary tasks; 0.5 without any.
  double auc() const;
  double normalized_entropy() const;
};

/// One rank's model, tables and optimizer state, and what a training step does with them.
/// Everything that a step computes is a function of (config, steps done, batch): repeating a run
/// repeats its bits, on any number of threads.
class Trainer {
 public:
  /// `config` must be valid.
  Trainer(const RunConfig& config, Device device);

  /// Forward, backward, tables, then clip and Adam. Error(kNumeric) when loss or gradients are not
  /// finite; parameters and tables are then as they were before the step.
  StepStats step(const Batch& batch);

  /// Predictions only: no dropout, nothing changes. AUC is exact over all labels of all batches.
  Evaluation evaluate(std::span<const Batch> batches);

  int64_t steps_done() const { return steps_done_; }
  model::Ranker& ranker() { return ranker_; }
  sparse::Tables& tables() { return tables_; }
  const Arena& arena() const { return arena_; }
  Device device() const { return arena_.device(); }

  /// AUC of the training predictions per task: since the start, and since the last call of
  /// start_window(). 0.5 for regression tasks and while a class is missing.
  double running_auc(size_t task) const { return running_[task].value(); }
  double window_auc(size_t task) const { return window_[task].value(); }
  void start_window();

 private:
  Exec exec(int64_t step);
  void require_finite(const Exec& exec, const model::Pass& pass, int64_t step) const;
  void count_predictions(const model::Pass& pass);

  RunConfig config_;
  Arena arena_;
  Stream stream_;
  sparse::Tables tables_;
  model::Ranker ranker_;
  int64_t steps_done_ = 0;
  std::vector<ops::BinnedAuc> running_, window_;  // per task
};

/// Type of parameters and tables in a precision.
DType parameter_dtype(Precision precision);

}  // namespace segue::train
