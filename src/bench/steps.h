#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "batch/batch.h"
#include "bench/bench.h"
#include "comm/world.h"
#include "train/run_config.h"
#include "train/step/source.h"

namespace segue::bench {

/// The preset, or the file that the settings name, on a store if they name one.
train::RunConfig load_config(const Settings& settings);

/// A few that are used in turn: making them is no part of a step.
struct Batches {
  std::unique_ptr<train::Source> source;  // of a store: attributes of items lie there
  std::vector<Batch> all;

  const Batch& operator[](int64_t i) const { return all[static_cast<size_t>(i) % all.size()]; }
};
/// At most `most` of them; a rank of several gets its share of each. Error(kConfig) when a store
/// has no window with a whole batch.
Batches make_batches(const train::RunConfig& config, int64_t most, int rank = 0, int ranks = 1);

/// Training steps one after the other, with the pipeline of batches that a run has.
struct Steps {
  Result result;                               // each step by itself; FLOPs are the mean
  double recomputed_flop = 0;                  // mean of what backward did a second time
  double uneven_before = 0, uneven_after = 0;  // mean of heaviest / mean rank; 0: not balanced
  int64_t device_bytes = 0;                    // taken when the last step was done; 0: on the CPU
};
/// Collective over the ranks of `world`, whose work is counted together; the energy is that of this
/// rank's card. Error(kOutOfMemory) with the plan, before the first step, on all of them.
Steps measure_steps(const train::RunConfig& config, const Batches& batches, const Repeats& repeats,
                    comm::World& world, EnergyMeter energy);

}  // namespace segue::bench
