#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace segue::report {

/// Which steps to record. Each of `steps` opens a window of `active` steps, [s, s + active). There
/// is one recorder, so windows that overlap become one, under the name of the first; windows that
/// only touch stay apart. In place of a list, `repeat` opens so many windows one after the other,
/// each after `wait` steps of rest and `warm_up` steps of rehearsal; below 0: as long as training
/// goes on. In the `warm_up` steps before any window recording is on and what it gives is dropped.
///
/// A process that resumes inside a window has missed its start: the caller knows whether it
/// records.
struct TracePlan {
  std::vector<int64_t> steps;  // in any order
  int64_t active = 1;          // below 1: nothing is recorded
  int64_t wait = 0, warm_up = 0, repeat = 0;

  bool any() const { return active > 0 && (!steps.empty() || repeat != 0); }
  bool starts_at(int64_t step) const { return window_of(step) == step; }
  bool ends_after(int64_t step) const;
  /// Whether a rehearsal goes on in `step`, which is in no window.
  bool rehearses(int64_t step) const;
  /// First step of the window that holds `step`: at the end of training, what is still to be saved.
  std::optional<int64_t> window_of(int64_t step) const;
  /// Of the last window; 0: there is none. Windows without end: the largest number.
  int64_t last_step() const;
};

/// trace_step<first step>.json, with several ranks one of each: trace_step<first step>_rank<r>.json
std::string trace_file_name(int64_t first_step, int rank, int ranks);

}  // namespace segue::report
