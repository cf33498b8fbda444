#include "comm/link/tcp_link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace segue::comm {
namespace {

constexpr size_t kHead = sizeof(FrameHeader);

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

TcpLink::TcpLink(uint64_t id, Group group, std::vector<Socket> sockets,
                 std::shared_ptr<WorldFailure> failure)
    : id_(id),
      group_(std::move(group)),
      sockets_(std::move(sockets)),
      failure_(std::move(failure)),
      half_sent_(group_.members.size()) {}

TcpLink::~TcpLink() {
  if (std::uncaught_exceptions() == 0) return;
  for (Socket& socket : sockets_) socket.abandon();
}

Status TcpLink::exchange(const Call& call, std::span<const ConstBytes> send,
                         std::span<const Bytes> receive) {
  flight_ = call.flight;
  std::vector<Traffic> peers(send.size());
  for (size_t q = 0; q < peers.size(); ++q) {
    if (static_cast<int>(q) == group_.rank) continue;
    Traffic& t = peers[q];
    t.send = send[q];
    t.receive = receive[q];
    t.sending = !t.send.empty();
    t.receiving = !t.receive.empty();
    t.watching = !t.receiving;
    if (t.sending) t.out = data_frame(id_, call, t.send);
    if (t.sending || t.receiving) call.set_due(static_cast<int>(q));
  }
  Status status;
  for (bool busy = true; busy && status.ok();) status = step(call, peers, busy);
  for (size_t q = 0; q < peers.size(); ++q) {
    if (peers[q].sending && peers[q].sent > 0) half_sent_[q] = true;
  }
  return status;
}

/// One round of waiting and moving what can be moved.
Status TcpLink::step(const Call& call, std::vector<Traffic>& peers, bool& busy) {
  // Not longer: another group of this rank may break meanwhile.
  constexpr int64_t kLookAroundMs = 50;
  std::vector<pollfd> entries;
  std::vector<int> who;
  busy = false;
  for (int q = 0; q < group_.size(); ++q) {
    const Traffic& t = peers[static_cast<size_t>(q)];
    short events = 0;
    if (t.sending) events |= POLLOUT;
    if (t.receiving || t.watching) events |= POLLIN;
    busy = busy || t.sending || t.receiving;
    if (events == 0) continue;
    entries.push_back({fd(q), events, 0});
    who.push_back(q);
  }
  if (!busy) return {};
  if (failure_->is_set()) return failure_->status();
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(call.deadline - Clock::now()).count();
  if (left <= 0) return timed_out(call, peers);
  const int rc =
      ::poll(entries.data(), entries.size(), static_cast<int>(std::min(left + 1, kLookAroundMs)));
  if (rc < 0 && errno != EINTR) {
    return {ErrorCode::kPeer, fmt::format("poll: {}", std::strerror(errno))};
  }
  for (size_t i = 0; rc > 0 && i < entries.size(); ++i) {
    const short events = entries[i].revents;
    if (events == 0) continue;
    Traffic& t = peers[static_cast<size_t>(who[i])];
    // Reading first: a peer that has stopped may have said why.
    Status status;
    if ((events & ~POLLOUT) != 0 && t.receiving) status = receive_some(call, who[i], t);
    if (status.ok() && (events & ~POLLOUT) != 0 && t.watching) {
      t.watching = false;  // what comes belongs to a later call, unless it is the end
      status = peek(who[i]);
    }
    if (status.ok() && (events & ~POLLIN) != 0 && t.sending) status = send_some(who[i], t);
    if (!status.ok()) return status;
    if (!t.sending && !t.receiving) call.set_settled(who[i]);
  }
  return {};
}

Status TcpLink::send_some(int peer, Traffic& t) {
  const size_t total = kHead + t.send.size();
  std::array<iovec, 2> parts{};
  size_t count = 0;
  if (t.sent < kHead) {
    parts[count++] = {reinterpret_cast<char*>(&t.out) + t.sent, kHead - t.sent};
  }
  const size_t at = t.sent > kHead ? t.sent - kHead : 0;
  parts[count++] = {const_cast<std::byte*>(t.send.data()) + at, t.send.size() - at};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t n = ::sendmsg(fd(peer), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) return would_block() ? Status() : closed(peer, t);
  t.sent += static_cast<size_t>(n);
  t.sending = t.sent < total;
  return {};
}

Status TcpLink::receive_some(const Call& call, int peer, Traffic& t) {
  if (t.received < kHead) return receive_header(call, peer, t);
  const size_t at = t.received - kHead;
  const ssize_t n = ::recv(fd(peer), t.receive.data() + at, t.receive.size() - at, MSG_DONTWAIT);
  if (n < 0 && would_block()) return {};
  if (n <= 0) return closed(peer, t);
  t.received += static_cast<size_t>(n);
  if (t.received < kHead + t.receive.size()) return {};
  t.receiving = false;
  return check_payload(t.in, t.receive, group_.peer(peer));
}

Status TcpLink::receive_header(const Call& call, int peer, Traffic& t) {
  auto* bytes = reinterpret_cast<char*>(&t.in);
  const ssize_t n = ::recv(fd(peer), bytes + t.received, kHead - t.received, MSG_DONTWAIT);
  if (n < 0 && would_block()) return {};
  if (n <= 0) return closed(peer, t);
  t.received += static_cast<size_t>(n);
  if (t.received < kHead) return {};
  Status status = check_header(t.in, id_, group_.peer(peer));
  if (status.ok() && t.in.kind == FrameHeader::kAbort) status = read_reason(peer, t.in.length);
  if (status.ok()) status = check_call(t.in, call, t.receive.size(), group_.peer(peer));
  return status;
}

Status TcpLink::listen(bool none_may_be_gone) {
  for (int q = 0; q < group_.size(); ++q) {
    if (q == group_.rank) continue;
    std::byte next;
    const ssize_t n = ::recv(fd(q), &next, 1, MSG_DONTWAIT | MSG_PEEK);
    const bool gone = n == 0 || (n < 0 && !would_block());
    Status status = gone && none_may_be_gone ? closed(q, {}) : peek(q);
    if (!status.ok()) return status;
  }
  return {};
}

Status TcpLink::peek(int peer) {
  FrameHeader header;
  const ssize_t n = ::recv(fd(peer), &header, kHead, MSG_DONTWAIT | MSG_PEEK);
  if (n != static_cast<ssize_t>(kHead) || !check_header(header, id_, group_.peer(peer)).ok() ||
      header.kind != FrameHeader::kAbort) {
    return {};
  }
  ::recv(fd(peer), &header, kHead, MSG_DONTWAIT);
  return read_reason(peer, header.length);
}

Status TcpLink::read_reason(int peer, size_t length) {
  std::string reason(length, ' ');
  size_t got = 0;
  const auto patience = Clock::now() + std::chrono::seconds(1);
  while (got < length && Clock::now() < patience) {
    const ssize_t n = ::recv(fd(peer), reason.data() + got, length - got, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && !would_block())) break;
    if (n > 0) {
      got += static_cast<size_t>(n);
      continue;
    }
    pollfd entry{fd(peer), POLLIN, 0};
    ::poll(&entry, 1, 50);
  }
  if (got < length) reason = group_.peer(peer) + " gave up";
  failure_->set(reason);
  return failure_->status();
}

