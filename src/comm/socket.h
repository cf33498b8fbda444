#pragma once

#include <string>
#include <utility>

#include "comm/link.h"

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

/// Listens on loopback or on all addresses; port 0: any free one. Error(kIo).
Socket listen_on(bool loopback, int port);
int port_of(const Socket& listener);

/// An empty socket when the other side is not (yet) there, or on the deadline.
Socket try_connect(const std::string& host, int port, Clock::time_point deadline);
/// An empty socket on the deadline.
Socket accept_from(const Socket& listener, Clock::time_point deadline);
/// Numeric address of the other side.
std::string peer_address(const Socket& socket);

/// Short texts for finding each other; false when the other side is gone, the deadline has passed
/// or (receiving) what came is no such text.
bool send_text(const Socket& socket, const std::string& text, Clock::time_point deadline);
bool receive_text(const Socket& socket, std::string& text, Clock::time_point deadline);

}  // namespace segue::comm
