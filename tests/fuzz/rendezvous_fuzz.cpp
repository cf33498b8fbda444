// What ranks say to each other before they trust each other: messages on the wire, sealed words,
// visits, tables, introductions, notices in files, and the places that users name.
// Input: which of them, then it.

#include "comm/join/handshake.h"
#include "comm/join/rendezvous.h"
#include "fuzz.h"

namespace {

using namespace segue;

constexpr size_t kMost = 4096;
constexpr int kRanks = 3;

/// What is understood means the same when it is said again.
template <class Parse>
void comes_back(std::string_view words, Parse parse) {
  const auto parsed = parse(words);
  if (!parsed) return;
  const std::string said = comm::format(*parsed);
  const auto again = parse(std::string_view(said));
  fuzz::require(again.has_value() && comm::format(*again) == said, "words come back");
}

void use_wire(std::string_view bytes) {
  size_t need = 0;
  const comm::Arrived arrived = comm::look_at_wire(bytes, comm::kMaxStrangeMessage, need);
  fuzz::require(need <= comm::kWireHead + comm::kMaxStrangeMessage, "a stranger takes no memory");
  if (arrived == comm::Arrived::kMore) fuzz::require(need > bytes.size(), "more is needed");
  if (arrived == comm::Arrived::kWhole) {
    const std::string_view message = bytes.substr(comm::kWireHead);
    fuzz::require(comm::to_wire(message) == bytes, "a message goes out as it came in");
  }
}

void use_seal(std::string_view message) {
  const comm::Session session{comm::Key("a secret"), std::string(comm::kNonceBytes, 'c'),
                              std::string(comm::kNonceBytes, 'h')};
  fuzz::require(!session.open(comm::Side::kCaller, message), "without the secret nothing opens");
  const std::string sealed = session.seal(comm::Side::kHost, message);
  fuzz::require(session.open(comm::Side::kHost, sealed) == message, "sealed words open");
  fuzz::require(!session.open(comm::Side::kCaller, sealed), "the other side's words do not");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t what = input.byte() % 7;
  const std::string_view words = input.rest();
  if (words.size() > kMost) return 0;
  if (what == 0) use_wire(words);
  if (what == 1) use_seal(words);
  if (what == 2) comes_back(words, comm::parse_visit);
  if (what == 3) {
    comes_back(words, [](std::string_view text) { return comm::parse_table(text, kRanks); });
  }
  if (what == 4) comes_back(words, comm::parse_introduction);
  if (what == 5) comes_back(words, comm::parse_notice);
  if (what == 6) fuzz::accepted_all([&] { comm::check_rendezvous(std::string(words)); });
  return 0;
}
