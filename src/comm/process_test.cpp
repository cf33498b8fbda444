// Ranks as processes: over TCP by our own launcher, and under mpirun.

#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/test_util.h"
#include "base/time.h"
#include "comm/join/launch.h"
#include "comm/link/nccl_link.h"
#include "comm/process_test_util.h"

namespace segue::comm {
namespace {

using base::contains;
using testing::Outcome;
using testing::Settings;

constexpr int kRanks = 4;
// Of tests that run into it: long enough for ranks that share two cores with other tests.
constexpr double kTimeout = 3;
constexpr double kPromptly = 12;
constexpr int kPeerExitCode = 9, kOwnExitCode = 5;  // of rank_program_test.cpp

const std::vector<std::string> kProgram = testing::rank_program("DISABLED_RankProgram.Run");

Outcome launch(int ranks, Settings settings, double grace = 10) {
  return testing::launch_and_wait({ranks, kProgram, std::move(settings), grace, kPeerExitCode});
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

/// What is noticed at once, with the long timeout of rank_program_test.cpp.
Settings prompt(const std::string& name) { return {{"SEGUE_TEST_SCENARIO", name}}; }
/// What only the timeout shows.
Settings timed(const std::string& name) {
  return {{"SEGUE_TEST_SCENARIO", name}, {"SEGUE_TEST_TIMEOUT", std::to_string(kTimeout)}};
}

TEST(TcpProcesses, RandomSequencesOfCollectives) {
  for (const int ranks : {2, 3}) {
    const Outcome outcome = launch(ranks, {{"SEGUE_TEST_SEED", std::to_string(ranks)}});
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_TRUE(contains(outcome.text, "rank 1: here is 1 of " + std::to_string(ranks)));
  }
}

TEST(TcpProcesses, MeetByTcp) {
  const std::string place = "tcp:127.0.0.1:" + std::to_string(testing::meeting_port());
  const Outcome outcome = launch(3, {{"SEGUE_TEST_RENDEZVOUS", place}});
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

TEST(TcpProcesses, AKilledRankIsNamedByAllOthers) {
  const Outcome outcome = launch(kRanks, prompt("kill"));
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.text;
  EXPECT_LT(outcome.seconds, base::kSlowness * kPromptly);
  for (const char* start : {"failed: ", "rank 1: failed: ", "rank 3: failed: "}) {
    const std::string lines = outcome.lines(start);
    EXPECT_TRUE(contains(lines, "group `dense`, all_reduce, step 3")) << outcome.text;
    EXPECT_TRUE(contains(lines, "rank 2 is gone")) << outcome.text;
  }
  EXPECT_TRUE(contains(outcome.text, "segue: rank 2 failed first (signal 9)"));
}

TEST(TcpProcesses, ADamagedMessageIsFound) {
  const Outcome outcome = launch(kRanks, prompt("corrupt"));
  EXPECT_EQ(outcome.code, kPeerExitCode);
  for (const char* start :
       {"failed: ", "rank 1: failed: ", "rank 2: failed: ", "rank 3: failed: "}) {
    const std::string lines = outcome.lines(start);
    EXPECT_TRUE(contains(lines, "all_reduce, step 3")) << outcome.text;
    EXPECT_TRUE(contains(lines, "from rank 2 was damaged on the way")) << outcome.text;
  }
  EXPECT_LT(outcome.seconds, base::kSlowness * kPromptly);
}

TEST(TcpProcesses, ARankThatThrowsBreaksTheOthersAtOnce) {
  const Outcome outcome = launch(kRanks, prompt("throw"));
  EXPECT_EQ(outcome.code, kOwnExitCode);
  EXPECT_TRUE(contains(outcome.lines("rank 2: failed: "), "loss is not finite")) << outcome.text;
  EXPECT_TRUE(contains(outcome.lines("rank 3: failed: "), "rank 2 is gone")) << outcome.text;
  // Its own message comes first.
  EXPECT_LT(outcome.text.find("loss is not finite"), outcome.text.find("rank 2 is gone"));
  EXPECT_LT(outcome.seconds, base::kSlowness * kPromptly);
}

TEST(TcpProcesses, ARankThatGivesUpSaysWhy) {
  const Outcome outcome = launch(kRanks, prompt("give_up"));
  EXPECT_EQ(outcome.code, kOwnExitCode) << outcome.text;
  for (const char* start : {"failed: ", "rank 1: failed: ", "rank 3: failed: "}) {
    EXPECT_TRUE(contains(outcome.lines(start), "rank 2 gave up: the disk is full")) << outcome.text;
  }
}

TEST(SlowTcpProcesses, AStoppedRankIsNamedByAllOthersAfterTheTimeout) {
  const Outcome outcome = launch(kRanks, timed("stop"), 2);
  EXPECT_NE(outcome.code, 0);
  for (const char* start : {"failed: ", "rank 1: failed: ", "rank 3: failed: "}) {
    const std::string lines = outcome.lines(start);
    EXPECT_TRUE(contains(lines, "all_reduce, step 3")) << outcome.text;
    EXPECT_TRUE(contains(lines, "rank 2 did not answer within 3 s")) << outcome.text;
  }
  EXPECT_LT(outcome.seconds, base::kSlowness * (kTimeout + 12));
}

TEST(SlowTcpProcesses, ARankThatIsStoppedWhileTheyStartEndsAllOthers) {
  for (const int ms : {0, 20, 60, 150}) {
    Settings settings = timed("random");
    settings.emplace_back("SEGUE_TEST_STOP_AFTER_MS", std::to_string(ms));
    const Outcome outcome = launch(kRanks, settings, 2);
    EXPECT_EQ(outcome.code, kPeerExitCode) << outcome.text;
    for (const char* start : {"failed: ", "rank 1: failed: ", "rank 3: failed: "}) {
      EXPECT_TRUE(contains(outcome.lines(start), "rank 2")) << ms << " ms\n" << outcome.text;
    }
    EXPECT_LT(outcome.seconds, base::kSlowness * (kTimeout + 12));
  }
}

TEST(SlowTcpProcesses, MoreRandomSequences) {
  for (int seed = 10; seed < 16; ++seed) {
    const Outcome outcome = launch(1 + seed % 5, {{"SEGUE_TEST_SEED", std::to_string(seed)}});
    EXPECT_EQ(outcome.code, 0) << "seed " << seed << "\n" << outcome.text;
  }
}

// ---- the launcher itself ----

Outcome launch_shell(int ranks, const std::string& script, double grace = 5) {
  return testing::launch_and_wait({ranks, {"/bin/sh", "-c", script}, {}, grace});
}

TEST(Launch, OutputIsPassedOnWithTheRank) {
  const Outcome outcome = launch_shell(3, "echo out $SEGUE_RANK/$SEGUE_RANKS; printf err >&2");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.text, "out 0/3\n"));
  EXPECT_TRUE(contains(outcome.text, "\nrank 2: out 2/3\n")) << outcome.text;
  EXPECT_TRUE(contains(outcome.text, "rank 1: err\n"));
}

TEST(Launch, TheFirstFailureGivesTheExitCodeAndTheLastLine) {
  const Outcome outcome = launch_shell(3,
                                       "if [ $SEGUE_RANK = 1 ]; then echo broken >&2; exit 7; fi; "
                                       "sleep 0.3; echo other >&2; exit 9");
  EXPECT_EQ(outcome.code, 7);
  EXPECT_TRUE(contains(outcome.text, "segue: rank 1 failed first (exit code 7): broken"));
  EXPECT_LT(outcome.text.find("broken"), outcome.text.find("other"));
}

TEST(Launch, RanksThatDoNotEndAreKilledAfterTheGraceTime) {
  const Outcome outcome =
      launch_shell(3, "trap '' TERM; if [ $SEGUE_RANK = 0 ]; then exit 3; fi; sleep 60", 0.2);
  EXPECT_EQ(outcome.code, 3);
  EXPECT_LT(outcome.seconds, base::kSlowness * 5);
}

TEST(Launch, SignalsReachEveryRank) {
  const std::string path = base::temp_path("log");
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600);
    LaunchOptions options{2,
                          {"/bin/sh", "-c",
                           "trap 'echo caught >&2; exit 0' TERM; echo ready >&2; "
                           "while :; do sleep 0.05; done"}};
    options.out_fd = options.err_fd = fd;
    ::_exit(launch_ranks(options));
  }
  const auto has_twice = [&](const std::string& word) {
    if (!base::exists(path)) return false;
    const std::string text = base::read_file(path);
    const size_t first = text.find(word);
    return first != std::string::npos && text.find(word, first + 1) != std::string::npos;
  };
  const base::Stopwatch watch;
  while (!has_twice("ready") && watch.seconds() < 10) ::usleep(10'000);
  ::kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(has_twice("caught")) << base::read_file(path);
}

TEST(Launch, ALauncherThatIsKilledLeavesNothingBehind) {
  const std::string folder = base::temp_path("tmp");
  base::make_folders(folder);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("TMPDIR", folder.c_str(), 1);
    LaunchOptions options{
        2, {"/bin/sh", "-c", "echo $$ >>$PIDS; exec sleep 60"}, {{"PIDS", folder + "/pids"}}};
    ::_exit(launch_ranks(options));
  }
  const base::Stopwatch watch;
  const auto started = [&] {
    return base::exists(folder + "/pids") && count(base::read_file(folder + "/pids"), "\n") == 2;
  };
  while (!started() && watch.seconds() < 10) ::usleep(10'000);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  std::istringstream pids(base::read_file(folder + "/pids"));
  for (pid_t pid = 0; pids >> pid;) {
    while (::kill(pid, 0) == 0 && watch.seconds() < 10) ::usleep(10'000);
    EXPECT_NE(::kill(pid, 0), 0) << pid;
  }
  const std::filesystem::directory_iterator left(folder);
  EXPECT_EQ(std::distance(begin(left), end(left)), 1);  // the pids
}

TEST(Launch, AProgramThatIsNotThereFails) {
  LaunchOptions options{2, {"/nowhere/segue"}};
  const int null = ::open("/dev/null", O_WRONLY);
  options.out_fd = options.err_fd = null;
  EXPECT_EQ(launch_ranks(options), 127);
  ::close(null);
}

// ---- mpirun ----

Outcome mpirun(int ranks, const Settings& settings, bool recover = false) {
  return testing::mpirun(ranks, kProgram, settings, recover);
}

TEST(MpiProcesses, RandomSequencesOfCollectives) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome = mpirun(3, {{"SEGUE_TEST_SEED", "5"}});
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_TRUE(contains(outcome.text, "here is 2 of 3"));
}

TEST(MpiProcesses, RanksOfMpirunMayTalkOverTcp) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome = mpirun(2, {{"SEGUE_TEST_RENDEZVOUS", "file:" + base::temp_path("meet")}});
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

TEST(SlowMpiProcesses, ADamagedMessageIsFound) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome = mpirun(kRanks, prompt("corrupt"));
  EXPECT_NE(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.text, "all_reduce, step 3")) << outcome.text;
  EXPECT_TRUE(contains(outcome.text, "from rank 2 was damaged on the way")) << outcome.text;
  EXPECT_LT(outcome.seconds, base::kSlowness * kPromptly);
}

