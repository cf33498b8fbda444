#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace segue::comm {

enum class Op : uint16_t;
struct FlightRecord;
struct GroupFlight;

/// How far a call got. A queued one is on the GPU, and nobody has heard that it is done.
enum class CallState : uint8_t { kRunning, kQueued, kDone, kFailed };

/// The last calls of one group, as one rank saw them. The thread that calls writes; any thread may
/// read meanwhile, also while that one hangs. No locks, no memory: some tens of nanoseconds a call.
class FlightRing {
 public:
  static constexpr size_t kCalls = 64;  // that are kept

  FlightRing(std::string name, int rank, std::vector<int> members);

  /// `bytes` is the size of the whole result, the same on all ranks; of all_to_all what this rank
  /// sends. It expects `receives` bytes.
  void begin(Op op, int64_t step, uint64_t sequence, int64_t bytes, int64_t receives);
  void end(CallState how);

  // Of the call that runs, told by the link; peers by rank in the group.
  void set_due(int peer) { set(peer, Peer::kDue); }
  void set_settled(int peer) { set(peer, Peer::kSettled); }
  void set_gone(int peer) { set(peer, Peer::kGone); }  // it has left, or its connection is closed
  /// Everything queued up to this call is done on the device.
  void set_device_done(uint64_t sequence) {
    device_done_.store(sequence, std::memory_order_release);
  }

  GroupFlight snapshot(int64_t unix_minus_steady_ns) const;

 private:
  enum class Peer : uint8_t { kSettled, kDue, kGone };
  /// A reader that finds the same ticket before and after has read one call.
  struct Slot {
    std::atomic<uint64_t> ticket{0};  // counts calls from 1; 0: being written
    std::atomic<uint64_t> sequence{0}, thread{0};
    std::atomic<int64_t> step{0}, bytes{0}, receives{0}, start_ns{0}, end_ns{0};
    std::atomic<uint16_t> op{0};
    std::atomic<CallState> state{CallState::kDone};
  };

  void set(int peer, Peer state) {
    peers_[static_cast<size_t>(peer)].store(state, std::memory_order_relaxed);
  }

  const std::string name_;
  const int rank_;
  const std::vector<int> members_;
  std::array<Slot, kCalls> slots_;
  std::atomic<uint64_t> calls_{0};  // begun
  std::atomic<uint64_t> device_done_{0};
  std::unique_ptr<std::atomic<Peer>[]> peers_;
};

/// The rings of all groups of a rank, and the file that they are written to when something is
/// wrong: when a group breaks, when this rank gives up, and when somebody asks. Readers (verdict.h)
/// tell from the files of all ranks who is behind, and in which call.
class FlightRecorder {
 public:
  FlightRecorder();

  std::shared_ptr<FlightRing> add_group(std::string name, int rank, std::vector<int> members);

  /// Where to write `rank-<N>.json`; before that nothing is. Removes what an earlier start has left
  /// there. `life` is equal on all ranks that were started together, and on no others.
  void set_place(const std::string& folder, int rank, int ranks, const std::string& life);

  /// Writes what is known now. Safe from any thread; never throws: a full disk is a warning.
  void write(const std::string& why) noexcept;
  /// The same for what ends this rank, once: what follows are its consequences. `own`: an error of
  /// this rank, not of a peer.
  void write_failure(const std::string& why, bool own) noexcept;

  FlightRecord snapshot(const std::string& why) const;

 private:
  void write_record(const FlightRecord& record) noexcept;

  mutable std::mutex mutex_;  // of all that follows
  std::vector<std::shared_ptr<FlightRing>> rings_;
  std::string folder_, life_;
  int rank_ = 0, ranks_ = 1;
  bool failed_ = false;
};

}  // namespace segue::comm
