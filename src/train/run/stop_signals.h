#pragma once

#include <csignal>
#include <memory>

namespace segue::train {

/// From here on SIGUSR1 waits for a StopSignals and SIGUSR2 for a FlightSignal, on this thread and
/// in all that it starts, threads and processes. Schedulers and mpirun send the first to ask for an
/// orderly end, whenever they like: in a run that is still reading its config it would end the
/// process. The other signals may do that, as long as there is nothing to save.
void hold_early_signals();

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
  sigset_t blocked_before_{};
};

}  // namespace segue::train
