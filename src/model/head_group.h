#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/world.h"
#include "model/layout.h"
#include "tensor/exec.h"

namespace segue::model {

/// One micro-batch of all ranks of a group: their sequences one after the other, in the order of
/// ranks.
struct GroupSequences {
  std::vector<int64_t> offsets{0};       // tokens, [sequences + 1]
  std::vector<int64_t> num_targets;      // [sequences]
  std::vector<int64_t> rank_offsets{0};  // tokens, [ranks + 1]

  int64_t tokens() const { return offsets.back(); }
  int64_t first_token(int rank) const { return rank_offsets[static_cast<size_t>(rank)]; }
  int64_t tokens_of(int rank) const { return first_token(rank + 1) - first_token(rank); }
  int64_t most_targets() const;
  int64_t ranks() const { return static_cast<int64_t>(rank_offsets.size()) - 1; }
};

/// Ranks that share attention, each doing some heads of the sequences of all of them. Everything
/// else of a layer a rank does on its own tokens, with all weights: two exchanges forward and two
/// backward are all that is added, and nothing outside the layers knows.
///
/// All ranks of a group prepare and run the same number of batches, in the same order; batches may
/// be empty. There are two communicators, since a batch may be prepared while another one runs.
class HeadGroup {
 public:
  /// `plan` for host messages, `heads` for tensors; of the same ranks. Error(kConfig) unless every
  /// rank gets as many heads.
  HeadGroup(std::unique_ptr<comm::Communicator> plan, std::unique_ptr<comm::Communicator> heads,
            int64_t num_heads);

  /// Cuts a world into groups of `ranks` consecutive ones and gives the one that this rank is in.
  /// Collective over the world. Error(kConfig) when ranks or heads do not divide.
  static std::unique_ptr<HeadGroup> open(comm::World& world, Device device, int ranks,
                                         int64_t num_heads);

  int rank() const { return heads_->rank(); }
  int size() const { return heads_->size(); }
  int64_t num_heads() const { return num_heads_; }
  /// This rank has heads [rank * own_heads, (rank + 1) * own_heads).
  int64_t own_heads() const { return num_heads_ / size(); }
  /// For steps in messages, and traffic.
  comm::Communicator& plan() { return *plan_; }
  comm::Communicator& heads() { return *heads_; }

  /// Tells the peers the cuts of a batch and learns theirs. Afterwards all have the same number of
  /// cuts (empty ones at the end), and the layout's maxima are those of the whole group.
  std::vector<GroupSequences> agree(BatchLayout& layout, std::vector<MicroBatch>& cuts);

  /// From all heads of this rank's tokens to this rank's heads of all tokens. `own` are matrices
  /// [tokens of this rank, heads * d], each with its d; `all` [tokens of the group, own heads *
  /// sum of d] has their columns side by side, and is contiguous.
  void scatter_heads(const Exec& exec, const GroupSequences& group, std::span<const Tensor> own,
                     const Tensor& all);
  /// And back.
  void gather_heads(const Exec& exec, const GroupSequences& group, const Tensor& all,
                    std::span<const Tensor> own);
  /// What either of them takes from exec's arena, of a rank with so many tokens: see ArenaPlan.
  static void exchange_memory(const Exec& exec, const GroupSequences& group, int64_t tokens,
                              int64_t columns);

 private:
  /// Memory for what travels between this rank's `own` and the others: per rank a matrix, for this
  /// one its rows of `all`.
  std::vector<Tensor> pieces(const Exec& exec, const GroupSequences& group,
                             const Tensor& all) const;
  /// The columns of `own` that are heads of rank `q`, and their place in `piece`.
  template <class F>
  void for_columns_of(int q, std::span<const Tensor> own, const Tensor& piece, F&& f) const;

  std::unique_ptr<comm::Communicator> plan_, heads_;
  int64_t num_heads_ = 0;
};

}  // namespace segue::model
