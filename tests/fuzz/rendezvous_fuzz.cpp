// Texts by which ranks find each other: places, addresses, and the frame that they travel in.
// Input: whether the text is framed already, then it.

#include <array>

#include <sys/socket.h>
#include <unistd.h>

#include "comm/rendezvous.h"
#include "comm/socket.h"
#include "fuzz.h"

namespace {

using namespace segue;

constexpr size_t kMost = 4096;

/// What comes out of a socket into which `bytes` went.
std::optional<std::string> received(std::string_view bytes, bool framed) {
  std::array<int, 2> ends{};
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0,
                "there is a socket");
  const auto deadline = comm::Clock::now() + std::chrono::seconds(5);
  const comm::Socket to(ends[0]);
  {
    const comm::Socket from(ends[1]);
    const bool sent = framed ? ::send(from.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                                   static_cast<ssize_t>(bytes.size())
                             : comm::send_text(from, std::string(bytes), deadline);
    fuzz::require(sent, "a short text fits");
  }
  std::string text;
  if (!comm::receive_text(to, text, deadline)) return std::nullopt;
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool framed = input.byte() % 2 != 0;
  if (input.rest().size() > kMost) return 0;
  const std::optional<std::string> text = received(input.rest(), framed);
  fuzz::require(framed || text == input.rest(), "a text arrives as it was sent");
  if (!text) return 0;

  comm::Address address;
  if (comm::Address::parse(*text, address)) {
    comm::Address again;
    fuzz::require(comm::Address::parse(address.to_text(), again) && again.host == address.host &&
                      again.port == address.port && again.machine == address.machine &&
                      again.nonce == address.nonce,
                  "an address comes back");
  }
  if (fuzz::accepted_all([&] { comm::check_rendezvous(*text); })) {
    fuzz::touch(comm::is_loopback(*text));
  }
  return 0;
}
