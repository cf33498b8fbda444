#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "batch/batch.h"

namespace segue::balance {

/// Where a sample's tokens come from and how many pairs of them there are; a model says.
struct SampleShape {
  std::string history;    // column whose lengths count events
  std::string candidate;  // column whose lengths count targets; empty: no targets
  int64_t contextual_tokens = 0;
  int64_t tokens_per_event = 1;  // 2: item and action tokens take turns

  /// Pairs of so many tokens, targets among them, that see each other. Null: there are none.
  std::function<int64_t(int64_t tokens, int64_t targets)> pairs;

  // Of the reference formula alone.
  int64_t heads = 1, head_dim = 1;
};

/// Time of one sample, forward and backward: weights times tokens and pairs. Picoseconds, so that
/// whole numbers are fine enough and costs can be compared exactly on every rank.
struct CostWeights {
  double token_ps = 0;
  double pair_ps = 0;
};

/// The cost formula of the public reference, for comparison with it: item tokens s alone,
///   10 s (N D)^2 + 4 N^2 D s^2,
/// which counts attention N times and ignores causality.
int64_t reference_cost(int64_t tokens, int64_t heads, int64_t head_dim);

enum class CostKind { kCalibrated, kReference };

/// What is known about one sample before it is computed.
struct SampleCost {
  int64_t cost = 0;
  int64_t tokens = 0;
};
/// Of a sample of these lengths, calibrated.
SampleCost sample_cost(const SampleShape& shape, int64_t events, int64_t targets,
                       const CostWeights& weights);
/// One per sample; a sample without tokens costs 0 and is a sample all the same.
std::vector<SampleCost> sample_costs(const Batch& batch, const SampleShape& shape, CostKind kind,
                                     const CostWeights& weights);

/// One timing of a pass over known work.
struct Timing {
  double tokens = 0, pairs = 0, seconds = 0;
};
/// Weights, neither negative, that explain the timings with the least sum of squared errors.
/// Error(kInvalidArgument) when they cannot tell anything: none of them has work or time.
CostWeights calibrate(std::span<const Timing> timings);

}  // namespace segue::balance
