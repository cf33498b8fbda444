#pragma once

// For tests only: processes that come to listening ports and have no secret.

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "comm/deadline.h"
#include "comm/join/door.h"

namespace segue::comm::testing {

/// Where this process listens.
inline std::vector<Endpoint> listening_endpoints() {
  std::vector<Endpoint> found;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    Endpoint e;
    e.length = sizeof e.address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&e.address), &e.length) == 0) {
      found.push_back(e);
    }
  }
  return found;
}

/// Says one of several wrong things at a port, which `n` chooses; false when nobody listens there.
/// The connection stays in `held`, unless it closes.
inline bool say_something_strange(int port, int n, std::vector<Socket>& held) {
  const auto soon = after(0.5);
  Socket socket = try_connect(resolve("127.0.0.1", port).front(), soon);
  if (!socket) return false;
  const auto send = [&](const std::string& bytes) {
    ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  };
  const std::string visit = format(Visit{1, 3, {"", 40000, "m"}, "tcp:127.0.0.1:1"});
  const std::string talk = format(Introduction{"run", 0, 1, 0});
  const std::string nonce = random_bytes(kNonceBytes);
  switch (n % 10) {
    case 0:  // silent
      break;
    case 1:
      send(to_wire(nonce).substr(0, 11));
      break;
    case 2:
      send("GET / HTTP/1.1\r\n\r\n");
      break;
    case 3:  // a length without end
      send(to_wire("").substr(0, 4) + "\xff\xff\xff\x7f" + std::string(5000, 'x'));
      break;
    case 4:  // as ranks once spoke
      send("SEGT" + std::string("\x1c\0\0\0", 4) + "1 2 127.0.0.1 40000 m n");
      break;
    case 5:  // a nonce, then silence
      send(to_wire(nonce));
      break;
    case 6:  // another secret
      static_cast<void>(introduce(std::move(socket), Key("not the secret of this run"),
                                  n % 20 < 10 ? visit : talk, soon));
      break;
    case 7:  // what the host says, sent back to it
      send(to_wire(nonce));
      if (const auto theirs = receive_message(socket, kNonceBytes, soon)) {
        send(to_wire(*theirs) + to_wire(*theirs + visit));
      }
      break;
    case 8:  // without a proof
      send(to_wire(nonce) + to_wire(visit) + to_wire(talk));
      break;
    default:  // gone at once
      socket.close();
  }
  if (socket) held.push_back(std::move(socket));
  return true;
}

/// Strangers that come and come to a port, and to all others at which this process listens.
class Strangers {
 public:
  explicit Strangers(int port) : port_(port) {
    for (int i = 0; i < 3; ++i) threads_.emplace_back([this] { run(); });
  }
  ~Strangers() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;

  /// So many found somebody listening.
  int heard() const { return heard_; }

 private:
  void run() {
    std::vector<Socket> held;  // some stay for a while
    while (!over_) {
      std::vector<int> ports{port_};
      for (const Endpoint& e : listening_endpoints()) ports.push_back(e.port());
      for (const int port : ports) {
        if (say_something_strange(port, heard_, held)) ++heard_;
      }
      if (held.size() > 100) held.clear();
      ::usleep(500);
    }
  }

  int port_ = 0;
  std::atomic<bool> over_{false};
  std::atomic<int> heard_{0};
  std::vector<std::thread> threads_;
};

}  // namespace segue::comm::testing
