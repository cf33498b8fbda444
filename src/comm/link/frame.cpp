#include "comm/link/frame.h"

#include <atomic>

#include <fmt/format.h>

#include "base/hash.h"

namespace segue::comm {
namespace {

std::atomic<bool> g_damage_next{false};

uint64_t hash_of(const FrameHeader& header) {
  return base::xxh64(&header, offsetof(FrameHeader, header_hash));
}

}  // namespace

FrameHeader data_frame(uint64_t group, const Call& call, ConstBytes payload) {
  FrameHeader header;
  header.op = static_cast<uint16_t>(call.op);
  header.group = group;
  header.sequence = call.sequence;
  header.step = call.step;
  header.length = payload.size();
  header.payload_hash = base::xxh64(payload.data(), payload.size());
  if (g_damage_next.load(std::memory_order_relaxed) && g_damage_next.exchange(false)) {
    header.payload_hash ^= 1;
  }
  header.header_hash = hash_of(header);
  return header;
}

std::string cut_reason(const std::string& reason) { return reason.substr(0, kMaxReason); }

FrameHeader abort_frame(uint64_t group, const std::string& reason) {
  FrameHeader header;
  header.kind = FrameHeader::kAbort;
  header.group = group;
  header.length = reason.size();
  header.payload_hash = base::xxh64(reason);
  header.header_hash = hash_of(header);
  return header;
}

Status check_header(const FrameHeader& header, uint64_t group, const std::string& peer) {
  if (header.magic != FrameHeader::kMagic || header.header_hash != hash_of(header)) {
    return {ErrorCode::kPeer, "the head of a message from " + peer +
                                  " was damaged on the way (its checksum does not match); check "
                                  "the network and memory of both machines"};
  }
  if (header.group != group) {
    return {ErrorCode::kPeer, fmt::format("{} sent a message of another group", peer)};
  }
  if (header.kind > FrameHeader::kAbort) {
    return {ErrorCode::kPeer, fmt::format("{} sent a message of unknown kind {}; do all ranks run "
                                          "the same version?",
                                          peer, header.kind)};
  }
  if (header.kind == FrameHeader::kAbort && header.length > kMaxReason) {
    return {ErrorCode::kPeer, fmt::format("{} gave up, and its reason is unreadable", peer)};
  }
  return {};
}

Status check_call(const FrameHeader& header, const Call& call, size_t bytes,
                  const std::string& peer) {
  const Op op = static_cast<Op>(header.op);
  if (op == call.op && header.sequence == call.sequence && header.length == bytes) return {};
  return {ErrorCode::kPeer,
          fmt::format("{} is in {} (call {}, step {}) and sent {} bytes where {} (call {}) "
                      "expects {}",
                      peer, to_string(op), header.sequence, header.step, header.length,
                      to_string(call.op), call.sequence, bytes)};
}

Status check_payload(const FrameHeader& header, ConstBytes payload, const std::string& peer) {
  if (base::xxh64(payload.data(), payload.size()) == header.payload_hash) return {};
  return {ErrorCode::kPeer,
          fmt::format("a message of {} bytes from {} was damaged on the way (its checksum does not "
                      "match); check the network and memory of both machines",
                      payload.size(), peer)};
}

Status did_not_answer(const std::string& peers, const Call& call) {
  return {ErrorCode::kPeer,
          fmt::format("{} did not answer within {} s", peers, call.timeout_seconds)};
}

namespace testing {
void damage_next_frame() { g_damage_next = true; }
}  // namespace testing

}  // namespace segue::comm
