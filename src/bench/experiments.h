#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"
#include "comm/world.h"
#include "train/run_config.h"

namespace segue::bench {

/// What one way of training adds to those before it, as `--set` takes it.
struct Experiment {
  std::string name;
  std::vector<std::string> sets;
  bool goes_on = true;       // the next ones build on it; else it stands by itself
  std::string not_run = {};  // why it cannot be here
};

/// From a plain trainer to all that this one does, step by step, for one config on a device and as
/// many ranks.
std::vector<Experiment> experiments(const train::RunConfig& config, Device device, int ranks);

/// Names of what `--lengths` and `--ids` take; none: as the config says.
struct SuiteSettings {
  Settings bench;  // repeats are rounds over all batches; preset or config, and sets
  std::vector<std::string> lengths, ids;
  std::vector<std::string> only;  // experiments
  std::string out;                // file of rows, kept from call to call; empty: none
};

/// Settings that give random samples lengths of this distribution, up to the config's longest.
/// Error(kInvalidArgument) with the known names.
std::vector<std::string> length_sets(const train::RunConfig& config, const std::string& name);

/// Every experiment on every pair of lengths and ids, each result a row with its speed-up over the
/// first. The config's batch is that of one rank. Rows that the file has are not measured again;
/// what cannot run is a row, too, with the reason. Collective over the ranks of `world`, of which
/// the first reports and writes.
void run_suite(const SuiteSettings& settings, comm::World& world, Report& report);

}  // namespace segue::bench