bool TcpLink::take(int peer, std::byte* to, size_t bytes) const {
  std::array<std::byte, 16384> unwanted;
  while (bytes > 0) {
    const size_t most = to != nullptr ? bytes : std::min(bytes, unwanted.size());
    const ssize_t n = ::recv(fd(peer), to != nullptr ? to : unwanted.data(), most, MSG_DONTWAIT);
    if (n <= 0) return false;
    if (to != nullptr) to += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

Status TcpLink::closed(int peer, const Traffic& t) {
  // Its reason may still lie in the socket, behind the rest of a message and others that nobody has
  // asked for yet.
  FrameHeader header = t.in;
  auto* bytes = reinterpret_cast<std::byte*>(&header);
  size_t begun = t.receiving ? t.received : 0;
  bool whole = true;
  if (begun >= kHead) {
    whole = take(peer, nullptr, kHead + t.receive.size() - begun);
    begun = 0;
  }
  for (; whole && take(peer, bytes + begun, kHead - begun); begun = 0) {
    if (!check_header(header, id_, group_.peer(peer)).ok()) break;
    if (header.kind == FrameHeader::kAbort) return read_reason(peer, header.length);
    whole = take(peer, nullptr, header.length);
  }
  // It could not say it here when it stopped in the middle of a message.
  if (!failure_->is_set()) failure_->ask_world();
  if (failure_->is_set()) return failure_->status();
  if (flight_ != nullptr) flight_->set_gone(peer);
  return {ErrorCode::kPeer,
          group_.peer(peer) + " is gone (its connection is closed); its own last lines say why"};
}

Status TcpLink::timed_out(const Call& call, const std::vector<Traffic>& peers) const {
  std::string who;
  for (int q = 0; q < group_.size(); ++q) {
    const Traffic& t = peers[static_cast<size_t>(q)];
    if (!t.sending && !t.receiving) continue;
    who += (who.empty() ? "" : ", ") + group_.peer(q);
  }
  return did_not_answer(who, call);
}

void TcpLink::abort(const std::string& text) noexcept {
  if (told_) return;
  told_ = true;
  try {
    const std::string reason = cut_reason(text);
    const FrameHeader header = abort_frame(id_, reason);
    std::string bytes(reinterpret_cast<const char*>(&header), kHead);
    bytes += reason;
    for (int q = 0; q < group_.size(); ++q) {
      if (q == group_.rank || half_sent_[static_cast<size_t>(q)]) continue;
      // A full socket belongs to a peer that does not read: it would not read this either.
      ::send(fd(q), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  } catch (const std::bad_alloc&) {  // they will see the connection close
  }
}

}  // namespace segue::comm
