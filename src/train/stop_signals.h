#pragma once

#include <memory>

namespace segue::train {

/// While one lives, SIGTERM, SIGINT, SIGUSR1 and SIGHUP (unless it was ignored: nohup) ask for an
/// orderly end instead of killing the process: the loop finishes its step, saves and returns. A
/// second SIGINT ends the process at once (exit code 130). One at a time, on the thread that
/// computes.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool requested();

 private:
  class Stack;
  std::unique_ptr<Stack> stack_;  // that handlers run on
};

}  // namespace segue::train
