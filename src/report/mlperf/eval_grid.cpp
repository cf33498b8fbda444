#include "report/mlperf/eval_grid.h"

#include <algorithm>
#include <cmath>

namespace segue::report {

int64_t eval_interval_steps(double share, int64_t train_samples, int64_t global_batch,
                            EvalRounding rounding) {
  const int64_t whole_batches = train_samples / global_batch;
  const double steps = rounding == EvalRounding::kUp
                           ? std::ceil(share * static_cast<double>(train_samples) /
                                       static_cast<double>(global_batch))
                           : std::nearbyint(share * static_cast<double>(whole_batches));
  return std::max<int64_t>(1, static_cast<int64_t>(steps));
}

int64_t eval_skip_steps(double share, int64_t train_samples, int64_t global_batch) {
  return static_cast<int64_t>(
      std::ceil(share * static_cast<double>(train_samples) / static_cast<double>(global_batch)));
}

bool eval_due(int64_t steps_done, int64_t interval_steps, int64_t skip_steps) {
  return steps_done > 0 && steps_done % interval_steps == 0 && steps_done >= skip_steps;
}

EvalGrid dlrmv4_eval_grid(int64_t global_batch, EvalRounding rounding) {
  EvalGrid grid;
  grid.interval_steps =
      eval_interval_steps(kDlrmv4EvalShare, kDlrmv4TrainSamples, global_batch, rounding);
  grid.interval_samples = grid.interval_steps * global_batch;
  // A line through the earliest convergence of the reference at three batch sizes, less a margin.
  grid.threshold_samples = (4480 * global_batch + 135'331'840) / 3;
  const int64_t blocks =
      (grid.threshold_samples + grid.interval_samples - 1) / grid.interval_samples;
  grid.first_eval_samples = blocks * grid.interval_samples;
  return grid;
}

}  // namespace segue::report