TEST(SlowMpiProcesses, AKilledRankIsNamedByAllOthers) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome = mpirun(kRanks, timed("kill"), true);
  EXPECT_EQ(count(outcome.text, "failed: group `dense`, all_reduce, step 3"), 3) << outcome.text;
  EXPECT_EQ(count(outcome.text, "rank 2 did not answer within 3 s"), 3) << outcome.text;
  EXPECT_EQ(count(outcome.text, "exit code 9"), 3) << outcome.text;
  EXPECT_LT(outcome.seconds, base::kSlowness * (kTimeout + 15));
}

TEST(SlowMpiProcesses, MpirunEndsTheOthersOfAKilledRank) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome = mpirun(kRanks, prompt("kill"));
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.text;
  EXPECT_TRUE(contains(outcome.text, "rank 2")) << outcome.text;
  EXPECT_LT(outcome.seconds, base::kSlowness * 15);
}

TEST(SlowMpiProcesses, AStoppedRankIsNamedByAllOthers) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome = mpirun(kRanks, timed("stop"));
  EXPECT_NE(outcome.code, 0);
  EXPECT_GE(count(outcome.text, "rank 2 did not answer within 3 s"), 3) << outcome.text;
  EXPECT_LT(outcome.seconds, base::kSlowness * (kTimeout + 15));
}

