#pragma once

#include <cstdint>

namespace segue::report {

// When MLPerf's DLRMv4 is evaluated. Pure functions of the global batch size; all counts are
// positive.

/// Training anchors of Yambda-5b under the benchmark's split.
inline constexpr int64_t kDlrmv4TrainSamples = 2'290'835'423;
inline constexpr int64_t kDlrmv4EvalSamples = 2'058'204;
inline constexpr double kDlrmv4EvalShare = 0.001;
inline constexpr double kDlrmv4Target = 0.75;  // AUC

/// kNearest: the rule as it was proposed (halves to even, of the floored number of steps in an
/// epoch). kUp: the reference, and the rule as it was released. They differ at batch sizes 512,
/// 1024 and 4096.
enum class EvalRounding { kUp, kNearest };

/// Steps between evaluations that lie `share` of the training samples apart; at least 1.
int64_t eval_interval_steps(double share, int64_t train_samples, int64_t global_batch,
                            EvalRounding rounding = EvalRounding::kNearest);

/// Steps during which scheduled evaluations are left out: those that train `share` of the samples.
int64_t eval_skip_steps(double share, int64_t train_samples, int64_t global_batch);

/// Whether an evaluation follows the step that makes `steps_done`.
bool eval_due(int64_t steps_done, int64_t interval_steps, int64_t skip_steps);

/// The grid that the rules demand of DLRMv4.
struct EvalGrid {
  int64_t interval_steps = 0;
  int64_t interval_samples = 0;
  int64_t threshold_samples = 0;   // no evaluation before
  int64_t first_eval_samples = 0;  // the first grid point at or after the threshold
};
EvalGrid dlrmv4_eval_grid(int64_t global_batch, EvalRounding rounding = EvalRounding::kNearest);

}  // namespace segue::report
