#pragma once

#include <csignal>
#include <thread>

#include "base/file.h"
#include "comm/flight/recorder.h"

namespace segue::train {

/// While one lives, SIGUSR2 has a thread write the flight record of this rank, also while all
/// others hang. No handler runs: the signal stays blocked (see hold_early_signals) and is read as
/// bytes. Not before the recorder has a place; one at a time.
class FlightSignal {
 public:
  explicit FlightSignal(comm::FlightRecorder& recorder);
  ~FlightSignal();
  FlightSignal(const FlightSignal&) = delete;
  FlightSignal& operator=(const FlightSignal&) = delete;

 private:
  void watch();

  comm::FlightRecorder& recorder_;
  sigset_t before_{};
  base::Descriptor signals_, stop_;
  std::thread thread_;
};

}  // namespace segue::train
