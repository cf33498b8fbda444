#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace segue::comm {

// How two processes that meet over TCP make sure of each other, before anything else is said. Both
// know a secret. The caller (who connected) and the host (who accepted) each send a fresh nonce;
// every further word goes with a keyed hash over the side that speaks, both nonces and the words.
// So words of another connection, of the other side or of somebody without the secret mean nothing.
// Everything here works on bytes in memory; door.h moves them.

/// Made of a secret, never shown.
class Key {
 public:
  Key() = default;
  explicit Key(std::string_view secret);
  const unsigned char* data() const { return bytes_.data(); }

 private:
  std::array<unsigned char, 32> bytes_{};
};

/// From the random source of the system: as bytes, or as hexadecimal digits, two for a byte.
std::string random_bytes(size_t count);
std::string random_digits(size_t bytes);

inline constexpr size_t kNonceBytes = 32, kProofBytes = 32;
/// Of a message from somebody who has not proved the secret.
inline constexpr size_t kMaxStrangeMessage = 1024;

enum class Side : char { kCaller = 'c', kHost = 'h' };

/// What both sides of one connection know.
struct Session {
  Key key;
  std::string caller_nonce, host_nonce;

  /// The words as `side` says them: a proof, then the words.
  std::string seal(Side side, std::string_view words) const;
  /// The words of a message that `side` has sealed; nothing for any other message.
  std::optional<std::string> open(Side side, std::string_view message) const;
};

/// A message on the wire: a mark and its length, then its bytes.
inline constexpr size_t kWireHead = 8;
std::string to_wire(std::string_view message);
enum class Arrived { kMore, kWhole, kStrange };
/// Looks at the beginning of a message of at most `longest` bytes. kMore: `need` bytes in all will
/// tell more; kWhole: the message is what follows the head; kStrange: none of ours, or too long.
Arrived look_at_wire(std::string_view bytes, size_t longest, size_t& need);

// ---- what is said; each parse takes what format made and nothing else ----

/// Where a rank can be reached.
struct Address {
  std::string host;
  int port = 0;
  std::string machine;  // equal for ranks of one machine
};

/// "I am this rank of so many, reached at this port": to rank 0, where ranks meet.
struct Visit {
  int rank = 0, ranks = 0;
  Address address;    // rank 0 sees the host
  std::string place;  // where it was told to go, so that runs with one secret do not get mixed up:
                      // "tcp:HOST:PORT", or the run of a notice
};
std::string format(const Visit& visit);
std::optional<Visit> parse_visit(std::string_view words);

/// The answer when all have come.
struct Table {
  std::string run;  // another one for every run
  std::vector<Address> ranks;
};
std::string format(const Table& table);
std::optional<Table> parse_table(std::string_view words, int ranks);
size_t longest_table(int ranks);

/// "I am this rank and want to talk to you, in this group of this run."
struct Introduction {
  std::string run;
  uint64_t group = 0;
  int from = 0, to = 0;
};
std::string format(const Introduction& introduction);
std::optional<Introduction> parse_introduction(std::string_view words);

/// What a host answers at once, and with its reason when it refuses somebody who has the secret.
inline constexpr const char* kWelcome = "welcome";
inline constexpr const char* kRefused = "refused: ";

/// What rank 0 leaves in a folder where ranks meet.
struct Notice {
  Address address;     // without a machine
  std::string run;     // another one for every run
  std::string secret;  // empty: ranks were given one
};
std::string format(const Notice& notice);
std::optional<Notice> parse_notice(std::string_view text);

}  // namespace segue::comm
