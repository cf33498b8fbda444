#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "comm/flight/recorder.h"
#include "tensor/device.h"

namespace segue::comm {

using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;
using Clock = std::chrono::steady_clock;

/// What ranks do together; travels with every message, so that ranks that disagree find out.
enum class Op : uint16_t { kOpen, kAllToAll, kAllGather, kAllReduce, kBarrier, kSynchronize };
const char* to_string(Op op);

/// One exchange of a group.
struct Call {
  Op op = Op::kBarrier;
  int64_t step = 0;       // for messages
  uint64_t sequence = 0;  // of the group: equal on all ranks
  Clock::time_point deadline;
  double timeout_seconds = 0;    // what the deadline was made of, for messages
  FlightRing* flight = nullptr;  // where the link says whom the call waits for; may be null

  void set_due(int peer) const {
    if (flight != nullptr) flight->set_due(peer);
  }
  void set_settled(int peer) const {
    if (flight != nullptr) flight->set_settled(peer);
  }
  void set_gone(int peer) const {
    if (flight != nullptr) flight->set_gone(peer);
  }
};

/// Why the ranks of a world cannot go on; the first reason stays. One per rank, shared by all its
/// groups: when one of them breaks, the others stop waiting and tell their peers the same.
class WorldFailure {
 public:
  bool is_set() const { return set_.load(std::memory_order_acquire); }
  void set(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (is_set()) return;
    reason_ = reason;
    set_.store(true, std::memory_order_release);
  }
  std::string reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  Status status() const { return {ErrorCode::kPeer, reason()}; }
  /// What the groups of this rank did last; written when they fail.
  FlightRecorder& flight() { return flight_; }

  /// A group that finds a peer gone asks whether it said why over the group that all ranks share
  /// and that is idle: `look` sets the failure then. Set before there are other groups.
  void set_world(std::function<void()> look) { look_ = std::move(look); }
  void ask_world() {
    const std::lock_guard lock(look_mutex_);
    if (look_) look_();
  }

 private:
  std::mutex look_mutex_;
  std::function<void()> look_;
  mutable std::mutex mutex_;
  std::atomic<bool> set_{false};
  std::string reason_;
  FlightRecorder flight_;
};

/// How the bytes of one group get from rank to rank. Spans are indexed by rank in the group; the
/// caller's own entry is not looked at, and an empty one means that nothing travels.
class Link {
 public:
  virtual ~Link() = default;

  /// Host memory. Returns when all of `receive` has arrived and `send` may be overwritten. The
  /// message of a failure names the peer; one that a peer reported has sealed the failure first.
  virtual Status exchange(const Call& call, std::span<const ConstBytes> send,
                          std::span<const Bytes> receive) = 0;

  /// Device memory, ordered on `stream`. Where a link has no such form, the group goes through
  /// host memory.
  virtual bool reaches(Device) const { return false; }
  virtual Status exchange_on_device(const Call&, std::span<const ConstBytes>,
                                    std::span<const Bytes>, const Stream&) {
    return {ErrorCode::kUnsupported, "no exchange of device memory"};
  }
  virtual Status synchronize(const Call&, const Stream& stream) {
    stream.synchronize();
    return {};
  }

  /// Looks, without waiting, whether a peer says that it has stopped, or is gone when none may be;
  /// for those who wait for something else.
  virtual Status listen([[maybe_unused]] bool none_may_be_gone) { return {}; }

  /// Tells the peers, as far as they can be reached, that this rank has stopped.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace segue::comm
