#include "train/run/flight_signal.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/test_util.h"
#include "comm/flight/verdict.h"

namespace segue::train {
namespace {

/// The record, once its reason is `why`.
bool comes(const std::string& folder, const std::string& why) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < patience) {
    if (base::exists(folder + "/rank-0.json") && comm::read_flight(folder).records[0].why == why) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

/// Gets its signals while a call hangs; 0: all as it should be.
int record_by_signal(const std::string& folder) {
  comm::FlightRecorder recorder;
  const auto ring = recorder.add_group("dense", 0, {0, 1});
  ring->begin(comm::Op::kAllReduce, 3, 7, 64, 64);  // and never ends
  ring->set_due(1);
  const FlightSignal signal(recorder);
  ::kill(::getpid(), SIGUSR2);  // there is no place to write to yet: nothing happens
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  recorder.set_place(folder, 0, 2, "one");
  for (int i = 0; i < 3; ++i) ::kill(::getpid(), SIGUSR2);
  if (!comes(folder, "asked by SIGUSR2")) return 1;
  const comm::FlightVerdict verdict = comm::judge(comm::read_flight(folder));
  return verdict.ranks == std::vector{1} && verdict.sequence == 7 ? 0 : 2;
}

// In a process without threads of other tests, which the signal would end.
TEST(FlightSignal, WritesWhileTheOtherThreadsHang) {
  EXPECT_EXIT(std::_Exit(record_by_signal(base::temp_path("flight"))), testing::ExitedWithCode(0),
              "");
}

TEST(FlightSignal, LeavesTheMaskAsItWas) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    comm::FlightRecorder recorder;
    const FlightSignal signal(recorder);
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
    EXPECT_EQ(sigismember(&after, SIGUSR2), 1);
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&after, SIGUSR2), sigismember(&before, SIGUSR2));
}

}  // namespace
}  // namespace segue::train
