// Messages between ranks: a peer sends anything at all, then hangs up.
// Input: what to seal, the bytes that the receiver expects, then what the peer sends.

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "comm/link/frame.h"
#include "comm/link/tcp_link.h"
#include "fuzz.h"

namespace {

using namespace segue;

constexpr uint64_t kGroup = 7;
constexpr size_t kHead = sizeof(comm::FrameHeader);

/// Gives the header at the front of `message` the checksums that it needs to be believed.
void seal(std::string& message, bool payload_too) {
  if (message.size() < kHead) return;
  comm::FrameHeader header;
  std::memcpy(&header, message.data(), kHead);
  const std::string_view payload = std::string_view(message).substr(kHead);
  header.magic = comm::FrameHeader::kMagic;
  header.group = kGroup;
  if (payload_too) header.payload_hash = base::xxh64(payload.substr(0, header.length));
  header.header_hash = base::xxh64(&header, offsetof(comm::FrameHeader, header_hash));
  std::memcpy(message.data(), &header, kHead);
}

/// The status of a rank that wants `wanted` bytes from a peer that sends `message` and is gone.
Status receive(const std::string& message, const comm::Call& call, std::vector<std::byte>& wanted) {
  std::array<int, 2> ends{};
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0, "there is a socket");
  fuzz::require(::send(ends[1], message.data(), message.size(), MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(message.size()),
                "a short message fits");
  ::close(ends[1]);
  std::vector<comm::Socket> sockets(2);
  sockets[1] = comm::Socket(ends[0]);
  comm::TcpLink link(kGroup, {"fuzz", 0, {0, 1}}, std::move(sockets),
                     std::make_shared<comm::WorldFailure>());
  const std::array<comm::ConstBytes, 2> send;
  const std::array<comm::Bytes, 2> receive = {comm::Bytes{}, comm::Bytes(wanted)};
  return link.exchange(call, send, receive);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t how = input.byte();
  std::vector<std::byte> wanted(1 + input.byte());
  std::string message(input.rest());
  if (how % 4 != 0) seal(message, how % 4 == 3);

  comm::Call call;
  call.op = comm::Op::kAllToAll;
  call.timeout_seconds = 5;
  call.deadline = comm::Clock::now() + std::chrono::seconds(5);
  const Status status = receive(message, call, wanted);
  if (!status.ok()) {
    fuzz::require(status.code() == ErrorCode::kPeer, "what a peer sends is the peer's fault");
    return 0;
  }
  comm::FrameHeader header;
  std::memcpy(&header, message.data(), kHead);
  fuzz::require(header.length == wanted.size() &&
                    std::memcmp(message.data() + kHead, wanted.data(), wanted.size()) == 0,
                "what was received is what was sent");
  const comm::FrameHeader own = comm::data_frame(kGroup, call, wanted);
  fuzz::require(own.payload_hash == header.payload_hash && own.length == header.length,
                "a frame is sealed the same way twice");
  return 0;
}