TEST(SlowMpiProcesses, ARankThatIsStoppedWhileTheyStartEndsAllOthers) {
  SKIP_WITHOUT_MPIRUN();
  for (const int ms : {0, 50, 100, 150, 200, 300}) {
    Settings settings = timed("random");
    settings.emplace_back("SEGUE_TEST_STOP_AFTER_MS", std::to_string(ms));
    constexpr int kLimit = static_cast<int>(kTimeout) + 12;
    const Outcome outcome = testing::mpirun(kRanks, kProgram, settings, false, kLimit);
    // When all ranks have ended, mpirun itself may hang or crash in its library (PMIx 4.2).
    EXPECT_NE(outcome.code, 0) << outcome.text;
    // Those that wait in MPI name the call; those that wait in an exchange of ours, the culprit.
    const int in_mpi = count(outcome.text, " waited 3.");
    EXPECT_GE(in_mpi + count(outcome.text, "rank 2 did not answer"), 3) << outcome.text;
    EXPECT_EQ(count(outcome.text, " s in MPI_"), in_mpi) << outcome.text;
  }
}

TEST(SlowMpiProcesses, ARankThatThrowsBreaksTheOthersAtOnce) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome = mpirun(kRanks, prompt("throw"));
  EXPECT_NE(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.text, "failed: loss is not finite")) << outcome.text;
  EXPECT_TRUE(contains(outcome.text, "rank 2 gave up")) << outcome.text;
  EXPECT_LT(outcome.seconds, base::kSlowness * 15);
}

