#pragma once

#include <cstdint>
#include <string>

#include "report/trace.h"
#include "report/trace_plan.h"
#include "train/run_config.h"
#include "train/step/trainer.h"

namespace segue::train {

/// Records the windows that the config asks for, on every rank, and writes a file for each. What
/// cannot be recorded or written is said once; training goes on.
class Tracer {
 public:
  /// `folder` is where files go. Ranks that are threads of one process share its recorder:
  /// `records` is true for one of them.
  Tracer(const TraceConfig& config, const Trainer& trainer, std::string folder, bool records);
  /// A window that an error cuts short is written as far as it goes: its last step is the one that
  /// failed.
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Around every step. Collective where a window begins: clocks are compared there.
  void before_step(int64_t step);
  void after_step(int64_t step);
  /// Training ends: a window that is open ends with it. Warns if no window began.
  void finish();

 private:
  void start(bool window);
  void end_step(int64_t step);
  void write();
  void stop();
  void count_memory() const;

  report::TracePlan plan_;
  const Trainer& trainer_;
  std::string folder_;
  bool records_;
  bool on_ = false;                         // something is recorded, if only as a rehearsal
  int64_t window_ = 0;                      // first step of the window that is open; 0: none
  int64_t started_ns_ = 0;                  // of the recording
  int64_t step_ns_ = 0;                     // of the step
  int64_t first_step_ = 0, last_step_ = 0;  // that came by
  bool began_ = false;                      // some window did
  report::TraceFacts facts_;
};

/// Collective: how far this rank's clock is ahead of the first one's. Nobody leaves a barrier
/// before all have come, which bounds the difference from both sides; of several barriers the
/// tightest bounds count.
report::TraceClock compare_clocks(const Ranks& ranks);

namespace detail {
/// Times at which a rank came to each barrier and left it, by its own clock.
struct BarrierTimes {
  int64_t came_ns = 0, left_ns = 0;
};
report::TraceClock clock_between(std::span<const BarrierTimes> first,
                                 std::span<const BarrierTimes> mine);
}  // namespace detail

}  // namespace segue::train
