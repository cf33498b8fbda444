#pragma once

#include <cstdint>

#include "train/train_config.h"

namespace segue::train {

/// When evaluations happen, as a pure function of counts: every process of a run agrees.
struct EvalSchedule {
  int64_t every_steps = 0;    // 0: not by steps
  int64_t every_windows = 0;  // 0: not by windows
  int64_t skip_steps = 0;     // evaluations that would come before so many steps are left out

  /// `window_ended` is the window (counted from the first one trained) whose last batch was this
  /// step; -1: none ended.
  bool due(int64_t steps_done, int64_t window_ended) const;
};

/// `train_samples` are those of all windows (0: endless), `global_batch` those of one step.
EvalSchedule eval_schedule(const EvalConfig& config, int64_t train_samples, int64_t global_batch);

}  // namespace segue::train
