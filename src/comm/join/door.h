#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/join/handshake.h"
#include "comm/link/socket.h"

namespace segue::comm {

/// A connection whose two sides have proved the secret to each other, or are about to.
struct Line {
  Socket socket;
  Session session;
  Side side = Side::kCaller;  // ours

  bool say(std::string_view words, Clock::time_point deadline) const;
  /// What the other side says, if it is its own: nothing when it is gone, silent or a stranger.
  std::optional<std::string> hear(size_t longest, Clock::time_point deadline) const;
};

/// Says `words` to whoever listens at the other end. A line that is open; whether the host has the
/// secret shows in what it says next. Nothing when it does not speak as ours do.
std::optional<Line> introduce(Socket socket, const Key& key, std::string_view words,
                              Clock::time_point deadline);

/// Those who come to listening sockets. All are served at once, each within a time of its own, so
/// that nobody who is silent, slow or a stranger keeps others waiting; one who has not proved the
/// secret costs a connection and a few hundred bytes, for a while.
class Door {
 public:
  /// `guests`: as many may come at a time, strangers aside.
  Door(std::vector<Socket> listeners, const Key& key, int guests);

  struct Guest {
    Line line;
    std::string words;
  };
  /// The next one who proves the secret; nothing on the deadline.
  std::optional<Guest> next(Clock::time_point deadline);

  int port() const { return local_endpoint(listeners_.front()).port(); }
  /// As text, for messages.
  std::string where() const;
  /// How many have spoken as ours do without the right secret.
  int refused() const { return refused_; }

 private:
  /// Somebody whose proof has not come.
  struct Caller {
    Line line;
    std::string bytes;  // of a message that has begun
    Clock::time_point until;
    bool gone = false;
  };

  void wait(Clock::time_point deadline);
  bool accept_from(const Socket& listener);
  void drop_one();
  void listen_to(Caller& caller);
  void take(Caller& caller, std::string_view message);

  std::vector<Socket> listeners_;
  Key key_;
  size_t most_ = 0;
  std::vector<Caller> callers_;  // in the order of coming
  std::vector<Guest> guests_;    // not yet taken
  int refused_ = 0;
};

}  // namespace segue::comm
