#include "comm/deadline.h"

#include <atomic>
#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/test_util.h"
#include "base/time.h"

namespace segue::comm {
namespace {

TEST(CallDeadline, ACallThatReturnsIsLeftAlone) {
  std::atomic<int> alarms{0};
  const base::Stopwatch watch;
  for (int i = 0; i < 100; ++i) {
    const CallDeadline deadline("a call", 1, 60, [&](const std::string&) { ++alarms; });
  }
  EXPECT_EQ(alarms, 0);
  EXPECT_LT(watch.seconds(), base::kSlowness * 2);
}

TEST(CallDeadline, OneThatDoesNotIsNamedWithRankAndTime) {
  std::atomic<bool> over{false};
  std::string said;
  const CallDeadline deadline("MPI_Init_thread", 7, 0.25, [&](const std::string& message) {
    said = message;
    over = true;
  });
  const base::Stopwatch watch;
  while (!over && watch.seconds() < 20) ::usleep(1000);
  ASSERT_TRUE(over);
  EXPECT_TRUE(base::contains(said, "rank 7 waited 0.")) << said;
  EXPECT_TRUE(base::contains(said, "in MPI_Init_thread")) << said;
  EXPECT_GE(watch.seconds(), 0.2);
}

TEST(CallDeadline, EndsTheProcess) {
  EXPECT_EXIT(
      {
        const CallDeadline deadline("MPI_Finalize", 2, 0.05);
        for (;;) ::pause();
      },
      ::testing::ExitedWithCode(kPeerExitCode), "rank 2 waited .* in MPI_Finalize");
}

/// Its peers may have answered while it was stopped.
TEST(CallDeadline, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  const pid_t child = ::fork();
  if (child == 0) {
    const base::Stopwatch watch;
    {
      const CallDeadline deadline("a call", 0, 1.5);
      for (double ran = 0; ran < 0.5; ran += 0.01) ::usleep(10'000);
    }
    ::_exit(watch.seconds() > 2 ? 0 : 1);
  }
  ::usleep(200'000);
  ::kill(child, SIGSTOP);
  ::usleep(2'200'000);
  ::kill(child, SIGCONT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace segue::comm
