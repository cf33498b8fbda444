#include "comm/join/handshake.h"

#include <charconv>
#include <cstring>

#include <fmt/format.h>
#include <sodium.h>

#include "base/error.h"

namespace segue::comm {
namespace {

static_assert(kProofBytes == crypto_auth_BYTES && sizeof(Key) == crypto_auth_KEYBYTES);

constexpr uint32_t kMark = 0x31474553;  // "SEG1"; another digit when words change
// Host, port and machine as text.
constexpr size_t kMaxAddress = 512;

/// Before anything else of the library.
void start_sodium() {
  static const int kStarted = ::sodium_init();
  if (kStarted < 0) fail(ErrorCode::kIo, "the system has no source of random numbers");
}

/// Words that are separated by one separator each; nothing is skipped.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool word(std::string& to, char end = ' ') {
    const size_t at = rest_.find(end);
    if (at == 0 || at == std::string_view::npos) return false;
    to = rest_.substr(0, at);
    rest_.remove_prefix(at + 1);
    return true;
  }
  template <class Number>
  bool number(Number& to, char end = ' ') {
    std::string text;
    if (!word(text, end)) return false;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), to);
    return error == std::errc() && stop == text.data() + text.size();
  }
  bool port(int& to, char end = ' ') { return number(to, end) && to > 0 && to < 65536; }
  bool literal(std::string_view expected) {
    if (!rest_.starts_with(expected)) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

std::string proof_of(const Session& session, Side side, std::string_view words) {
  start_sodium();
  // Only the words vary in length, so that no two of these texts are the same bytes.
  std::string text = "segue handshake 1";
  text += static_cast<char>(side);
  text += session.caller_nonce;
  text += session.host_nonce;
  text += words;
  std::string proof(kProofBytes, '\0');
  crypto_auth(reinterpret_cast<unsigned char*>(proof.data()),
              reinterpret_cast<const unsigned char*>(text.data()), text.size(), session.key.data());
  return proof;
}

}  // namespace

Key::Key(std::string_view secret) {
  start_sodium();
  crypto_generichash(bytes_.data(), bytes_.size(),
                     reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), nullptr,
                     0);
}

std::string random_bytes(size_t count) {
  start_sodium();
  std::string bytes(count, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

std::string random_digits(size_t bytes) {
  std::string digits;
  for (const char c : random_bytes(bytes)) {
    digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  return digits;
}

std::string Session::seal(Side side, std::string_view words) const {
  return proof_of(*this, side, words) + std::string(words);
}

std::optional<std::string> Session::open(Side side, std::string_view message) const {
  if (message.size() < kProofBytes || caller_nonce.size() != kNonceBytes ||
      host_nonce.size() != kNonceBytes) {
    return std::nullopt;
  }
  const std::string_view words = message.substr(kProofBytes);
  const std::string proof = proof_of(*this, side, words);
  if (sodium_memcmp(proof.data(), message.data(), kProofBytes) != 0) return std::nullopt;
  return std::string(words);
}

std::string to_wire(std::string_view message) {
  const uint32_t head[2] = {kMark, static_cast<uint32_t>(message.size())};
  std::string bytes(reinterpret_cast<const char*>(head), kWireHead);
  return bytes.append(message);
}

Arrived look_at_wire(std::string_view bytes, size_t longest, size_t& need) {
  need = kWireHead;
  if (bytes.size() < kWireHead) return Arrived::kMore;
  uint32_t head[2];
  std::memcpy(head, bytes.data(), kWireHead);
  if (head[0] != kMark || head[1] > longest) return Arrived::kStrange;
  need = kWireHead + head[1];
  if (bytes.size() < need) return Arrived::kMore;
  return bytes.size() == need ? Arrived::kWhole : Arrived::kStrange;
}

std::string format(const Visit& v) {
  return fmt::format("meet {} {} {} {} {}\n", v.rank, v.ranks, v.address.port, v.address.machine,
                     v.place);
}

std::optional<Visit> parse_visit(std::string_view words) {
  Reader in(words);
  Visit v;
  const bool good = in.literal("meet ") && in.number(v.rank) && in.number(v.ranks) &&
                    in.port(v.address.port) && in.word(v.address.machine) &&
                    in.word(v.place, '\n') && in.at_end();
  return good ? std::optional(v) : std::nullopt;
}

size_t longest_table(int ranks) {
  return kMaxStrangeMessage + kMaxAddress * static_cast<size_t>(ranks);
}

std::string format(const Table& table) {
  std::string text = fmt::format("table {}\n", table.run);
  for (const Address& a : table.ranks) {
    text += fmt::format("{} {} {}\n", a.host, a.port, a.machine);
  }
  return text;
}

std::optional<Table> parse_table(std::string_view words, int ranks) {
  Reader in(words);
  Table table;
  bool good = in.literal("table ") && in.word(table.run, '\n');
  for (int r = 0; r < ranks && good; ++r) {
    Address& a = table.ranks.emplace_back();
    good = in.word(a.host) && in.port(a.port) && in.word(a.machine, '\n');
  }
  return good && in.at_end() ? std::optional(table) : std::nullopt;
}

std::string format(const Introduction& i) {
  return fmt::format("talk {} {} {} {}\n", i.run, i.group, i.from, i.to);
}

std::optional<Introduction> parse_introduction(std::string_view words) {
  Reader in(words);
  Introduction i;
  const bool good = in.literal("talk ") && in.word(i.run) && in.number(i.group) &&
                    in.number(i.from) && in.number(i.to, '\n') && in.at_end();
  return good ? std::optional(i) : std::nullopt;
}

std::string format(const Notice& n) {
  return fmt::format("segue {} {} {} {}\n", n.address.host, n.address.port, n.run,
                     n.secret.empty() ? "-" : n.secret);
}

std::optional<Notice> parse_notice(std::string_view text) {
  Reader in(text);
  Notice n;
  const bool good = in.literal("segue ") && in.word(n.address.host) && in.port(n.address.port) &&
                    in.word(n.run) && in.word(n.secret, '\n') && in.at_end();
  if (n.secret == "-") n.secret.clear();
  return good ? std::optional(n) : std::nullopt;
}

}  // namespace segue::comm
