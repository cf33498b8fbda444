#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/link/link.h"
#include "tensor/buffer.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace segue::comm {

/// What a communicator has moved so far.
struct Traffic {
  int64_t collectives = 0;
  int64_t bytes_sent = 0;     // to other ranks
  int64_t bytes_to_most = 0;  // to the peer that got most of them
  double seconds = 0;         // inside collectives
};

/// Who is in a group, and how long they wait for each other.
struct Group {
  std::string name;
  int rank = 0;              // in the group
  std::vector<int> members;  // ranks of the world
  double timeout_seconds = 300;

  int size() const { return static_cast<int>(members.size()); }
  /// "rank 3", the number being that of the world.
  std::string peer(int rank) const;
};

/// A group of ranks that talk to each other. Every call is collective: all ranks of the group make
/// the same calls in the same order, each communicator from one thread at a time. Kinds differ in
/// one thing, how bytes get from rank to rank (their Link); everything else is built on that, so
/// that a result does not depend on the kind.
///
/// Reductions add in the order of ranks: the same inputs give the same bits, on every rank.
///
/// A peer that is gone, does not answer within the timeout or sends something else than was agreed
/// is Status(kPeer) with group, operation, step and peer. The group is broken from then on: it
/// tells its peers if it can, and every later call fails at once with the first reason.
class Communicator {
 public:
  /// A group of one needs no link.
  Communicator(Group group, std::unique_ptr<Link> link, std::shared_ptr<WorldFailure> failure);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return group_.rank; }
  int size() const { return group_.size(); }
  const std::string& name() const { return group_.name; }
  const Traffic& traffic() const { return traffic_; }
  /// For messages only.
  void set_step(int64_t step) { step_ = step; }

  /// send[q] goes to rank q, receive[q] comes from it; lengths must agree (they are not sent) and
  /// may differ from pair to pair, also be zero. All memory is on `device`. On a GPU the exchange
  /// is ordered on `stream`; it may return before it is done.
  [[nodiscard]] Status all_to_all(std::span<const ConstBytes> send, std::span<const Bytes> receive,
                                  Device device = Device::cpu(), const Stream* stream = nullptr);

  /// Contiguous tensors cut along dimension 0: `send_rows[q]` rows for rank q one after the other.
  [[nodiscard]] Status all_to_all(const Tensor& send, std::span<const int64_t> send_rows,
                                  const Tensor& receive, std::span<const int64_t> receive_rows,
                                  const Stream* stream = nullptr);

  /// all = every rank's `mine`, in the order of ranks; rows per rank may differ. `mine` may be its
  /// own place in `all`.
  [[nodiscard]] Status all_gather(const Tensor& mine, const Tensor& all,
                                  std::span<const int64_t> rows, const Stream* stream = nullptr);
  /// Host messages of any length; [rank].
  [[nodiscard]] Status all_gather(ConstBytes mine, std::vector<std::vector<std::byte>>& all);

  /// Sum over ranks, in place; f32 or f64, contiguous.
  [[nodiscard]] Status all_reduce(const Tensor& values, const Stream* stream = nullptr);
  [[nodiscard]] Status barrier();

  /// Waits for `stream`, in which exchanges of this group may be queued, no longer than the
  /// timeout.
  [[nodiscard]] Status synchronize(const Stream& stream);

  /// Looks, without waiting, whether a peer says that it has stopped; the failure is set then.
  void listen();

 private:
  struct CallMemory {  // where the memory of a call is
    Device device;
    const Stream* stream = nullptr;
  };
  /// Memory that grows and is kept.
  struct Scratch {
    Buffer buffer;
    std::byte* take(Device device, int64_t bytes, HostMemory kind = HostMemory::kPageable);
  };

  Call next_call(Op op);
  /// `bytes`: see FlightRing::begin.
  Status exchange(Op op, int64_t bytes, std::span<const ConstBytes> send,
                  std::span<const Bytes> receive, CallMemory at);
  Status exchange_staged(const Call& call, std::span<const ConstBytes> send,
                         std::span<const Bytes> receive, CallMemory at);
  Status gather(Op op, int64_t bytes, ConstBytes mine, std::span<const Bytes> all, CallMemory at);
  Status reduce_small(const Tensor& values, CallMemory at);
  Status failed(const Call& call, const Status& status);
  void count(std::span<const ConstBytes> send);

  Group group_;
  std::unique_ptr<Link> link_;
  std::shared_ptr<WorldFailure> failure_;
  std::shared_ptr<FlightRing> flight_;
  int64_t step_ = 0;
  uint64_t sequence_ = 0;
  Status broken_;
  Traffic traffic_;
  std::vector<int64_t> sent_to_;
  Scratch parts_, staged_send_, staged_receive_;
};

}  // namespace segue::comm
