#pragma once

#include <string>
#include <utility>
#include <vector>

namespace segue::comm {

struct LaunchOptions {
  int ranks = 1;
  /// Program and arguments of every rank; {"/proc/self/exe", ...} is this program.
  std::vector<std::string> argv;
  /// Added to the environment of every rank.
  std::vector<std::pair<std::string, std::string>> environment;
  /// How long the others may go on once one rank has failed: enough to say what they know and stop.
  double grace_seconds = 10;
  /// Exit code of a rank that only stopped because another did; such a one is not the culprit.
  int peer_exit_code = -1;
  int out_fd = 1, err_fd = 2;  // where output goes
};

/// Starts ranks of the same command on this machine and waits for all of them. They find each other
/// by SEGUE_RANK, SEGUE_RANKS and SEGUE_RENDEZVOUS, a port of the loopback address behind which
/// rank 0 inherits the listening socket (SEGUE_LISTENER), and know each other by SEGUE_SECRET.
/// Standard output is rank 0's; lines that others write, and all lines to standard error, go to
/// standard error, with "rank N: " before those of ranks other than 0. SIGINT, SIGTERM, SIGHUP,
/// SIGUSR1 and SIGUSR2 are passed on. When a rank fails, its lines come before those of the others,
/// which are killed after the grace time; the exit code is that of the failed rank (128 + signal if
/// one ended it), and a last line names it. Ranks die with the launcher. Call it before the process
/// has threads. Error(kIo).
int launch_ranks(const LaunchOptions& options);

}  // namespace segue::comm
