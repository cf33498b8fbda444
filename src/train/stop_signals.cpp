#include "train/stop_signals.h"

#include <atomic>
#include <csignal>

#include <unistd.h>

namespace segue::train {
namespace {

// A signal handler can reach nothing else.
std::atomic<int> signals_seen{0}, interrupts_seen{0};
struct sigaction previous_term, previous_int;

constexpr int kExitInterrupted = 130;

void on_signal(int number) {
  signals_seen.fetch_add(1);
  if (number == SIGINT && interrupts_seen.fetch_add(1) > 0) _exit(kExitInterrupted);
}

}  // namespace

StopSignals::StopSignals() {
  signals_seen = 0;
  interrupts_seen = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &previous_term);
  sigaction(SIGINT, &action, &previous_int);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &previous_term, nullptr);
  sigaction(SIGINT, &previous_int, nullptr);
}

bool StopSignals::requested() { return signals_seen.load() > 0; }

}  // namespace segue::train
