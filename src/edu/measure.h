#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "edu/micro_dlrm.h"

namespace segue::edu {

/// Times of many steps. Percentiles are of each span by itself.
struct StepTimes {
  SpanSeconds median{}, p10{}, p90{};
  double wall_seconds = 0;  // of all timed steps
  int64_t steps = 0;

  double forward() const { return forward_seconds(median); }
  double step() const { return step_seconds(median); }
  double forward_share() const { return embedding_forward(median) / forward(); }
  double step_share() const { return embedding_step(median) / step(); }
};

enum class Passes { kForward, kWhole };

/// Runs steps over the pool's batches from the `first` on, and returns the times of each.
std::vector<SpanSeconds> run_steps(MicroDlrm& model, const BatchPool& pool, int64_t first,
                                   int64_t steps, Passes passes = Passes::kWhole);
StepTimes times_of(std::span<const SpanSeconds> steps);

}  // namespace segue::edu
