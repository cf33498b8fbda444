#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "balance/config.h"
#include "batch/batch.h"
#include "comm/communicator.h"
#include "tensor/host_array.h"

namespace segue::balance {

/// What balancing one batch did.
struct BalanceStats {
  Imbalance before, after;                           // of costs
  std::vector<int64_t> tokens_before, tokens_after;  // [rank]
  int64_t samples = 0, samples_moved = 0;            // of all ranks
  int64_t bytes_sent = 0;                            // by this rank, lengths and values
  double gather_ms = 0;                              // costs of all ranks
  double partition_ms = 0;                           // who gets what
  double exchange_ms = 0;                            // samples on their way
};

/// Partitions the samples of a step between the ranks anew, so that all of them have the same work.
///
/// Who gets what depends on costs and sample numbers, and only ties of residence on where samples
/// were. Any number of samples is legal on any rank, also none.
class Balancer {
 public:
  /// `group` outlives the balancer and is used by nobody else. `weights` are those of calibrated
  /// costs unless the config has its own.
  Balancer(const BalanceConfig& config, SampleShape shape, CostWeights weights,
           comm::Communicator& group);

  /// Exchanges the samples of `batch`: afterwards it has this rank's, ascending by sample number.
  /// Its old memory is kept for the next one. Collective. Error(kPeer) when a rank is gone or has a
  /// batch of another schema or step.
  BalanceStats balance(Batch& batch);

 private:
  struct State;
  std::vector<std::vector<std::byte>> gather(const Batch& batch, State& state);
  void exchange_lengths(const Batch& batch, const State& state);
  void exchange_values(const Batch& batch, const State& state);
  void assemble(Batch& batch, const State& state);
  void assemble_values(const Batch& batch, const State& state);

  BalanceConfig config_;
  SampleShape shape_;
  CostWeights weights_;
  comm::Communicator& group_;
  // Kept between batches: messages of all peers one after the other, and the batch that is made.
  HostArray<int64_t> sent_lengths_, received_lengths_;
  HostArray<std::byte> sent_values_, received_values_;
  Batch spare_;
};

}  // namespace segue::balance
