#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "train/step/trainer.h"

namespace segue::train {

/// Where the time of one step went: on the devices of all ranks, and on the host of this one.
struct TrackedStep {
  struct Part {
    std::string name;
    double seconds = 0, most = 0;  // mean and largest of all ranks
    double flop = 0;               // mean
    double tflops() const { return seconds > 0 ? flop / seconds * 1e-12 : 0; }
  };
  struct Rank {
    double seconds = 0;  // of its device
    double wait = 0;     // of its host, for a batch
  };
  /// What a thread finished during the step. Inner stages are in outer ones, too; those of threads
  /// that work ahead are about later batches.
  struct HostStage {
    std::string thread, name;
    double seconds = 0;
  };
  int64_t step = 0;
  double seconds = 0;  // mean of all ranks
  std::vector<Part> parts;
  std::vector<Rank> ranks;
  std::vector<HostStage> host;

  double imbalance() const;  // the slowest rank's time over the mean
  int slowest() const;
};
/// One line for people.
std::string to_text(const TrackedStep& tracked);

/// Reads what the trainer's timer has of tracked steps, a step later, when nobody has to wait for
/// it, and shares it between ranks: one small exchange for each tracked step.
class StepTracker {
 public:
  using Report = std::function<void(const TrackedStep&)>;
  StepTracker(int64_t every, Trainer& trainer, Report report)
      : every_(every), trainer_(trainer), report_(std::move(report)) {}

  /// Around every step, on all ranks.
  void before_step(int64_t step);
  void after_step(int64_t step);
  /// Training ends: what is left.
  void finish();

 private:
  struct Pending {
    int64_t step = 0;
    std::vector<TrackedStep::HostStage> host;
  };
  bool tracked(int64_t step) const { return every_ > 0 && step % every_ == 0; }
  void report_before(int64_t step);

  int64_t every_;
  Trainer& trainer_;
  Report report_;
  std::vector<TrackedStep::HostStage> before_;  // totals at the start of a tracked step
  std::deque<Pending> pending_;
};

}  // namespace segue::train
