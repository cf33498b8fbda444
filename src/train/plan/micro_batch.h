#pragma once

#include <cstdint>
#include <string>

#include "train/plan/shard_planning.h"
#include "train/run_config.h"

namespace segue::train {

/// Tokens of a micro-batch, and why so many.
struct MicroBatchChoice {
  int64_t tokens = 0;
  std::string why;
};

/// What train.micro_batch_tokens = 0 stands for. A GPU works best on a whole batch, or on as few
/// equal parts of it as fit beside tables that lie there; a CPU gains nothing by more than
/// TrainConfig::kUsualMicroBatch. A pure function of its arguments: `cluster` has the memory that
/// the config gives to a rank (device_bytes), or that a device has (device_limit), not what happens
/// to be free. Results depend on the choice in their rounding, so a run records it.
MicroBatchChoice choose_micro_batch(const RunConfig& config, Device device, const Cluster& cluster);

/// Memory of a GPU for each of the `ranks` of this machine, used or not; 0: no GPU, or none here.
double device_memory_share(Device device, int ranks);

}  // namespace segue::train
