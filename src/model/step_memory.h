#pragma once

#include <cstdint>

#include "model/config.h"
#include "sparse/tables_config.h"
#include "tensor/exec.h"

namespace segue::model {

/// The largest batch that a step may see.
struct StepBounds {
  int64_t samples = 0;     // of a batch
  int64_t events = 0;      // in the history of a sample
  int64_t candidates = 1;  // of a sample
  int64_t micro_batch_tokens = 0;
  double distinct_share = 1;  // of different ids among events and candidates
};

/// What a training step takes from its arena at most, in bytes. `rows` exists once per batch:
/// looked-up rows, their gradients and the branches in front of the stack; there are at most as
/// many distinct rows as events and candidates in the largest batch, times the share that may be
/// different, and as the table has. `kept`
/// is what backward reads of one micro-batch. `working` comes and goes: gradients of one layer,
/// what recompute rebuilds, the scratch of attention and sums. `margin` is for what is not counted:
/// work lists, small weights in another type. It hardly depends on tokens; on the CPU,
/// where products also copy their operands and an arena is address space only, it is generous.
struct StepMemory {
  int64_t rows = 0, kept = 0, working = 0, margin = 0;
  int64_t total() const { return rows + kept + working + margin; }
};

/// Follows the step's calls and adds up what they take; it computes nothing.
StepMemory step_memory(const ModelConfig& model, const sparse::TablesConfig& tables,
                       int64_t embedding_dim, const StepBounds& bounds, Precision precision,
                       Device device);

/// Bytes of a prepared batch on the device, at most.
int64_t batch_memory(const ModelConfig& model, const StepBounds& bounds);

}  // namespace segue::model
