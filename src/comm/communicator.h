#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace segue::comm {

using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;

/// What a communicator has moved so far.
struct Traffic {
  int64_t collectives = 0;
  int64_t bytes_sent = 0;     // to other ranks
  int64_t bytes_to_most = 0;  // to the peer that got most of them
  double seconds = 0;         // inside collectives
};

/// A group of ranks that talk to each other. Every call is collective: all ranks of the group make
/// the same calls in the same order, each communicator from one thread at a time. Kinds differ in
/// one thing, how bytes get from rank to rank; everything else is built on that, so that a result
/// does not depend on the kind.
///
/// Reductions add in the order of ranks: the same inputs give the same bits, on every rank.
///
/// A peer that is gone, does not answer within the timeout or sends something else than was agreed
/// is Status(kPeer) with group, operation, step and peer. The group is broken from then on: it
/// tells its peers if it can, and every later call fails at once with the first reason.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
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

  /// One number per peer, and theirs for this rank.
  [[nodiscard]] Status exchange_counts(std::span<const int64_t> mine, std::span<int64_t> theirs);

  /// all = every rank's `mine`, in the order of ranks; rows per rank may differ.
  [[nodiscard]] Status all_gather(const Tensor& mine, const Tensor& all,
                                  std::span<const int64_t> rows, const Stream* stream = nullptr);
  /// Host messages of any length; [rank].
  [[nodiscard]] Status all_gather(ConstBytes mine, std::vector<std::vector<std::byte>>& all);

  /// Sum over ranks, in place; f32 or f64, contiguous.
  [[nodiscard]] Status all_reduce(const Tensor& values, const Stream* stream = nullptr);
  /// out = part `rank` (rows[q] rows each) of the sum over ranks.
  [[nodiscard]] Status reduce_scatter(const Tensor& values, std::span<const int64_t> rows,
                                      const Tensor& out, const Stream* stream = nullptr);
  [[nodiscard]] Status broadcast(const Tensor& values, int root, const Stream* stream = nullptr);
  [[nodiscard]] Status barrier();

  /// Waits for `stream`, in which exchanges of this group may be queued, no longer than the
  /// timeout.
  [[nodiscard]] virtual Status synchronize(const Stream& stream);

 protected:
  Communicator(std::string name, int rank, int size)
      : name_(std::move(name)), rank_(rank), size_(size) {}

 private:
  std::string name_;
  int rank_ = 0, size_ = 1;
  int64_t step_ = 0;
  Traffic traffic_;
};

}  // namespace segue::comm
