#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/link/link.h"

namespace segue::comm {

/// What goes before every message, so that one that was damaged on the way, or belongs to another
/// call, is recognised and named. Little-endian, as all machines that this runs on.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x46474553;  // "SEGF"
  enum Kind : uint16_t { kData = 0, kAbort = 1 };

  uint32_t magic = kMagic;
  uint16_t kind = kData;
  uint16_t op = 0;
  uint64_t group = 0;
  uint64_t sequence = 0;
  int64_t step = 0;
  uint64_t length = 0;
  uint64_t payload_hash = 0;  // XXH64
  uint64_t header_hash = 0;   // of all the above
};
static_assert(sizeof(FrameHeader) == 56);

/// The longest reason that travels; longer ones are cut.
inline constexpr size_t kMaxReason = 2000;

FrameHeader data_frame(uint64_t group, const Call& call, ConstBytes payload);
FrameHeader abort_frame(uint64_t group, const std::string& reason);
std::string cut_reason(const std::string& reason);

/// The header is whole, and of this group.
Status check_header(const FrameHeader& header, uint64_t group, const std::string& peer);
/// It announces what the call expects.
Status check_call(const FrameHeader& header, const Call& call, size_t bytes,
                  const std::string& peer);
/// What came after it is what was sent.
Status check_payload(const FrameHeader& header, ConstBytes payload, const std::string& peer);

/// "rank 2 did not answer within 5 s".
Status did_not_answer(const std::string& peers, const Call& call);

namespace testing {
/// The next data frame that this process makes will not match its payload, as if it had been
/// damaged on the way.
void damage_next_frame();
}  // namespace testing

}  // namespace segue::comm
