#include "train/run/flight_signal.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"

namespace segue::train {

FlightSignal::FlightSignal(comm::FlightRecorder& recorder) : recorder_(recorder) {
  sigset_t asked, all;
  sigemptyset(&asked);
  sigaddset(&asked, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &asked, &before_);
  signals_ = base::Descriptor(::signalfd(-1, &asked, SFD_CLOEXEC | SFD_NONBLOCK));
  stop_ = base::Descriptor(::eventfd(0, EFD_CLOEXEC));
  if (signals_.get() < 0 || stop_.get() < 0) {
    base::log_warning("SIGUSR2 writes no flight record: no descriptor is left");
    return;
  }
  // Signals are for the threads that know what to do with them.
  sigset_t mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {
    base::log_warning("SIGUSR2 writes no flight record: no thread can watch for it");
  }
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

FlightSignal::~FlightSignal() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    static_cast<void>(::write(stop_.get(), &one, sizeof one) == sizeof one);
    thread_.join();
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void FlightSignal::watch() {
  std::array<pollfd, 2> entries{pollfd{signals_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
  for (;;) {
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if ((entries[1].revents & POLLIN) != 0) return;
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof info) != sizeof info) continue;
    recorder_.write("asked by SIGUSR2");
    base::log_info("SIGUSR2: every rank that gets it writes a flight record; see `segue flight`");
  }
}

}  // namespace segue::train
