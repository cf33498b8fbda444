#pragma once

#include <cstdint>
#include <string>

#include "train/run_config.h"
#include "train/trainer.h"

namespace segue::train {

struct TrainSummary {
  int64_t steps = 0;
  double first_loss = 0, last_loss = 0;  // means over the first and the last log interval
  Evaluation held_out;
  double oracle_auc = 0.5;  // of the probabilities that the held-out labels were drawn with
  double samples_per_s = 0, tokens_per_s = 0, model_flops_per_s = 0;  // of training alone
};

/// Trains as `config` says and leaves config.toml and metrics.jsonl in `run_dir`.
/// Error(kInvalidArgument) when the folder holds a run already, unless `overwrite`.
TrainSummary train_loop(const RunConfig& config, const std::string& run_dir,
                        bool overwrite = false);

/// Number of the first held-out random batch: training steps never get there.
inline constexpr int64_t kHeldOutStep = int64_t{1} << 40;

}  // namespace segue::train
