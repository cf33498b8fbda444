#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/stage.h"

namespace segue::report {

/// The recording in the Chrome trace format, which Perfetto and chrome://tracing open: one complete
/// event per stage, in microseconds with a fraction, threads by name; the process is the rank.
std::string trace_json(const base::StageRecording& recording, int rank);
void write_trace(const std::string& path, const base::StageRecording& recording,
                 int rank);  // atomic

/// Which steps to record. Each of `steps` opens a window of `active` steps, [s, s + active), saved
/// as trace_step<s>.json. There is one recorder, so windows that overlap become one, under the name
/// of the first; windows that only touch stay apart.
///
///     if (plan.starts_at(step)) base::start_stage_recording();
///     ... the step ...
///     if (plan.ends_after(step)) write_trace(folder + plan.file_name(step),
///     stop_stage_recording(), rank);
///
/// A process that resumes inside a window has missed its start: the caller knows whether it
/// records.
struct TracePlan {
  std::vector<int64_t> steps;  // in any order
  int64_t active = 1;          // below 1: nothing is recorded

  bool starts_at(int64_t step) const { return window_of(step) == step; }
  bool ends_after(int64_t step) const;
  /// First step of the window that holds `step`: at the end of training, what is still to be saved.
  std::optional<int64_t> window_of(int64_t step) const;
  /// Of the window that holds `step`; empty outside.
  std::string file_name(int64_t step) const;
};

}  // namespace segue::report
