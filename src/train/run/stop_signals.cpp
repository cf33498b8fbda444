#include "train/run/stop_signals.h"

#include <array>
#include <atomic>
#include <csignal>
#include <memory>
#include <vector>

#include <unistd.h>

namespace segue::train {
namespace {

// A signal handler can reach nothing else.
std::atomic<int> signals_seen{0}, interrupts_seen{0};
constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP, SIGUSR1};  // mpirun passes on the last one
std::array<struct sigaction, kSignals.size()> previous;

constexpr int kExitInterrupted = 130;

/// Handlers run on memory of their own. The matrix products of oneDNN use the stack pointer for
/// something else while they run: a handler on the usual stack would then write over the heap.
/// (Threads of base::parallel_for get no signals.)
class SignalStack {
 public:
  SignalStack() : memory_(kBytes) {
    const stack_t stack{.ss_sp = memory_.data(), .ss_flags = 0, .ss_size = memory_.size()};
    sigaltstack(&stack, &before_);
  }
  ~SignalStack() { sigaltstack(&before_, nullptr); }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  static constexpr size_t kBytes = 64 << 10;  // registers of the widest CPUs take 11 KiB
  std::vector<char> memory_;
  stack_t before_{};
};

void on_signal(int number) {
  signals_seen.fetch_add(1);
  if (number == SIGINT && interrupts_seen.fetch_add(1) > 0) _exit(kExitInterrupted);
}

sigset_t stop_request() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  return set;
}

}  // namespace

void hold_early_signals() {
  sigset_t held = stop_request();
  sigaddset(&held, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

class StopSignals::Stack : public SignalStack {};

StopSignals::StopSignals() : stack_(std::make_unique<Stack>()) {
  signals_seen = 0;
  interrupts_seen = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &previous[i]);
    const bool nohup = kSignals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN;
    if (!nohup) sigaction(kSignals[i], &action, nullptr);
  }
  const sigset_t held = stop_request();
  pthread_sigmask(SIG_UNBLOCK, &held, &blocked_before_);
}

StopSignals::~StopSignals() {
  pthread_sigmask(SIG_SETMASK, &blocked_before_, nullptr);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  signals_seen = 0;
}

bool StopSignals::requested() { return signals_seen.load() > 0; }

}  // namespace segue::train
