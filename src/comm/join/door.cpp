#include "comm/join/door.h"

#include <algorithm>
#include <cerrno>
#include <thread>

#include <fmt/format.h>
#include <poll.h>

#include "comm/deadline.h"

namespace segue::comm {
namespace {

// For a proof to come, over any network. A rank that was too slow calls again.
constexpr double kPatience = 10;
// Strangers that are kept beside the guests.
constexpr size_t kStrangers = 256;

Side other(Side side) { return side == Side::kCaller ? Side::kHost : Side::kCaller; }

}  // namespace

bool Line::say(std::string_view words, Clock::time_point deadline) const {
  return send_message(socket, session.seal(side, words), deadline);
}

std::optional<std::string> Line::hear(size_t longest, Clock::time_point deadline) const {
  const auto message = receive_message(socket, kProofBytes + longest, deadline);
  return message ? session.open(other(side), *message) : std::nullopt;
}

std::optional<Line> introduce(Socket socket, const Key& key, std::string_view words,
                              Clock::time_point deadline) {
  Line line{std::move(socket), {key, random_bytes(kNonceBytes), ""}, Side::kCaller};
  if (!send_message(line.socket, line.session.caller_nonce, deadline)) return std::nullopt;
  const auto nonce = receive_message(line.socket, kNonceBytes, deadline);
  if (!nonce || nonce->size() != kNonceBytes) return std::nullopt;
  line.session.host_nonce = *nonce;
  if (!line.say(words, deadline)) return std::nullopt;
  return line;
}

Door::Door(std::vector<Socket> listeners, const Key& key, int guests)
    : listeners_(std::move(listeners)),
      key_(key),
      most_(kStrangers + static_cast<size_t>(guests)) {}

std::string Door::where() const {
  std::string text;
  for (const Socket& listener : listeners_) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", local_endpoint(listener).host());
  }
  return fmt::format("{} port {}", text, port());
}

std::optional<Door::Guest> Door::next(Clock::time_point deadline) {
  for (;;) {
    if (!guests_.empty()) {
      Guest guest = std::move(guests_.front());
      guests_.erase(guests_.begin());
      return guest;
    }
    const auto now = Clock::now();
    if (now >= deadline) return std::nullopt;
    std::erase_if(callers_, [&](const Caller& c) { return c.gone || c.until <= now; });
    wait(deadline);
  }
}

/// Until something happens at the door, and does it.
void Door::wait(Clock::time_point deadline) {
  std::vector<pollfd> entries;
  for (const Socket& listener : listeners_) entries.push_back({listener.fd(), POLLIN, 0});
  for (const Caller& caller : callers_) {
    entries.push_back({caller.line.socket.fd(), POLLIN, 0});
    deadline = std::min(deadline, caller.until);
  }
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  if (::poll(entries.data(), entries.size(),
             static_cast<int>(std::clamp<int64_t>(left + 1, 1, 1000))) <= 0) {
    return;
  }
  for (size_t i = 0; i < callers_.size(); ++i) {
    if (entries[listeners_.size() + i].revents != 0) listen_to(callers_[i]);
  }
  // Not all that have queued: those who are inside are served in between.
  constexpr int kAtOnce = 64;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    for (int n = 0; n < kAtOnce && entries[i].revents != 0; ++n) {
      if (!accept_from(listeners_[i])) break;
    }
  }
}

/// False when nobody is left there.
bool Door::accept_from(const Socket& listener) {
  if (callers_.size() >= most_) drop_one();
  Socket socket = try_accept(listener);
  if (socket) {
    callers_.push_back({{std::move(socket), {key_, "", ""}, Side::kHost}, "", after(kPatience)});
    return true;
  }
  const int error = errno;
  if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
    drop_one();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // poll would not wait
  }
  return error == ECONNABORTED || error == EINTR;
}

/// The one who has said least for longest.
void Door::drop_one() {
  if (std::erase_if(callers_, [](const Caller& c) { return c.gone; }) > 0 || callers_.empty()) {
    return;
  }
  const auto silent = std::ranges::find_if(
      callers_, [](const Caller& c) { return c.line.session.caller_nonce.empty(); });
  callers_.erase(silent != callers_.end() ? silent : callers_.begin());
}

/// Reads what has come, and never more than the message that is due.
void Door::listen_to(Caller& caller) {
  size_t need = 0;
  for (;;) {
    const Arrived arrived = look_at_wire(caller.bytes, kMaxStrangeMessage, need);
    if (arrived == Arrived::kStrange) break;
    if (arrived == Arrived::kWhole) {
      const std::string bytes = std::move(caller.bytes);
      caller.bytes.clear();
      take(caller, std::string_view(bytes).substr(kWireHead));
      if (caller.gone) return;
      continue;
    }
    char buffer[kWireHead + kMaxStrangeMessage];
    const ssize_t n = ::recv(caller.line.socket.fd(), buffer, need - caller.bytes.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n <= 0) break;
    caller.bytes.append(buffer, static_cast<size_t>(n));
  }
  caller.gone = true;
}

/// First the nonce of the caller, which is answered with ours; then its proof.
void Door::take(Caller& caller, std::string_view message) {
  Session& session = caller.line.session;
  if (session.caller_nonce.empty()) {
    session.caller_nonce = message;
    session.host_nonce = random_bytes(kNonceBytes);
    // Fresh connections take a few bytes at once; who does not is not worth waiting for.
    caller.gone = message.size() != kNonceBytes ||
                  !send_message(caller.line.socket, session.host_nonce, Clock::now());
    return;
  }
  caller.gone = true;
  auto words = session.open(Side::kCaller, message);
  if (!words) {
    ++refused_;
    return;
  }
  guests_.push_back({std::move(caller.line), std::move(*words)});
}

}  // namespace segue::comm
