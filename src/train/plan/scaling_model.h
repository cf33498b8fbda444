#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "balance/cost.h"
#include "base/config.h"
#include "data/synth/distribution.h"
#include "train/plan/shard_planning.h"
#include "train/run_config.h"

namespace segue::train {

/// What one GPU and its links do. Kernel rates are measured on an H200 (docs/rows) and
/// can be replaced by those of `segue bench --json`; rates of links are assumptions.
struct SimulationConfig {
  /// Of a layer's products by formula, everything else of the layer but attention included.
  double linear_tflops = 443;
  double attention_tflops = 550;
  /// The rest of a step per token, for tokens of width 512: embeddings, assembly, head, optimizers.
  double other_ns = 8;
  double other_plain_ns = 26;    // with identities off
  double step_ms = 0.5;          // of any step: launches, dense optimizer
  double nvlink_gb_s = 360;      // of one GPU, in each direction
  double network_gb_s = 40;      // of one GPU, in each direction, to other machines
  double message_us = 0.5;       // per peer of an exchange
  double backward_share = 0.67;  // of a pass, in which dense gradients can travel unseen
  /// high = 0: those of the config's random data; for a store, uniform up to 4/5 of the longest.
  data::Distribution lengths;
  int64_t samples_per_rank = 0;  // 0: the batch of the config, whatever the number of ranks
  int64_t draws = 8;             // steps that are drawn for each number of ranks
  int64_t seed = 1;

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, SimulationConfig& c);

/// Replaces kernel rates by those in the rows of `segue bench attention|stack|step --json`, in one
/// file of any of them. Error(kCorrupt) for other text, Error(kConfig) when no row is of use: those
/// of another width, mask or number of layers are not.
void read_rates(const std::string& path, const model::SampleWork& work, SimulationConfig& rates);

/// Those that runs balance by where the config has none: of 0.1.0, so that every version deals the
/// same samples to the same ranks.
SimulationConfig balancing_rates();

/// What tokens and pairs of a model cost at these rates.
balance::CostWeights cost_weights(const model::SampleWork& work, const SimulationConfig& rates);

/// One number of ranks, predicted.
struct ScalingPoint {
  struct Dealt {           // with samples as they come, or balanced
    double imbalance = 1;  // heaviest / mean rank
    double step_ms = 0;
    double samples_per_s = 0;
    double efficiency = 0;  // mean compute of a rank / step
  };
  int ranks = 1;
  int64_t samples = 0;     // of a step
  double compute_ms = 0;   // mean rank
  double exchange_ms = 0;  // rows and their gradients
  double dense_ms = 0;     // all-reduce of dense gradients, what backward does not hide
  double exchange_mb = 0;  // sent by the busiest rank
  double missing_gib = 0;  // of the fullest rank; 0: the plan fits
  Dealt as_they_come, balanced;
};
ScalingPoint simulate(const RunConfig& config, const Cluster& cluster,
                      const SimulationConfig& rates);

/// What the prediction rests on, one sentence each.
std::vector<std::string> assumptions(const RunConfig& config, const Cluster& cluster,
                                     const SimulationConfig& rates);

}  // namespace segue::train
