#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "bench/bench.h"
#include "bench/workspace.h"
#include "model/stu.h"

namespace segue::bench {

/// Forward and backward of the same runs.
struct StackTimes {
  Timing forward, backward, both;
};

/// STU layers one after the other, every token through all of them: what other implementations are
/// compared by.
class StuStack {
 public:
  StuStack(const LayerShape& shape, int64_t layers, Device device);

  /// One run; adds its times, if there is a place for them.
  void run(StackTimes* times);

  std::span<const int64_t> offsets() const { return offsets_; }
  /// Reports forward and backward together and each alone, by the formula's FLOPs.
  void add_results(const char* name, const StackTimes& times, Report& report) const;
  double flops(bool backward) const;  // false: forward alone

 private:
  LayerShape shape_;
  Workspace w_;
  model::Parameters parameters_;
  std::deque<model::StuLayer> layers_;
  std::vector<int64_t> offsets_, targets_;
  model::Sequences sequences_;
  Tensor x_, gradient_, dx_;
};

}  // namespace segue::bench
