#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/run_config.h"

namespace segue::train {

/// What a run will take on its device, by purpose, known from the config alone.
struct MemoryPlan {
  struct Part {
    std::string purpose, what;
    double bytes = 0;
  };
  std::vector<Part> parts;

  double total() const;
  /// One line per part and the sum.
  std::string text() const;
};
MemoryPlan memory_plan(const RunConfig& config);

/// Error(kOutOfMemory) with the plan and what to change when `available` bytes are too few. Memory
/// of the arena on the CPU counts only as far as a step touches it, which is not known before.
void require_memory(const RunConfig& config, Device device, double available);

}  // namespace segue::train
