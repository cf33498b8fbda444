#pragma once

namespace segue::train {

/// While one lives, SIGTERM and SIGINT ask for an orderly end instead of killing the process: the
/// loop finishes its step, saves and returns. A second SIGINT ends the process at once (exit code
/// 130). One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool requested();
};

}  // namespace segue::train
