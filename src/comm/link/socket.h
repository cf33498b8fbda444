#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "comm/link/link.h"

namespace segue::comm {

/// A TCP socket, closed at the end.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close() noexcept;
  /// Stays open for as long as the process lives.
  void abandon() noexcept { fd_ = -1; }

 private:
  int fd_ = -1;
};

/// One address, IPv4 or IPv6, and a port.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;

  std::string host() const;  // as digits
  int port() const;
  void set_port(int port);
  bool is_loopback() const;
  bool is_any() const;  // all addresses of a machine
};

/// What a name, or an address in digits, stands for; empty when nobody knows. The name of this
/// machine itself means the address by which others reach it, also where its own hosts file (as
/// Debian's) gives it a loopback address.
std::vector<Endpoint> resolve(const std::string& host, int port);
/// The address of this machine that leads to others: what its name stands for, or where its route
/// to far-away machines begins; the loopback address when it has no other.
std::string outward_address();
std::string host_name();

/// An address of this machine.
bool is_ours(const Endpoint& place);
/// Listens there, on one port at all of them; port 0: any free one. Error(kIo).
std::vector<Socket> listen_on(std::vector<Endpoint> places);
/// Of a socket: its own side, and the other one.
Endpoint local_endpoint(const Socket& socket);
Endpoint peer_endpoint(const Socket& socket);
bool is_listening(const Socket& socket);

/// An empty socket when the other side is not (yet) there, or on the deadline.
Socket try_connect(const Endpoint& to, Clock::time_point deadline);
/// One that waits at a listener; an empty socket when there is none.
Socket try_accept(const Socket& listener);

/// Waits until the socket can be read or written; false on the deadline.
bool wait_for(const Socket& socket, short events, Clock::time_point deadline);

/// A message (see handshake.h). False, or nothing, when the other side is gone, the deadline has
/// passed, or what comes is no message of at most `longest` bytes.
bool send_message(const Socket& socket, std::string_view message, Clock::time_point deadline);
std::optional<std::string> receive_message(const Socket& socket, size_t longest,
                                           Clock::time_point deadline);

}  // namespace segue::comm
