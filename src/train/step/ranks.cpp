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

using StopSave = Ranks::StopSave;

int64_t to_word(const StopSave& s) {
  return (s.stop ? 1 : 0) | (s.save ? 2 : 0) | (s.verified ? 4 : 0) | (s.full ? 8 : 0);
}

/// Words of all ranks.
StopSave agreed(std::span<const int64_t> words) {
  StopSave all{.save = (words[0] & 2) != 0, .verified = true};
  for (const int64_t word : words) {
    all.stop |= (word & 1) != 0;
    all.full |= (word & 8) != 0;
    all.verified &= (word & 4) != 0;
  }
  return all;
}

/// One rank's share of a pass.
struct Share {
  std::span<const int64_t> index, tokens, labels;  // per sample
  std::span<const std::byte> values;               // f32: predictions and targets, [tasks][labels]
};

Share read_share(std::span<const int64_t> words, size_t samples, int64_t announced, size_t rank) {
  const Share share{words.first(samples), words.subspan(samples, samples),
                    words.subspan(2 * samples, samples), std::as_bytes(words.subspan(3 * samples))};
  const int64_t labels = std::accumulate(share.labels.begin(), share.labels.end(), int64_t{0});
  if (labels != announced || std::ranges::any_of(share.labels, [](int64_t n) { return n < 0; })) {
    fail(ErrorCode::kPeer,
         fmt::format("rank {} announced {} labels, but its samples have {}; all ranks must run the "
                     "same segue with the same config",
                     rank, announced, labels));
  }
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

void Ranks::first_then_others(const std::function<void()>& action) const {
  if (first()) action();
  if (!alone()) results->barrier().throw_if_failed();
  if (!first()) action();
}

Ranks::StopSave Ranks::agree(const StopSave& mine) const {
  if (alone()) return mine;
  int64_t word = to_word(mine);
  const std::vector<int64_t> ones(static_cast<size_t>(size_), 1);
  return agreed(gather_words(*results, {&word, 1}, ones));
}

void Ranks::wait_until(const std::function<bool(double seconds)>& ready,
                       const std::function<void()>& alive) const {
  constexpr double kBetweenTalks = 0.5;  // seconds
  while (!agree({.verified = ready(kBetweenTalks)}).verified) {
    if (alive) alive();
  }
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

std::vector<int64_t> gather_words(comm::Communicator& group, std::span<int64_t> mine,
                                  std::span<const int64_t> counts) {
  std::vector<int64_t> all(
      static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0})));
  group.all_gather(host_view(mine), host_view(std::span<int64_t>(all)), counts).throw_if_failed();
  return all;
}

Ranks::StopSave Ranks::gather(const model::PreparedBatch& prepared, const StopSave& mine,
                              model::Pass& pass) const {
  const size_t tasks = pass.task_losses.size(), ranks = prepared.rank_samples.size();
  std::vector<int64_t> words{to_word(mine)};
  words.insert(words.end(), prepared.sample_index.begin(), prepared.sample_index.end());
  for (size_t b = 0; b < prepared.sample_index.size(); ++b) {
    words.push_back(pass.token_offsets[b + 1] - pass.token_offsets[b]);
  }
  words.insert(words.end(), prepared.sample_labels.begin(), prepared.sample_labels.end());
  const size_t own = words.size();
  words.resize(own + pass.predictions.size());  // and as many labels: two floats are a word
  std::byte* out = std::as_writable_bytes(std::span(words).subspan(own)).data();
  for (const std::vector<float>* values : {&pass.predictions, &pass.labels}) {
    out = std::ranges::copy(std::as_bytes(std::span(*values)), out).out;
  }
  std::vector<int64_t> counts(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    counts[r] =
        1 + 3 * prepared.rank_samples[r] + static_cast<int64_t>(tasks) * prepared.rank_labels[r];
  }
  const std::vector<int64_t> all = gather_words(*results, words, counts);

  // Samples of all ranks, by number.
  struct Sample {
    int64_t index = 0;
    size_t rank = 0, place = 0, first_label = 0;
  };
  std::vector<Share> shares;
  std::vector<Sample> order;
  std::vector<int64_t> wishes;
  size_t at = 0;
  for (size_t r = 0; r < ranks; ++r) {
    wishes.push_back(all[at]);
    shares.push_back(read_share({all.data() + at + 1, static_cast<size_t>(counts[r] - 1)},
                                static_cast<size_t>(prepared.rank_samples[r]),
                                prepared.rank_labels[r], r));
    at += static_cast<size_t>(counts[r]);
    size_t label = 0;
    for (size_t b = 0; b < shares[r].index.size(); ++b) {
      order.push_back({shares[r].index[b], r, b, label});
      label += static_cast<size_t>(shares[r].labels[b]);
    }
  }
  std::ranges::sort(order, {}, &Sample::index);

  pass.samples = static_cast<int64_t>(order.size());
  pass.num_labels = prepared.global_labels;
  pass.token_offsets.assign(1, 0);
  const auto num_labels = static_cast<size_t>(pass.num_labels);
  pass.predictions.resize(tasks * num_labels);
  pass.labels.resize(tasks * num_labels);
  size_t label = 0;
  for (const Sample& s : order) {
    const Share& share = shares[s.rank];
    pass.token_offsets.push_back(pass.token_offsets.back() + share.tokens[s.place]);
    const auto labels = static_cast<size_t>(share.labels[s.place]);
    const auto held = static_cast<size_t>(prepared.rank_labels[s.rank]);
    for (size_t k = 0; k < tasks; ++k) {
      const std::byte* from = share.values.data() + (k * held + s.first_label) * sizeof(float);
      const size_t to = k * num_labels + label;
      std::memcpy(pass.predictions.data() + to, from, labels * sizeof(float));
      std::memcpy(pass.labels.data() + to, from + share.values.size() / 2, labels * sizeof(float));
    }
    label += labels;
  }
  pass.tokens = pass.token_offsets.back();
  return agreed(wishes);
}

}  // namespace segue::train