TEST(SlowMpiProcesses, MoreRandomSequences) {
  SKIP_WITHOUT_MPIRUN();
  for (int seed = 20; seed < 24; ++seed) {
    const Outcome outcome = mpirun(1 + seed % 4, {{"SEGUE_TEST_SEED", std::to_string(seed)}});
    EXPECT_EQ(outcome.code, 0) << "seed " << seed << "\n" << outcome.text;
  }
}

// ---- ranks that share a GPU ----

TEST(GpuProcesses, ShareAGpuOverTcp) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const int ranks : {2, 4}) {
    const Outcome outcome = launch(ranks, {{"SEGUE_TEST_SCENARIO", "gpu"}});
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    if (cuda_device_count() < ranks) {
      EXPECT_TRUE(contains(outcome.text, "device memory goes through host memory"));
    }
  }
}

/// On one GPU too, over the loopback network: see run_on_gpu.
Settings nccl(const std::string& trouble, double timeout) {
  return {{"SEGUE_TEST_SCENARIO", "nccl" + trouble},
          {"SEGUE_TEST_TIMEOUT", std::to_string(timeout)},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_IB_DISABLE", "1"}};
}
#define SKIP_WITHOUT_NCCL()                               \
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU"; \
  if (!nccl_trouble().empty()) GTEST_SKIP() << nccl_trouble()

TEST(GpuProcesses, TalkOverNccl) {
  SKIP_WITHOUT_NCCL();
  for (const int ranks : {2, 3, 4}) {
    const Outcome outcome = launch(ranks, nccl("", 60));
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_FALSE(contains(outcome.text, "goes through host memory")) << outcome.text;
  }
}

TEST(GpuProcesses, ARankKilledUnderNcclIsNamedByAllOthers) {
  SKIP_WITHOUT_NCCL();
  const Outcome outcome = launch(kRanks, nccl("kill", 30));
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.text;
  for (const char* start : {"failed: ", "rank 1: failed: ", "rank 3: failed: "}) {
    const std::string lines = outcome.lines(start);
    EXPECT_TRUE(contains(lines, "group `dense`, all_reduce, step 3")) << outcome.text;
    EXPECT_TRUE(contains(lines, "rank 2 is gone")) << outcome.text;
  }
  EXPECT_LT(outcome.seconds, base::kSlowness * 30);
}

TEST(GpuProcesses, ARankStoppedUnderNcclEndsAllOthers) {
  SKIP_WITHOUT_NCCL();
  constexpr double kPatience = 6;  // opening the group takes a while
  const Outcome outcome = launch(kRanks, nccl("stop", kPatience), 2);
  EXPECT_NE(outcome.code, 0);
  for (const char* start : {"failed: ", "rank 1: failed: ", "rank 3: failed: "}) {
    const std::string lines = outcome.lines(start);
    EXPECT_TRUE(contains(lines, "group `dense`, all_reduce, step 3")) << outcome.text;
    EXPECT_TRUE(contains(lines, "rank 2")) << outcome.text;
  }
  EXPECT_LT(outcome.seconds, base::kSlowness * (3 * kPatience));
}

TEST(GpuProcesses, ShareAGpuUnderMpirun) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  SKIP_WITHOUT_MPIRUN();
  for (const int ranks : {2, 4}) {
    const Outcome outcome = mpirun(ranks, {{"SEGUE_TEST_SCENARIO", "gpu"}});
    EXPECT_EQ(outcome.code, 0) << outcome.text;
  }
}

}  // namespace
}  // namespace segue::comm
