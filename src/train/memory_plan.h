#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/step_memory.h"
#include "train/run_config.h"

namespace segue::train {

/// On a GPU: one that is trained, the next, and one that is evaluated.
inline constexpr int kBatchesInFlight = 3;

/// What a run will take on its device, by purpose, known from the config alone.
struct MemoryPlan {
  struct Part {
    std::string purpose, what;
    double bytes = 0;
  };
  std::vector<Part> parts;
  /// What each switch of model.recompute would save, or saves already.
  std::vector<Part> recompute;

  double total() const;
  /// One line per part and the sum.
  std::string text() const;
  /// One line per switch.
  std::string recompute_text() const;
};
/// Of one rank with the samples of `config`. With several, what they exchange counts too, but not
/// that rows of tables travel and lie elsewhere: see rank_memory.
MemoryPlan memory_plan(const RunConfig& config, Device device, int ranks = 1);

/// The largest batch that the config allows.
model::StepBounds step_bounds(const RunConfig& config);
/// What a step with such a batch needs.
model::StepMemory step_memory(const RunConfig& config, Device device);
/// Bytes of the arena: train.arena_gib, or what the largest batch needs.
int64_t arena_bytes(const RunConfig& config, Device device);
/// What it takes beside that where ranks share the heads of attention.
int64_t head_exchange_bytes(const RunConfig& config, Device device);
/// The device that the run would take, which this machine need not have.
Device planned_device(const RunConfig& config);

/// Error(kOutOfMemory) with the plan and what to change when `available` bytes are too few. Memory
/// of the arena on the CPU counts only as far as a step touches it, which is not known before.
void require_memory(const RunConfig& config, Device device, double available);

}  // namespace segue::train
