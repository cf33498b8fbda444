#include "train/run/stop_signals.h"

#include <atomic>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <pthread.h>

#include "train/test_util.h"

namespace segue::train {
namespace {

TEST(StopSignalsTest, EachSignalIsARequest) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    const StopSignals signals;
    EXPECT_FALSE(StopSignals::requested());
    ::raise(signal);
    EXPECT_TRUE(StopSignals::requested());
  }
  EXPECT_FALSE(StopSignals::requested());
}

TEST(StopSignalsTest, NohupIsRespected) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals;
    ::raise(SIGHUP);
    EXPECT_FALSE(StopSignals::requested());
    ::raise(SIGTERM);
    EXPECT_TRUE(StopSignals::requested());
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
}

TEST(StopSignalsTest, AnEarlyRequestWaits) {
  // A thread of its own, so that nothing stays blocked for the other tests.
  std::thread([] {
    hold_early_signals();
    ::pthread_kill(::pthread_self(), SIGUSR1);
    {
      const StopSignals signals;
      EXPECT_TRUE(StopSignals::requested());
    }
    ::pthread_kill(::pthread_self(), SIGUSR1);  // a late one must not end the process either
    sigset_t waiting;
    ::sigpending(&waiting);
    EXPECT_EQ(::sigismember(&waiting, SIGUSR1), 1);
  }).join();
}

/// oneDNN's products move the stack pointer to memory of the heap: see SignalStack.
TEST(StopSignalsTest, SignalsDoNotDisturbAStep) {
  RunConfig config = tiny_config();
  config.data.batch_size = 200;  // products that sum over many tokens
  const std::vector<double> expected = losses_of(config, 12);
  const StopSignals signals;
  std::atomic<bool> done{false};
  const pthread_t main = ::pthread_self();
  std::thread sender([&] {
    while (!done) {
      ::pthread_kill(main, SIGTERM);  // NOLINT(bugprone-bad-signal-to-kill-thread): it is handled
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  const std::vector<double> disturbed = losses_of(config, 12);
  done = true;
  sender.join();
  EXPECT_EQ(disturbed, expected);
}

}  // namespace
}  // namespace segue::train
