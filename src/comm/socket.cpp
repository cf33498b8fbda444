#include "comm/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

namespace segue::comm {
namespace {

constexpr uint32_t kTextMagic = 0x54474553;  // "SEGT"
constexpr uint32_t kMaxText = 16 << 20;

/// Waits until the socket can be read or written; false on the deadline.
bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{fd, events, 0};
    const int rc = ::poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    if (rc > 0) return true;
    if (rc < 0 && errno != EINTR) return false;
    if (left <= 0) return false;
  }
}

void prepare(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

bool send_all(int fd, const void* data, size_t bytes, Clock::time_point deadline) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EINTR) {
      if (!wait_for(fd, POLLOUT, deadline)) return false;
    } else {
      return false;
    }
  }
  return true;
}

bool receive_all(int fd, void* data, size_t bytes, Clock::time_point deadline) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, at, bytes, MSG_DONTWAIT);
    if (got > 0) {
      at += got;
      bytes -= static_cast<size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!wait_for(fd, POLLIN, deadline)) return false;
    } else {
      return false;
    }
  }
  return true;
}

bool finish_connect(int fd, Clock::time_point deadline) {
  if (!wait_for(fd, POLLOUT, deadline)) return false;
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

}  // namespace

void Socket::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Socket listen_on(bool loopback, int port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  const int on = 1;
  if (socket) ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!socket ||
      ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.fd(), 1024) != 0) {
    fail(ErrorCode::kIo, fmt::format("cannot listen on port {}: {}; give another place with "
                                     "rendezvous (file:PATH or tcp:HOST:PORT)",
                                     port, std::strerror(errno)));
  }
  ::fcntl(socket.fd(), F_SETFL, ::fcntl(socket.fd(), F_GETFL) | O_NONBLOCK);
  return socket;
}

int port_of(const Socket& listener) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

Socket try_connect(const std::string& host, int port, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  Socket result;
  for (const addrinfo* a = found; a != nullptr && !result; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket) continue;
    prepare(socket.fd());
    if (::connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0 ||
        (errno == EINPROGRESS && finish_connect(socket.fd(), deadline))) {
      result = std::move(socket);
    }
  }
  ::freeaddrinfo(found);
  return result;
}

Socket accept_from(const Socket& listener, Clock::time_point deadline) {
  while (wait_for(listener.fd(), POLLIN, deadline)) {
    Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) continue;  // the other side has changed its mind
    prepare(socket.fd());
    return socket;
  }
  return {};
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char text[NI_MAXHOST] = "";
  if (::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof text, nullptr,
                  0, NI_NUMERICHOST);
  }
  return text;
}

bool send_text(const Socket& socket, const std::string& text, Clock::time_point deadline) {
  const uint32_t head[2] = {kTextMagic, static_cast<uint32_t>(text.size())};
  return send_all(socket.fd(), head, sizeof head, deadline) &&
         send_all(socket.fd(), text.data(), text.size(), deadline);
}

bool receive_text(const Socket& socket, std::string& text, Clock::time_point deadline) {
  uint32_t head[2] = {};
  if (!receive_all(socket.fd(), head, sizeof head, deadline)) return false;
  if (head[0] != kTextMagic || head[1] > kMaxText) return false;
  text.resize(head[1]);
  return receive_all(socket.fd(), text.data(), text.size(), deadline);
}

}  // namespace segue::comm
