#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/world.h"
#include "model/head_group.h"
#include "model/model.h"
#include "train/run_config.h"

namespace segue::train {

/// The ranks of a run and the groups they talk in, one per purpose: a group belongs to one thread
/// at a time, and what one of them does never waits for the order of another.
class Ranks {
 public:
  /// Collective. Error(kConfig) when the config does not suit the number of ranks.
  Ranks(comm::World& world, const RunConfig& config, Device device);
  /// A rank that has no others.
  Ranks();
  ~Ranks();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }  // ranks of this machine
  /// There is nobody to talk to. One rank over NCCL talks to itself: that is how it is tested where
  /// there is one GPU.
  bool alone() const { return rows == nullptr; }
  bool first() const { return rank_ == 0; }

  // Used where a batch is balanced and where it is prepared, maybe ahead, on threads of their own.
  std::unique_ptr<comm::Communicator> balance, ids;
  // Used where it is trained.
  std::unique_ptr<comm::Communicator> rows, dense, results;
  std::unique_ptr<model::HeadGroup> heads;  // null: attention is not split

  /// For messages about a peer: the step that is trained. The two groups of a batch that is not yet
  /// trained are told by whoever makes it.
  void set_step(int64_t step) const;
  /// What the first rank says, on all ranks.
  std::string from_first(const std::string& text) const;
  /// The first rank does it, then all others: what it made they find made.
  void first_then_others(const std::function<void()>& action) const;
  /// What any rank wants, all do; what the first wants, all do; what all have, is had.
  struct StopSave {
    bool stop = false;      // any
    bool save = false;      // the first
    bool verified = false;  // all: the data is as it was written
    bool full = false;      // any: the next save must be
  };
  StopSave agree(const StopSave& mine) const;
  /// Returns when all are ready; `ready` may take so many seconds to say it. Ranks keep talking
  /// meanwhile: none may take another, which is busy, for lost. Calls `alive` after every talk.
  void wait_until(const std::function<bool(double seconds)>& ready,
                  const std::function<void()>& alive = {}) const;
  /// Makes the pass of one rank that of all ranks: samples, tokens, predictions and labels, in the
  /// order of the global batch. Sums (losses, squares) are not touched; logits stay those of this
  /// rank. One exchange, in which ranks agree as well: `prepared` knows how much each of them has.
  /// Not for one that is alone.
  StopSave gather(const model::PreparedBatch& prepared, const StopSave& mine,
                  model::Pass& pass) const;

 private:
  int rank_ = 0, size_ = 1, local_size_ = 1;
};

/// Error(kConfig) when the config does not suit this number of ranks.
void require_ranks(const RunConfig& config, int64_t ranks);

/// Collective. CPU threads for this rank when nobody says how many: the cores it may use, divided
/// by the ranks that may use the same ones (a launcher may have bound them to different cores).
int fair_threads(const Ranks& ranks);

/// Words of all ranks one after the other, of each as many as `counts` says.
std::vector<int64_t> gather_words(comm::Communicator& group, std::span<int64_t> mine,
                                  std::span<const int64_t> counts);

}  // namespace segue::train
