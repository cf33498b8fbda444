#pragma once

#include <string>
#include <vector>

#include "comm/link.h"
#include "comm/socket.h"

namespace segue::comm {

/// Where a rank can be reached.
struct Address {
  std::string host;
  int port = 0;
  std::string machine;  // equal for ranks of one machine
  std::string nonce;    // proof that a caller means this very process

  std::string to_text() const;
  static bool parse(const std::string& text, Address& address);
};

/// How ranks find each other.
struct Meeting {
  std::string place;  // "file:PATH" or "tcp:HOST:PORT"
  int rank = 0, ranks = 1;
  bool loopback = false;
  double timeout_seconds = 300;
  Clock::time_point deadline;
};

/// Error(kConfig) unless it is "file:PATH" or "tcp:HOST:PORT".
void check_rendezvous(const std::string& place);
bool is_loopback(const std::string& place);

/// The address of this process, reached through `listener`.
Address own_address(const Socket& listener, bool loopback);

/// Publishes this rank's address and returns those of all. With a file it may be what an earlier
/// run has left behind: read it again when nobody answers there. Error(kPeer) naming the ranks that
/// did not come.
std::vector<Address> meet(const Meeting& meeting, const Address& own);
/// By file: the address as it is published now. By TCP: false.
bool look_again(const Meeting& meeting, int rank, Address& address);
/// Everybody has met: removes what this rank published.
void leave(const Meeting& meeting);

}  // namespace segue::comm
