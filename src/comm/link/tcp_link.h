#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/link/frame.h"
#include "comm/link/socket.h"

namespace segue::comm {

/// A socket to every peer of a group; sockets[own rank] is empty.
class TcpLink final : public Link {
 public:
  TcpLink(uint64_t id, Group group, std::vector<Socket> sockets,
          std::shared_ptr<WorldFailure> failure);

  /// While an exception unwinds this rank, the connections stay open until the process ends: its
  /// own message is out before the peers notice.
  ~TcpLink() override;

  Status exchange(const Call& call, std::span<const ConstBytes> send,
                  std::span<const Bytes> receive) override;
  Status listen(bool none_may_be_gone) override;
  void abort(const std::string& reason) noexcept override;

 private:
  /// What still has to go to a peer, and to come from it. A message is its header and its payload.
  struct Traffic {
    FrameHeader out, in;
    ConstBytes send;
    Bytes receive;
    size_t sent = 0, received = 0;  // of header and payload together
    bool sending = false, receiving = false;
    bool watching = false;  // nothing is due, but it may say that it has stopped
  };

  Status send_some(int peer, Traffic& t);
  Status receive_some(const Call& call, int peer, Traffic& t);
  Status receive_header(const Call& call, int peer, Traffic& t);
  /// The reason of a peer that has stopped, if that is what comes next; nothing else is taken.
  Status peek(int peer);
  /// The peer has announced a reason of `length` bytes; they come next.
  Status read_reason(int peer, size_t length);
  /// Reads what has already come, into `to` or, without it, past it; false when that is not enough.
  bool take(int peer, std::byte* to, size_t bytes) const;
  /// The connection is gone: what the peer said last, here or to the world, or just that.
  Status closed(int peer, const Traffic& t);
  Status step(const Call& call, std::vector<Traffic>& peers, bool& busy);
  Status timed_out(const Call& call, const std::vector<Traffic>& peers) const;

  int fd(int peer) const { return sockets_[static_cast<size_t>(peer)].fd(); }

  uint64_t id_;
  Group group_;
  std::vector<Socket> sockets_;
  std::shared_ptr<WorldFailure> failure_;
  std::vector<bool> half_sent_;   // a message was left unfinished: nothing may follow it
  FlightRing* flight_ = nullptr;  // of the group, once it has made a call
  bool told_ = false;
};

}  // namespace segue::comm
