#include "comm/link/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/join/handshake.h"

namespace segue::comm {
namespace {

const sockaddr* plain(const Endpoint& e) { return reinterpret_cast<const sockaddr*>(&e.address); }
sockaddr* plain(Endpoint& e) { return reinterpret_cast<sockaddr*>(&e.address); }
bool is_v6(const Endpoint& e) { return e.address.ss_family == AF_INET6; }
const in_addr& v4(const Endpoint& e) {
  return reinterpret_cast<const sockaddr_in*>(&e.address)->sin_addr;
}
const in6_addr& v6(const Endpoint& e) {
  return reinterpret_cast<const sockaddr_in6*>(&e.address)->sin6_addr;
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

void prepare(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  set_nonblocking(fd);
}

bool again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

bool finish_connect(const Socket& socket, Clock::time_point deadline) {
  if (!wait_for(socket, POLLOUT, deadline)) return false;
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

/// node1.cluster and node1 are one machine.
std::string first_label(const std::string& host) { return host.substr(0, host.find('.')); }

std::vector<Endpoint> look_up(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  std::vector<Endpoint> places;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Endpoint& place = places.emplace_back();
    place.length = a->ai_addrlen;
    std::memcpy(&place.address, a->ai_addr, a->ai_addrlen);
  }
  ::freeaddrinfo(found);
  return places;
}

/// Which of its addresses this machine would use to reach that one, if any; nothing is sent.
std::string source_address(const char* far_away) {
  for (const Endpoint& to : look_up(far_away, 9)) {
    const Socket socket(::socket(to.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.fd(), plain(to), to.length) != 0) continue;
    const Endpoint own = local_endpoint(socket);
    if (!own.is_any()) return own.host();
  }
  return "";
}

/// For machines that have a network, but no way out of it.
std::string first_interface() {
  std::string first = "127.0.0.1";
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return first;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
    Endpoint place;
    place.length = sizeof(sockaddr_in);
    std::memcpy(&place.address, i->ifa_addr, sizeof(sockaddr_in));
    first = place.host();
    break;
  }
  ::freeifaddrs(all);
  return first;
}

Socket bind_to(const Endpoint& place) {
  Socket socket(::socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return socket;
  const int on = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (is_v6(place)) {
    const int v6_only = place.is_any() ? 0 : 1;
    ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
  }
  if (::bind(socket.fd(), plain(place), place.length) != 0 || ::listen(socket.fd(), 1024) != 0) {
    return {};
  }
  set_nonblocking(socket.fd());
  return socket;
}

}  // namespace

void Socket::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string Endpoint::host() const {
  char text[NI_MAXHOST] = "";
  ::getnameinfo(plain(*this), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  // An IPv4 caller, as a socket for both kinds sees it.
  const std::string_view mapped = "::ffff:";
  const std::string host = text;
  return host.starts_with(mapped) && host.find('.') != std::string::npos
             ? host.substr(mapped.size())
             : host;
}

int Endpoint::port() const {
  return ntohs(is_v6(*this) ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                            : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void Endpoint::set_port(int port) {
  auto& field = is_v6(*this) ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  field = htons(static_cast<uint16_t>(port));
}

bool Endpoint::is_loopback() const {
  if (is_v6(*this)) return IN6_IS_ADDR_LOOPBACK(&v6(*this));
  return ntohl(v4(*this).s_addr) >> 24 == IN_LOOPBACKNET;
}

bool Endpoint::is_any() const {
  if (is_v6(*this)) return IN6_IS_ADDR_UNSPECIFIED(&v6(*this));
  return v4(*this).s_addr == htonl(INADDR_ANY);
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string outward_address() {
  for (const Endpoint& place : look_up(host_name(), 0)) {
    if (!place.is_loopback() && is_ours(place)) return place.host();
  }
  // Addresses that are kept for documentation: any that is far away will do.
  for (const char* far_away : {"192.0.2.1", "2001:db8::1"}) {
    const std::string own = source_address(far_away);
    if (!own.empty()) return own;
  }
  return first_interface();
}

std::vector<Endpoint> resolve(const std::string& host, int port) {
  const std::vector<Endpoint> places = look_up(host, port);
  const std::string label = first_label(host);
  const bool own_name = label == first_label(host_name()) && label != "localhost";
  if (own_name && std::ranges::all_of(places, &Endpoint::is_loopback)) {
    return look_up(outward_address(), port);
  }
  return places;
}

bool is_ours(const Endpoint& place) {
  Endpoint any_port = place;
  any_port.set_port(0);
  const Socket socket(::socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket && ::bind(socket.fd(), plain(any_port), any_port.length) == 0;
}

std::vector<Socket> listen_on(std::vector<Endpoint> places) {
  SEGUE_ASSERT(!places.empty(), "somewhere to listen");
  // A port that is free at one address may be taken at the next one: then another.
  constexpr int kTries = 20;
  const int wanted = places.front().port();
  int error = 0;
  std::string where;
  for (int i = 0; i < (wanted == 0 ? kTries : 1); ++i) {
    std::vector<Socket> sockets;
    for (Endpoint& place : places) {
      place.set_port(sockets.empty() ? wanted : local_endpoint(sockets.front()).port());
      Socket socket = bind_to(place);
      if (!socket) {
        error = errno;
        where = place.host();
        break;
      }
      sockets.push_back(std::move(socket));
    }
    if (sockets.size() == places.size()) return sockets;
  }
  fail(ErrorCode::kIo, fmt::format("cannot listen on {} port {}: {}; give another place with "
                                   "comm.rendezvous (file:PATH or tcp:HOST:PORT)",
                                   where, wanted, std::strerror(error)));
}

Endpoint local_endpoint(const Socket& socket) {
  Endpoint e;
  e.length = sizeof e.address;
  if (::getsockname(socket.fd(), plain(e), &e.length) != 0) return {};
  return e;
}

Endpoint peer_endpoint(const Socket& socket) {
  Endpoint e;
  e.length = sizeof e.address;
  if (::getpeername(socket.fd(), plain(e), &e.length) != 0) return {};
  return e;
}

bool is_listening(const Socket& socket) {
  int on = 0;
  socklen_t length = sizeof on;
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ACCEPTCONN, &on, &length) == 0 && on != 0;
}

Socket try_connect(const Endpoint& to, Clock::time_point deadline) {
  Socket socket(::socket(to.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return socket;
  prepare(socket.fd());
  if (::connect(socket.fd(), plain(to), to.length) == 0 ||
      (errno == EINPROGRESS && finish_connect(socket, deadline))) {
    return socket;
  }
  return {};
}

Socket try_accept(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket) prepare(socket.fd());
  return socket;
}

bool wait_for(const Socket& socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{socket.fd(), events, 0};
    const int rc = ::poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    if (rc > 0) return true;
    if (rc < 0 && errno != EINTR) return false;
    if (left <= 0) return false;
  }
}

bool send_message(const Socket& socket, std::string_view message, Clock::time_point deadline) {
  const std::string bytes = to_wire(message);
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n =
        ::send(socket.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (!again() || !wait_for(socket, POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

std::optional<std::string> receive_message(const Socket& socket, size_t longest,
                                           Clock::time_point deadline) {
  std::string bytes;
  for (size_t need = 0;;) {
    const Arrived arrived = look_at_wire(bytes, longest, need);
    if (arrived == Arrived::kWhole) return bytes.substr(kWireHead);
    if (arrived == Arrived::kStrange) return std::nullopt;
    const size_t had = bytes.size();
    bytes.resize(need);
    const ssize_t n = ::recv(socket.fd(), bytes.data() + had, need - had, MSG_DONTWAIT);
    bytes.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0 || (n < 0 && (!again() || !wait_for(socket, POLLIN, deadline)))) {
      return std::nullopt;
    }
  }
}

}  // namespace segue::comm
