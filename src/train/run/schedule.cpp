#include "train/run/schedule.h"

#include "base/error.h"
#include "report/mlperf/eval_grid.h"

namespace segue::train {

bool EvalSchedule::due(int64_t steps_done, int64_t window_ended) const {
  if (every_steps > 0) return report::eval_due(steps_done, every_steps, skip_steps);
  return every_windows > 0 && steps_done >= skip_steps && window_ended >= 0 &&
         window_ended % every_windows == 0;
}

EvalSchedule eval_schedule(const EvalConfig& config, int64_t train_samples, int64_t global_batch) {
  SEGUE_ASSERT(train_samples > 0 || config.every_share == 0, "a share of an endless stream");
  EvalSchedule schedule;
  schedule.every_windows = config.every_windows;
  schedule.every_steps = config.every_steps;
  if (config.every_share > 0) {
    const auto rounding = config.rounding == EvalRounding::kUp ? report::EvalRounding::kUp
                                                               : report::EvalRounding::kNearest;
    schedule.every_steps =
        report::eval_interval_steps(config.every_share, train_samples, global_batch, rounding);
  }
  if (config.first == FirstEval::kMlperf) {
    const int64_t threshold = report::dlrmv4_eval_grid(global_batch).threshold_samples;
    schedule.skip_steps = (threshold + global_batch - 1) / global_batch;
  } else if (config.skip_share > 0) {
    schedule.skip_steps = report::eval_skip_steps(config.skip_share, train_samples, global_batch);
  }
  return schedule;
}

}  // namespace segue::train
