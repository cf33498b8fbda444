#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/parameters.h"
#include "tensor/exec.h"

namespace segue::model {

/// Learning rates of the step after `steps_done` completed ones: linear from warmup_start_lr to the
/// base rate over warmup_steps, so that the first step runs at warmup_start_lr (0 by default:
/// moments move, weights do not).
struct LearningRates {
  double dense = 0, sparse = 0;
};
LearningRates learning_rates(const OptimizerConfig& config, int64_t steps_done);

/// Clips the dense gradients by their global norm, whose square is given (f64 [1] on exec's
/// device), and runs the optimizer over the flat parameter buffers, whose states are its own
/// (Parameters::allocate_states). Besides them the number of completed steps is all it knows.
/// Nothing visits the host. Unless all values of `finite` (flat f64 on exec's device; absent: none)
/// are finite, nothing changes.
void update_dense(const Exec& exec, const OptimizerConfig& config, int64_t steps_done,
                  const Parameters& parameters, const Tensor& gradient_squares,
                  const Tensor& finite = {});

/// The same with the norm computed on the way, and waited for.
struct DenseUpdate {
  double gradient_norm = 0;  // before clipping
  double clip_scale = 1;
};
DenseUpdate update_dense(const Exec& exec, const OptimizerConfig& config, int64_t steps_done,
                         const Parameters& parameters);

}  // namespace segue::model
