#pragma once

#include <cstdint>

#include "edu/micro_dlrm.h"
#include "edu/samples.h"

namespace segue::edu {

struct TrainOptions {
  int64_t epochs = 3;
  double dense_rate = 1e-2, rows_rate = 0.05;  // at first; both fall to a tenth by a cosine
  uint64_t seed = 1;
};

struct TrainResult {
  double accuracy = 0, auc = 0;    // on the validation samples
  double majority = 0, bayes = 0;  // accuracies of no model and of the truth (0: unknown)
  double first_loss = 0, last_loss = 0;
  double seconds = 0, cpu_seconds = 0;  // of training steps alone; CPU time of all threads
  int64_t epochs = 0, steps = 0;

  /// How far from the majority class to the truth.
  double way() const { return (accuracy - majority) / (bayes - majority); }
};

/// Epochs over the training samples in batches that were drawn once and come in another order each
/// time, then the validation samples.
TrainResult train(MicroDlrm& model, const Workload& workload, const Dataset& data,
                  const TrainOptions& options);

/// Samples per second, forward only, in batches of the workload: the median over passes through the
/// validation samples that take about `seconds`.
double inference_rate(MicroDlrm& model, const Workload& workload, const Dataset& data,
                      double seconds = 0.5);

/// N ranks of B / N samples each against one of N micro-batches: the same training?
struct DistributedResult {
  int ranks = 0;
  int64_t steps = 0, batch = 0, parameters = 0;
  double largest_difference = 0;        // of any parameter, tables included
  double all_reduce_ms = 0;             // median, of all gradients of a step
  double loss_ranks = 0, loss_one = 0;  // of the last step
};
DistributedResult compare_distributed(const Dataset& data, int ranks, int64_t steps, int64_t batch,
                                      uint64_t seed);

}  // namespace segue::edu
