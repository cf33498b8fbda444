#pragma once

#include <cstdint>
#include <string>

#include "sparse/planner.h"
#include "train/plan/memory_plan.h"
#include "train/run_config.h"

namespace segue::train {

/// The ranks that a run is planned for.
struct Cluster {
  int ranks = 1;
  int ranks_per_machine = 8;
  double device_bytes = 0;  // of one rank; 0: not known
  double host_bytes = 0;    // of one rank that tables may take; 0: none but those that ask for it
  /// Where device_bytes is not known: what there is. A plan that needs no more does not depend on
  /// it.
  double device_limit = 0;
  bool files = false;  // tables that fit nowhere else may lie in files
};

/// With the memory that parallel.device_gib and host_gib give to a rank.
Cluster cluster_of(const RunConfig& config, int ranks, int ranks_per_machine);

/// What this machine has for each of `ranks` ranks, for tables that the config leaves to the plan.
struct MachineMemory {
  double device_bytes = 0;
  double host_bytes = 0;
};
MachineMemory machine_memory(Device device, int ranks);
/// The same, where the config does not say.
Cluster cluster_of(const RunConfig& config, int ranks, int ranks_per_machine,
                   const MachineMemory& memory);

/// How the tables of a run are shared by its ranks: what `segue plan --ranks` prints and what the
/// trainer does. A function of its arguments alone; ranks that call it with the same ones agree.
sparse::PlannedTables plan_shards(const RunConfig& config, const Cluster& cluster);

/// What one rank of a run is made by: planned once, before anything is taken.
struct RunPlan {
  sparse::PlannedTables tables;  // of all ranks
  MemoryPlan memory;             // of this rank, by purpose
  int64_t arena_bytes = 0;
  int64_t batch_bytes = 0;    // of a prepared batch on the device, at most
  int64_t request_bytes = 0;  // of its ticket
  int64_t prepare_bytes = 0;  // what it is prepared in
  int64_t micro_batch_tokens = 0;
  std::string micro_batch_why;  // empty: as the config says
};
/// Of a rank that has no others (and the machine's memory, unless it is told otherwise), and of one
/// of several.
RunPlan plan_run(const RunConfig& config, Device device);
RunPlan plan_run(const RunConfig& config, Device device, const MachineMemory& memory);
RunPlan plan_run(const RunConfig& config, const Cluster& cluster, int rank, Device device);

/// What one of the ranks takes on its device, by purpose: its shards, its share of the samples, and
/// room for what ranks exchange.
MemoryPlan rank_memory(const RunConfig& config, const Cluster& cluster, int rank);

/// What goes into the plan: memory and lookups for the longest histories that the data can have.
sparse::PlannerInput planner_input(const RunConfig& config, const Cluster& cluster);
/// The same tables looked up by histories of `events` events.
void set_demands(const RunConfig& config, double events, sparse::PlannerInput& input);

/// Most events of a history that this config's data can have.
int64_t longest_history(const RunConfig& config);

/// How often ids repeat is not in a config: those of histories are taken to follow Zipf's law with
/// this exponent (random data has its own), those of contextual features to be all alike.
inline constexpr double kHistoryIdExponent = 1.2;

/// Samples of one rank in a step, rounded up.
int64_t samples_per_rank(const RunConfig& config, int ranks);
/// The run as one rank sees it: its share of the samples.
RunConfig share_of(const RunConfig& config, int ranks);

}  // namespace segue::train
