#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"
#include "tensor/buffer.h"
#include "train/run_config.h"

namespace segue::train {

/// On a GPU: one that is trained and the next; in an evaluation two more.
inline constexpr int kBatchesOnDevice = 2, kBatchesInFlight = 2 * kBatchesOnDevice;

/// What a run will take on its device, by purpose, known from the config alone.
struct MemoryPlan {
  struct Part {
    Purpose purpose = Purpose::kScratch;
    std::string what;
    double bytes = 0;
    bool of_tables = false;  // rows, or optimizer state of rows
  };
  std::vector<Part> parts;
  std::vector<model::MemorySwitch> switches;

  double total() const;
  double of(Purpose purpose) const;
  /// One line per part and the sum.
  std::string text() const;
  /// One line per switch.
  std::string switches_text() const;
};
/// Of one rank with the samples of `config`. With several, what they exchange counts too, but not
/// that rows of tables travel and lie elsewhere: see rank_memory.
MemoryPlan memory_plan(const RunConfig& config, Device device, int ranks = 1);

/// The largest batch that the config allows.
model::StepBounds step_bounds(const RunConfig& config, const model::Model& model);
/// What a step with such a batch needs.
model::StepMemory step_memory(const RunConfig& config, Device device);
/// The device that the run would take, which this machine need not have.
Device planned_device(const RunConfig& config);

/// Free memory of a GPU, or all that this machine has.
double available_bytes(Device device);

/// Error(kOutOfMemory) with the plan and what to change when `available` bytes are too few. On the
/// CPU, where an arena takes memory only as far as steps touch it, a plan that fits but for its
/// arena is a warning, unless batches are as large as the plan takes them to be.
void require_memory(const MemoryPlan& plan, Device device, double available,
                    bool full_batches = false);

}  // namespace segue::train
