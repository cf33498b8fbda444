#pragma once

// For tests only: ranks as processes, each this program once more with one test of it.

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
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
#include "comm/process_world.h"

namespace segue::comm::testing {

/// A port for ranks to meet at. Below those that the system hands out: whoever tries to connect to
/// one of these before somebody listens there may be given that very port, and meet himself.
inline int meeting_port() { return 15000 + ::getpid() % 17000; }

using Settings = std::vector<std::pair<std::string, std::string>>;

/// This program, running `test` ("DISABLED_Suite.Name") alone.
inline std::vector<std::string> rank_program(const std::string& test) {
  return {"/proc/self/exe", "--gtest_filter=" + test, "--gtest_also_run_disabled_tests",
          "--gtest_brief=1", "--gtest_output="};
}

struct Outcome {
  int code = 0;
  std::string text;
  double seconds = 0;

  /// The lines that begin with `start`.
  std::string lines(const std::string& start) const {
    std::istringstream in(text);
    std::string line, found;
    while (std::getline(in, line)) {
      if (line.starts_with(start)) found += line + "\n";
    }
    return found;
  }
};

/// By our own launcher; `options` says all but where output goes.
inline Outcome launch_and_wait(LaunchOptions options) {
  const std::string path = base::temp_path("log");
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600);
  options.out_fd = options.err_fd = fd;
  const base::Stopwatch watch;
  Outcome outcome;
  outcome.code = launch_ranks(options);
  outcome.seconds = watch.seconds();
  ::close(fd);
  outcome.text = base::read_file(path);
  return outcome;
}

inline bool have_mpirun() {
  return has_mpi() && std::system("command -v mpirun >/dev/null 2>&1") == 0;
}
#define SKIP_WITHOUT_MPIRUN()                                            \
  if (!segue::comm::testing::have_mpirun()) {                            \
    GTEST_SKIP() << "no mpirun on this machine, or a build without MPI"; \
  }

/// `recover`: mpirun leaves the survivors of a killed rank alone; it then ends with 0, whatever
/// they return. After `limit` seconds it is ended, with code 124.
inline Outcome mpirun(int ranks, const std::vector<std::string>& argv, const Settings& settings,
                      bool recover = false, int limit = 60) {
  const std::string path = base::temp_path("log");
  char program[4096] = "";
  EXPECT_GT(::readlink("/proc/self/exe", program, sizeof program - 1), 0);
  // A folder of its own: several mpiruns that start together trip over each other in a common one.
  std::string folder = "/tmp/segue-mpi-XXXXXX";
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  std::string command = "timeout " + std::to_string(limit);
  command += " mpirun --oversubscribe --allow-run-as-root --bind-to none";
  command += " --mca orte_tmpdir_base " + folder;
  if (recover) command += " --mca orte_enable_recovery 1";
  for (const auto& [name, value] : settings) command += " -x " + name + "=" + value;
  command += " -n " + std::to_string(ranks) + " " + program;
  for (size_t i = 1; i < argv.size(); ++i) command += " " + argv[i];
  const base::Stopwatch watch;
  const int status = std::system((command + " > " + path + " 2>&1").c_str());
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  Outcome outcome;
  outcome.seconds = watch.seconds();
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.text = base::read_file(path);
  return outcome;
}

}  // namespace segue::comm::testing
