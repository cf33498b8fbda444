#pragma once

#include <string>
#include <vector>

#include "comm/join/door.h"
#include "comm/join/handshake.h"
#include "comm/link/link.h"

namespace segue::comm {

/// How ranks find each other.
struct Meeting {
  std::string place;  // "file:PATH" or "tcp:HOST:PORT"
  int rank = 0, ranks = 1;
  bool all_local = false;  // every rank is on this machine
  std::string secret;      // empty by file: rank 0 leaves one for the others
  double timeout_seconds = 300;
};

/// What a rank knows of the others when all have come.
struct Met {
  Key key;
  std::string run;                 // name of this run, for those who were there
  std::vector<Address> addresses;  // of all ranks
  Door door;                       // where this rank can be reached
};

/// Error(kConfig) unless it is "file:PATH" or "tcp:HOST:PORT".
void check_rendezvous(const std::string& place);

/// All ranks come to rank 0, which listens at the place (or behind `inherited`, where a launcher
/// listens for it), tell it where they can be reached, and get the addresses of all. By file rank 0
/// says in a file where that is; what an earlier run has left behind does not matter. Each listens
/// only at the address by which it reached rank 0. Error(kPeer) naming the ranks that did not come;
/// Error(kConfig), Error(kIo).
Met meet(const Meeting& meeting, Socket inherited = {});
/// Everybody knows everybody: rank 0 takes its file away.
void leave(const Meeting& meeting, const std::string& run);

}  // namespace segue::comm
