#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tensor/exec.h"

namespace segue::model {

/// The largest batch that a step may see.
struct StepBounds {
  int64_t samples = 0;     // of a batch
  int64_t events = 0;      // in the history of a sample
  int64_t candidates = 1;  // of a sample
  int64_t micro_batch_tokens = 0;
  double distinct_share = 1;  // of different ids among events and candidates
  int64_t head_ranks = 1;     // that share attention by heads
};

/// What a training step takes from its arena at most, in bytes. `rows` exists once per batch:
/// looked-up rows, their gradients and the branches in front of the stack. `kept` is what backward
/// reads of one micro-batch. `working` comes and goes: gradients of one layer, what recompute
/// rebuilds, the scratch of attention and sums. `margin` is for what is not counted: work lists,
/// scratch of other ops. On the CPU, where an arena is address space only, it is generous.
struct StepMemory {
  int64_t rows = 0, kept = 0, working = 0, margin = 0;
  int64_t total() const { return rows + kept + working + margin; }
};

/// An arena without memory. `forward_memory` and `backward_memory` of a layer stand beside its
/// forward and backward, which take their tensors by the same calls as far as that is possible:
/// with this exec they count, and compute nothing.
class ArenaPlan {
 public:
  ArenaPlan(Precision precision, Device device)
      : arena_(device, std::numeric_limits<int64_t>::max()) {
    exec.arena = &arena_;
    exec.device = device;
    exec.precision = precision;
  }

  Exec exec;

  /// Of a step that is over: so much was in use when its rows were there, and when forward of a
  /// micro-batch was through.
  StepMemory step(int64_t rows, int64_t forward) const {
    constexpr int64_t kSmall = int64_t{64} << 20;
    StepMemory m{.rows = rows, .kept = forward - rows, .working = arena_.high_water() - forward};
    m.margin = kSmall + (exec.device.is_cpu() ? m.total() : 0);
    return m;
  }

 private:
  Arena arena_;
};

/// Takes so many bytes and gives them back.
inline void plan_scratch(const Exec& exec, int64_t bytes) {
  const Arena::Mark scratch(*exec.arena);
  exec.arena->tensor(DType::kU8, {bytes});
}

/// What a layer's backward takes and gives back.
template <class Layer, class... Sizes>
void plan_backward(const Exec& exec, const Layer& layer, const Sizes&... sizes) {
  const Arena::Mark scratch(*exec.arena);
  layer.backward_memory(exec, sizes...);
}

/// Scratch of a sum of n rows by index.
inline void plan_segment_sum(const Exec& exec, int64_t n, int64_t destinations, int64_t columns) {
  constexpr int64_t kRowsPerPartial = 32;  // two partial sums for 64 rows,
  constexpr int64_t kSmallSum = 2048;      // more where chunks are short
  const Arena::Mark scratch(*exec.arena);
  exec.index({n, 6});  // keys and items, twice, and the sort's own
  exec.index({std::min(n, destinations), 4});
  exec.statistic({n / kRowsPerPartial + std::min(n, kSmallSum), columns});
}

}  // namespace segue::model
