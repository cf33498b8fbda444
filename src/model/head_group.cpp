#include "model/head_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "ops/rows.h"

namespace segue::model {

namespace {

void check_heads(int64_t heads, int ranks) {
  if (heads % ranks == 0) return;
  fail(ErrorCode::kConfig,
       fmt::format("model.heads = {} cannot be shared by a tensor-parallel group of {} ranks: "
                   "every rank needs as many heads; choose a size that divides {}",
                   heads, ranks, heads));
}

/// What a rank tells of its batch: the number of cuts and the samples of each, then of every sample
/// its length and its targets.
std::vector<int64_t> message_of(const BatchLayout& layout, std::span<const MicroBatch> cuts) {
  std::vector<int64_t> m{static_cast<int64_t>(cuts.size())};
  for (const MicroBatch& cut : cuts) m.push_back(cut.count);
  for (int64_t b = 0; b < layout.samples(); ++b) {
    const auto i = static_cast<size_t>(b);
    m.push_back(layout.token_offsets[i + 1] - layout.token_offsets[i]);
    m.push_back(layout.targets(b));
  }
  return m;
}

/// The same, received.
struct PeerCuts {
  std::span<const int64_t> samples;  // per cut
  std::span<const int64_t> lengths;  // per sample: tokens, targets
};

PeerCuts read_message(std::span<const int64_t> m, int from) {
  const auto broken = [from] {
    fail(ErrorCode::kPeer,
         fmt::format("rank {} of the tensor-parallel group sent a batch plan that is not one; do "
                     "all ranks run the same program?",
                     from));
  };
  if (m.empty() || m[0] < 0 || m[0] >= static_cast<int64_t>(m.size())) broken();
  const auto cuts = static_cast<size_t>(m[0]);
  const PeerCuts peer{m.subspan(1, cuts), m.subspan(1 + cuts)};
  const int64_t samples = std::accumulate(peer.samples.begin(), peer.samples.end(), int64_t{0});
  if (2 * samples != static_cast<int64_t>(peer.lengths.size())) broken();
  return peer;
}

/// A contiguous tensor's memory.
comm::Bytes bytes_of(const Tensor& t) {
  SEGUE_ASSERT(t.is_contiguous(), "ranks exchange contiguous tensors");
  return {static_cast<std::byte*>(t.data), static_cast<size_t>(t.bytes())};
}

}  // namespace

int64_t GroupSequences::most_targets() const {
  return num_targets.empty() ? 0 : std::ranges::max(num_targets);
}

HeadGroup::HeadGroup(std::unique_ptr<comm::Communicator> plan,
                     std::unique_ptr<comm::Communicator> heads, int64_t num_heads)
    : plan_(std::move(plan)), heads_(std::move(heads)), num_heads_(num_heads) {
  SEGUE_ASSERT(plan_->size() == heads_->size() && plan_->rank() == heads_->rank(),
               "both communicators of a head group have the same ranks");
  check_heads(num_heads, size());
}

std::unique_ptr<HeadGroup> HeadGroup::open(comm::World& world, Device device, int ranks,
                                           int64_t num_heads) {
  if (ranks < 1 || world.size() % ranks != 0) {
    fail(ErrorCode::kConfig,
         fmt::format("{} ranks cannot be cut into tensor-parallel groups of {}; start a multiple "
                     "of the group's size",
                     world.size(), ranks));
  }
  check_heads(num_heads, ranks);
  std::unique_ptr<HeadGroup> mine;
  for (int first = 0; first < world.size(); first += ranks) {
    std::vector<int> members(static_cast<size_t>(ranks));
    std::iota(members.begin(), members.end(), first);
    const std::string number = std::to_string(first / ranks);
    auto plan = world.open("tensor parallel plan " + number, Device::cpu(), members);
    auto heads = world.open("tensor parallel " + number, device, members);
    if (plan != nullptr) {
      mine = std::make_unique<HeadGroup>(std::move(plan), std::move(heads), num_heads);
    }
  }
  return mine;
}

std::vector<GroupSequences> HeadGroup::agree(BatchLayout& layout, std::vector<MicroBatch>& cuts) {
  const std::vector<int64_t> mine = message_of(layout, cuts);
  std::vector<std::vector<std::byte>> all;
  plan_->all_gather(std::as_bytes(std::span(mine)), all).throw_if_failed();

  std::vector<std::vector<int64_t>> messages(all.size());
  std::vector<PeerCuts> peers;
  size_t most_cuts = 0;
  for (size_t q = 0; q < all.size(); ++q) {
    messages[q].resize(all[q].size() / sizeof(int64_t));
    std::memcpy(messages[q].data(), all[q].data(), messages[q].size() * sizeof(int64_t));
    peers.push_back(read_message(messages[q], static_cast<int>(q)));
    most_cuts = std::max(most_cuts, peers.back().samples.size());
  }

  cuts.resize(most_cuts, MicroBatch{layout.samples(), 0});
  std::vector<GroupSequences> group(most_cuts);
  for (PeerCuts& peer : peers) {
    for (size_t i = 0; i < most_cuts; ++i) {
      GroupSequences& g = group[i];
      const int64_t samples = i < peer.samples.size() ? peer.samples[i] : 0;
      for (int64_t b = 0; b < samples; ++b) {
        const int64_t length = peer.lengths[0];
        const int64_t targets = peer.lengths[1];
        peer.lengths = peer.lengths.subspan(2);
        g.offsets.push_back(g.offsets.back() + length);
        g.num_targets.push_back(targets);
        layout.most_before_targets = std::max(layout.most_before_targets, length - targets);
        layout.most_targets = std::max(layout.most_targets, targets);
      }
      g.rank_offsets.push_back(g.offsets.back());
    }
  }
  return group;
}

std::vector<Tensor> HeadGroup::pieces(const Exec& exec, const GroupSequences& group,
                                      const Tensor& all) const {
  std::vector<Tensor> out;
  for (int q = 0; q < size(); ++q) {
    const int64_t tokens = group.tokens_of(rank());
    out.push_back(q == rank() ? all.rows(group.first_token(q), tokens)
                              : exec.arena->tensor(all.dtype, {tokens, all.size(1)}));
  }
  return out;
}

void HeadGroup::exchange_memory(const Exec& exec, const GroupSequences& group, int64_t tokens,
                                int64_t columns) {
  const Arena::Mark scratch(*exec.arena);
  for (int64_t q = 1; q < group.ranks(); ++q) exec.activation({tokens, columns});  // pieces()
}

template <class F>
void HeadGroup::for_columns_of(int q, std::span<const Tensor> own, const Tensor& piece,
                               F&& f) const {
  int64_t at = 0;
  for (const Tensor& t : own) {
    const int64_t width = t.size(1) / size();
    f(t.columns(q * width, width), piece.columns(at, width));
    at += width;
  }
  SEGUE_ASSERT(at == piece.size(1), "columns of heads do not add up");
}

void HeadGroup::scatter_heads(const Exec& exec, const GroupSequences& group,
                              std::span<const Tensor> own, const Tensor& all) {
  const Arena::Mark scratch(*exec.arena);
  const std::vector<Tensor> out = pieces(exec, group, all);
  std::vector<comm::ConstBytes> send;
  std::vector<comm::Bytes> receive;
  for (int q = 0; q < size(); ++q) {
    const Tensor& piece = out[static_cast<size_t>(q)];
    for_columns_of(q, own, piece, [&](const Tensor& columns, const Tensor& place) {
      ops::convert(exec, columns, place);
    });
    send.emplace_back(bytes_of(piece));
    receive.push_back(bytes_of(all.rows(group.first_token(q), group.tokens_of(q))));
  }
  heads_->all_to_all(send, receive, exec.device, exec.stream).throw_if_failed();
}

void HeadGroup::gather_heads(const Exec& exec, const GroupSequences& group, const Tensor& all,
                             std::span<const Tensor> own) {
  const Arena::Mark scratch(*exec.arena);
  const std::vector<Tensor> in = pieces(exec, group, all);
  std::vector<comm::ConstBytes> send;
  std::vector<comm::Bytes> receive;
  for (int q = 0; q < size(); ++q) {
    send.emplace_back(bytes_of(all.rows(group.first_token(q), group.tokens_of(q))));
    receive.push_back(bytes_of(in[static_cast<size_t>(q)]));
  }
  heads_->all_to_all(send, receive, exec.device, exec.stream).throw_if_failed();
  for (int q = 0; q < size(); ++q) {
    for_columns_of(
        q, own, in[static_cast<size_t>(q)],
        [&](const Tensor& columns, const Tensor& place) { ops::convert(exec, place, columns); });
  }
}

}  // namespace segue::model
