#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "balance/exchange.h"
#include "base/progress.h"
#include "report/tensorboard.h"
#include "tensor/card.h"
#include "train/run/loop.h"
#include "train/run/run_folder.h"
#include "train/run/run_state.h"
#include "train/run/step_tracker.h"
#include "train/run_config.h"
#include "train/step/metrics.h"
#include "train/step/trainer.h"

namespace segue::train {

/// What a run tells while it goes: lines of metrics.jsonl, TensorBoard scalars, the progress
/// line. Every figure is computed once and goes to all of them.
class MetricsLog {
 public:
  /// `total_samples` is where the run ends, 0 if that is not known. `card` may be null.
  MetricsLog(const RunConfig& config, const model::Model& model, Device device, RunFolder& folder,
             const RunState& state, int64_t total_samples, const CardSensor* card = nullptr);

  /// Counts a finished step into the interval and moves the progress line.
  void count(const StepStats& stats, const data::BatchInfo& delivery,
             const balance::BalanceStats& balance, RunState& state);
  /// One line for the steps since the last one; the interval begins anew.
  void train_line(const StepStats& stats, const Trainer& trainer, RunState& state);
  void eval_line(const Evaluation& evaluation, double lifetime_auc, std::optional<double> oracle,
                 double seconds, const Trainer& trainer, const RunState& state);
  /// Of a step some steps ago.
  void layers_line(const TrackedStep& tracked, const RunState& state);
  void end_line(const RunState& state, const char* status);
  void finish();  // of the progress line
  void drain();   // Error(kIo) while anything waits for a full disk

  bool has_line() const { return has_line_; }  // an interval has ended in this process
  /// Losses and rates of this process's steps; the interval that a stop cuts short counts.
  void summarize(TrainSummary& summary, const RunState& state) const;

 private:
  void add_rates(const Interval& interval, int ranks, nlohmann::ordered_json& line) const;
  void add_ranks(const Trainer& trainer, nlohmann::ordered_json& line) const;
  void add_energy(const Trainer& trainer, nlohmann::ordered_json& line);
  void start_energy();
  void scalar(const char* tag, double value, const RunState& state);

  const RunConfig& config_;
  RunFolder& folder_;
  report::TensorboardWriter tensorboard_;
  /// Of the steps since the newest line; an evaluation is no part of them.
  EnergyMeter energy_;
  int64_t metered_samples_ = 0;
  base::Progress progress_;
  Interval all_;  // of this process
  balance::BalanceStats balance_;
  std::vector<model::TaskConfig> tasks_;
  double padded_flops_ = 0;  // of one sample
  int64_t length_bin_ = 1;   // width of the bins of Interval::lengths
  double peak_flops_ = 0;    // 0: not known
  double first_loss_ = 0, last_loss_ = 0, last_auc_ = 0.5;
  double loss_z_ = 0, gradient_z_ = 0;
  bool has_line_ = false;
};

}  // namespace segue::train
