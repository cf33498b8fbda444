#include "comm/join/environment.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"

namespace segue::comm {
namespace {

std::string text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}
bool has(const char* name) { return !text(name).empty(); }

int64_t number(const char* name, int64_t fallback) {
  const std::string value = text(name);
  if (value.empty()) return fallback;
  int64_t n = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (error != std::errc() || end != value.data() + value.size() || n < 0) {
    fail(ErrorCode::kConfig, fmt::format("environment variable {}=`{}` is not a number that is "
                                         "not negative",
                                         name, value));
  }
  return n;
}

Launch with_ranks(Launch::By by, const char* rank, const char* ranks) {
  Launch launch;
  launch.by = by;
  launch.secret = text("SEGUE_SECRET");
  launch.secret_file = text("SEGUE_SECRET_FILE");
  launch.rank = static_cast<int>(number(rank, 0));
  launch.ranks = static_cast<int>(number(ranks, 1));
  if (launch.rank >= launch.ranks) {
    fail(ErrorCode::kConfig, fmt::format("the environment says rank {} of {} ({}, {}); ranks count "
                                         "from 0",
                                         launch.rank, launch.ranks, rank, ranks));
  }
  return launch;
}

}  // namespace

std::string machine_name() {
  if (has("NCCL_HOSTID")) return text("NCCL_HOSTID");
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return host;
}

std::string first_host(const std::string& nodelist) {
  const size_t end = nodelist.find_first_of(",[");
  std::string host = nodelist.substr(0, end);
  if (end == std::string::npos || nodelist[end] == ',') return host;
  const size_t close = nodelist.find_first_of(",-]", end);
  const size_t last = nodelist.find(']', end);
  if (close == std::string::npos || last == std::string::npos) return host;
  host += nodelist.substr(end + 1, close - end - 1);
  return host + nodelist.substr(last + 1, nodelist.find_first_of(",[", last) - last - 1);
}

Launch read_launch() {
  if (has("SEGUE_RANKS")) {
    Launch launch = with_ranks(Launch::By::kSegue, "SEGUE_RANK", "SEGUE_RANKS");
    launch.rendezvous = text("SEGUE_RENDEZVOUS");
    launch.all_local = number("SEGUE_LOCAL_RANKS", 0) == launch.ranks;
    launch.listener = static_cast<int>(number("SEGUE_LISTENER", -1));
    return launch;
  }
  if (has("OMPI_COMM_WORLD_SIZE")) {
    Launch launch = with_ranks(Launch::By::kMpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    launch.all_local = number("OMPI_COMM_WORLD_LOCAL_SIZE", 0) == launch.ranks;
    return launch;
  }
  // A batch script itself also carries SLURM_NTASKS; only what srun starts is one rank of several.
  if (has("SLURM_STEP_NODELIST") && has("SLURM_PROCID")) {
    const char* ranks = has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    Launch launch = with_ranks(Launch::By::kSlurm, "SLURM_PROCID", ranks);
    // Below the ports that the system hands out, and another one for every step.
    constexpr int64_t kFirst = 15000, kCount = 17000;
    const int64_t step = number("SLURM_JOB_ID", 0) * 31 + number("SLURM_STEP_ID", 0);
    launch.rendezvous =
        fmt::format("tcp:{}:{}", first_host(text("SLURM_STEP_NODELIST")), kFirst + step % kCount);
    return launch;
  }
  return {};
}

}  // namespace segue::comm
