#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "report/mlperf/mllog_run.h"
#include "train/run/run_folder.h"
#include "train/run_config.h"

namespace segue::train {

/// What the MLPerf log says of a run, from the very config that the run uses.
report::MllogHyperparameters mllog_hyperparameters(const RunConfig& config, int64_t train_samples,
                                                   int64_t eval_samples);

/// The MLPerf log of a run; does nothing unless config.mlperf.log. The order of calls is the order
/// of the members.
class MlperfLog {
 public:
  /// The init phase begins. When `resuming`, a log whose run has begun is continued; `state` is
  /// what state() gave when the checkpoint was saved, empty if there was none.
  MlperfLog(const RunConfig& config, const RunFolder& folder, bool resuming,
            const std::string& state);

  /// The run begins, or goes on, on so many ranks.
  void open(int64_t train_samples, int64_t eval_samples, int64_t samples, int ranks);
  void train_loss(int64_t samples, double loss, double learning_rate);
  void evaluation_begins(int64_t samples);
  void evaluation_done(int64_t samples, double auc, bool goes_on);
  void stop(int64_t samples, bool target_reached);

  /// For the checkpoint; the log is on the disk when it returns. Error(kIo) when it cannot be.
  std::string state();

 private:
  RunConfig config_;
  std::unique_ptr<report::MllogRun> log_;
};

}  // namespace segue::train
