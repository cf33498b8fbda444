#pragma once

#include <cstdint>
#include <vector>

#include "edu/micro_dlrm.h"

namespace segue::edu {

/// Times of many steps. Percentiles are of each span by itself.
struct StepTimes {
  SpanSeconds median{}, p10{}, p90{};
  double wall_seconds = 0;  // of all timed steps
  int64_t steps = 0;

  double forward() const { return forward_seconds(median); }
  double step() const { return step_seconds(median); }
  double forward_share() const { return embedding_forward(median) / forward(); }
  double step_share() const { return embedding_step(median) / step(); }
};

/// Collects steps, also in several turns, so that what is compared can be measured in turns.
class StepTimer {
 public:
  /// Steps over the pool's batches in their order, going on where the last turn ended.
  void train(MicroDlrm& model, const BatchPool& pool, int64_t steps);
  void predict(MicroDlrm& model, const BatchPool& pool, int64_t steps);  // forward spans only
  StepTimes times() const;

 private:
  void add(const SpanSeconds& spans);
  std::vector<SpanSeconds> steps_;
  size_t next_ = 0;
};

}  // namespace segue::edu
