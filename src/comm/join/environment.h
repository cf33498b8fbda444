#pragma once

#include <string>

namespace segue::comm {

/// How this process was started, as far as the environment tells.
struct Launch {
  enum class By { kNobody, kSegue, kMpirun, kSlurm };
  By by = By::kNobody;
  int rank = 0, ranks = 1;
  bool all_local = false;           // every rank is on this machine
  std::string rendezvous;           // where the launcher wants ranks to meet; may be empty
  std::string secret, secret_file;  // what ranks prove to each other over TCP, or where it is
  int listener = -1;                // of rank 0: a descriptor that listens at the rendezvous
};

/// The only place of this room that reads the environment: SEGUE_RANK and its like (set by
/// launch_ranks), then Open MPI's, then those of a Slurm step; SEGUE_SECRET and SEGUE_SECRET_FILE
/// with any of them. Error(kConfig) for values that cannot be meant.
Launch read_launch();

/// Name of this machine as NCCL sees it: NCCL_HOSTID, or the host's. Ranks that differ in it can
/// share a GPU, which NCCL refuses to ranks of one machine; they talk over the network.
std::string machine_name();

/// First host of a Slurm list: "node[07-09,12],other" gives "node07".
std::string first_host(const std::string& nodelist);

}  // namespace segue::comm
