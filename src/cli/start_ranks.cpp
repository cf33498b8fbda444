#include "cli/start_ranks.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/app.h"
#include "cli/commands.h"
#include "comm/join/environment.h"
#include "comm/join/launch.h"

namespace segue::cli {
namespace {

/// What every rank would find wrong is said once.
void check_launch(const comm::CommConfig& config) {
  if (comm::read_launch().ranks > 1) {
    fail(ErrorCode::kInvalidArgument,
         "this process is already one of several ranks (mpirun, srun): leave out --ranks");
  }
  if (config.transport == comm::Transport::kSelf || config.transport == comm::Transport::kMpi) {
    fail(ErrorCode::kConfig,
         fmt::format("--ranks starts ranks that talk over TCP, but comm.transport is \"{}\"; set "
                     "it to auto, tcp or nccl",
                     config.transport == comm::Transport::kMpi ? "mpi" : "self"));
  }
}

}  // namespace

int start_ranks(int64_t ranks, const comm::CommConfig& config,
                const std::vector<std::string>& left_out, const std::vector<std::string>& added) {
  check_launch(config);
  std::vector<std::string> argv = command_line();
  argv[0] = "/proc/self/exe";
  const auto is = [&](const std::string& word, const char* suffix) {
    return std::ranges::any_of(left_out, [&](const std::string& option) {
      return *suffix == '\0' ? word == option : word.starts_with(option + suffix);
    });
  };
  for (auto i = argv.begin() + 1; i != argv.end();) {
    // The value is the next word, or behind an equals sign.
    i = is(*i, "") ? argv.erase(i, i + 2) : (is(*i, "=") ? argv.erase(i) : i + 1);
  }
  argv.insert(argv.end(), added.begin(), added.end());
  comm::LaunchOptions launch;
  launch.ranks = static_cast<int>(ranks);
  launch.argv = std::move(argv);
  launch.peer_exit_code = kExitPeer;
  return comm::launch_ranks(launch);
}

}  // namespace segue::cli
