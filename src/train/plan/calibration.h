#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "balance/cost.h"
#include "batch/batch.h"
#include "train/run_config.h"
#include "train/step/ranks.h"

namespace segue::train {

/// What tokens and pairs of a config's model cost on a device, from timed steps.
struct Calibration {
  /// A step of equally long samples, and its median time.
  struct Step {
    int64_t samples = 0, events = 0;  // events of each sample
    balance::Timing timing;
    std::vector<double> seconds;  // of each run; the median is in `timing`
  };
  std::vector<Step> steps;
  balance::CostWeights weights;
};

/// Trains a copy of the model, with small tables, on random samples of three lengths, for a few
/// seconds. Batches are those of one of `ranks` ranks, or smaller where that says as much.
Calibration calibrate_cost(const RunConfig& config, int ranks, Device device);
/// The same with any clock: `seconds_of` gives the time of a step over a batch.
Calibration calibrate_cost(const RunConfig& config, int ranks,
                           const std::function<double(const Batch&)>& seconds_of);

/// Collective. Where the config wants its costs measured, the first rank does so and all ranks take
/// them into their config; true then. Timings are never the same twice, and who computes what
/// decides how sums round: so what was measured belongs to the config of a run, and one that goes
/// on, with the config `before` (TOML; empty: a new run), takes it from there.
bool calibrate_balance(RunConfig& config, const Ranks& ranks, Device device,
                       const std::string& before);

}  // namespace segue::train
