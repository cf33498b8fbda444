#include "train/step/ranks.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::train {
namespace {

template <class T>
void put(std::vector<std::byte>& message, std::span<const T> values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  message.insert(message.end(), bytes, bytes + values.size_bytes());
}

/// Reads what put() wrote; a message of another length is a rank that disagrees.
class Reader {
 public:
  Reader(std::span<const std::byte> message, size_t rank) : left_(message), rank_(rank) {}
  template <class T>
  std::vector<T> take(size_t count) {
    if (left_.size() < count * sizeof(T)) {
      fail(ErrorCode::kPeer, fmt::format("rank {} sent results that are too short", rank_));
    }
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), left_.data(), count * sizeof(T));
    left_ = left_.subspan(count * sizeof(T));
    return values;
  }

 private:
  std::span<const std::byte> left_;
  size_t rank_;
};

/// One rank's share of a pass.
struct Share {
  std::vector<int64_t> index, tokens, labels;  // per sample
  std::vector<float> predictions, targets;     // [tasks][labels]
  int64_t num_labels = 0;
};

Share read_share(std::span<const std::byte> message, size_t rank, size_t tasks) {
  Reader reader(message, rank);
  Share share;
  const auto samples = static_cast<size_t>(reader.take<int64_t>(1)[0]);
  share.index = reader.take<int64_t>(samples);
  share.tokens = reader.take<int64_t>(samples);
  share.labels = reader.take<int64_t>(samples);
  share.num_labels = std::accumulate(share.labels.begin(), share.labels.end(), int64_t{0});
  const size_t values = tasks * static_cast<size_t>(share.num_labels);
  share.predictions = reader.take<float>(values);
  share.targets = reader.take<float>(values);
  return share;
}

}  // namespace

Ranks::Ranks() = default;
Ranks::~Ranks() = default;

Ranks::Ranks(comm::World& world, const RunConfig& config, Device device)
    : rank_(world.rank()), size_(world.size()), local_size_(world.local_size()) {
  require_ranks(config, size_);
  if (size_ == 1 && config.comm.transport != comm::Transport::kNccl) return;
  balance = world.open("balance");
  ids = world.open("ids");
  rows = world.open("rows", device);
  dense = world.open("dense", device);
  results = world.open("results", device);
  if (const int64_t tp = config.parallel.tensor_parallel; tp > 1) {
    heads = model::HeadGroup::open(world, device, static_cast<int>(tp),
                                   make_model(config)->heads_to_share());
  }
}

void Ranks::set_step(int64_t step) const {
  for (comm::Communicator* group :
       {rows.get(), dense.get(), results.get(), heads ? &heads->heads() : nullptr}) {
    if (group != nullptr) group->set_step(step);
  }
}

std::string Ranks::from_first(const std::string& text) const {
  if (alone()) return text;
  std::vector<std::vector<std::byte>> all;
  const std::string mine = first() ? text : std::string();
  results->all_gather(std::as_bytes(std::span(mine)), all).throw_if_failed();
  return {reinterpret_cast<const char*>(all[0].data()), all[0].size()};
}

Ranks::StopSave Ranks::agree(const StopSave& mine) const {
  if (alone()) return mine;
  std::vector<std::vector<std::byte>> all;
  const std::byte message[] = {std::byte{mine.stop}, std::byte{mine.save},
                               std::byte{mine.verified}};
  results->all_gather(message, all).throw_if_failed();
  StopSave agreed{.verified = true};
  for (const std::vector<std::byte>& wish : all) {
    agreed.stop |= wish.at(0) != std::byte{0};
    agreed.verified &= wish.at(2) != std::byte{0};
  }
  agreed.save = all[0].at(1) != std::byte{0};
  return agreed;
}

void require_ranks(const RunConfig& config, int64_t ranks) {
  const int64_t tp = config.parallel.tensor_parallel;
  if (ranks % tp == 0) return;
  fail(ErrorCode::kConfig,
       fmt::format("parallel.tensor_parallel = {} does not divide the {} rank(s) of this run; "
                   "start a multiple of {} ranks, or lower it",
                   tp, ranks, tp));
}

int fair_threads(const Ranks& ranks) {
  base::set_num_threads(0);
  const int all = base::num_threads();
  if (ranks.alone() || std::getenv("OMP_NUM_THREADS") != nullptr) return all;
  struct Place {
    cpu_set_t cores;
    char host[256];
  };
  Place mine{};
  ::gethostname(mine.host, sizeof mine.host - 1);
  if (::sched_getaffinity(0, sizeof mine.cores, &mine.cores) != 0) return 1;
  std::vector<std::vector<std::byte>> places;
  const auto bytes = std::as_bytes(std::span(&mine, 1));
  ranks.results->all_gather(bytes, places).throw_if_failed();
  const auto sharing = std::ranges::count_if(places, [&](const std::vector<std::byte>& place) {
    return std::ranges::equal(place, bytes);
  });
  return std::max(1, all / static_cast<int>(sharing));
}

void gather_pass(comm::Communicator& group, const PassSamples& samples, int64_t num_tasks,
                 model::Pass& pass) {
  const auto tasks = static_cast<size_t>(num_tasks);
  std::vector<std::byte> message;
  const int64_t count = pass.samples;
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  for (size_t b = 0; b < tokens.size(); ++b) {
    tokens[b] = pass.token_offsets[b + 1] - pass.token_offsets[b];
  }
  put(message, std::span(&count, 1));
  put(message, samples.index);
  put(message, std::span<const int64_t>(tokens));
  put(message, samples.labels);
  put(message, std::span<const float>(pass.predictions));
  put(message, std::span<const float>(pass.labels));
  std::vector<std::vector<std::byte>> messages;
  group.all_gather(message, messages).throw_if_failed();

  // Samples of all ranks, by number.
  struct Sample {
    int64_t index = 0;
    size_t rank = 0, place = 0;
    int64_t first_label = 0;
  };
  std::vector<Share> shares;
  std::vector<Sample> order;
  pass.num_labels = 0;
  for (size_t r = 0; r < messages.size(); ++r) {
    shares.push_back(read_share(messages[r], r, tasks));
    int64_t label = 0;
    for (size_t b = 0; b < shares[r].index.size(); ++b) {
      order.push_back({shares[r].index[b], r, b, label});
      label += shares[r].labels[b];
    }
    pass.num_labels += label;
  }
  std::ranges::sort(order, {}, &Sample::index);

  pass.samples = static_cast<int64_t>(order.size());
  pass.token_offsets.assign(1, 0);
  const size_t total = tasks * static_cast<size_t>(pass.num_labels);
  pass.predictions.resize(total);
  pass.labels.resize(total);
  size_t label = 0;
  for (const Sample& s : order) {
    const Share& share = shares[s.rank];
    pass.token_offsets.push_back(pass.token_offsets.back() + share.tokens[s.place]);
    const auto labels = static_cast<size_t>(share.labels[s.place]);
    for (size_t k = 0; k < tasks; ++k) {
      const size_t from =
          k * static_cast<size_t>(share.num_labels) + static_cast<size_t>(s.first_label);
      const size_t to = k * static_cast<size_t>(pass.num_labels) + label;
      std::copy_n(share.predictions.data() + from, labels, pass.predictions.data() + to);
      std::copy_n(share.targets.data() + from, labels, pass.labels.data() + to);
    }
    label += labels;
  }
  pass.tokens = pass.token_offsets.back();
}

}  // namespace segue::train
