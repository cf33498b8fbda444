#include "balance/exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/time.h"

namespace segue::balance {
namespace {

constexpr size_t kWordsPerSample = 3;  // sample number, cost, tokens
constexpr size_t kHeaderWords = 2;     // schema, samples of the step

uint64_t schema_hash(const Batch& batch) {
  std::string text;
  for (const Batch::Group& g : batch.groups) text += g.name + '\n';
  for (const Batch::Column& c : batch.columns) text += fmt::format("{} {}\n", c.name, c.group);
  for (const Batch::FloatColumn& c : batch.float_columns) {
    text += fmt::format("{} {} float\n", c.name, c.group);
  }
  for (const Batch::Attribute& a : batch.attributes) {
    text += fmt::format("{} of {}\n", a.name, a.of);
  }
  return base::xxh64(text.data(), text.size());
}

std::span<const int64_t> words_of(const std::vector<std::byte>& message) {
  return {reinterpret_cast<const int64_t*>(message.data()), message.size() / sizeof(int64_t)};
}

/// Cuts a message buffer into one part per peer.
template <class Byte, class Array>
std::vector<std::span<Byte>> parts_of(Array& message, std::span<const int64_t> counts) {
  std::vector<std::span<Byte>> parts;
  auto* at = reinterpret_cast<Byte*>(message.data());
  for (const int64_t count : counts) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(*message.data());
    parts.emplace_back(at, bytes);
    at += bytes;
  }
  return parts;
}

/// f(column) for the columns of all types, in the order in which a message has them.
template <class F>
void for_each_column(const Batch& batch, const F& f) {
  std::ranges::for_each(batch.columns, f);
  std::ranges::for_each(batch.float_columns, f);
}

template <class T>
constexpr int64_t value_bytes(const Batch::ColumnOf<T>&) {
  return sizeof(T);
}

/// Values travel as bytes: what follows a float of a message need not be aligned for more.
template <class T>
std::span<const std::byte> bytes_of(const Batch::ColumnOf<T>& c, int64_t begin, int64_t end) {
  return std::as_bytes(
      c.values.span().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
}

int64_t total(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

/// All samples of the step in the order of their numbers, the same on every rank.
struct Balancer::State {
  struct Sample {
    int64_t number = 0;
    int64_t cost = 0, tokens = 0;
    int32_t rank = 0;
    int64_t place = 0;  // among the samples of its rank
  };
  std::vector<Sample> samples;
  BalanceStats stats;

  // Places in this rank's batch that go to each rank, and samples that this rank gets from each.
  std::vector<std::vector<int64_t>> send;
  std::vector<int64_t> receive;  // counts
  std::vector<int64_t> mine;     // numbers into samples, ascending

  void read(const std::vector<std::vector<std::byte>>& messages);
  void decide(int rank, int num_ranks, PartitionMode mode);
  /// Samples that stayed are in the order of their numbers.
  bool in_order() const {
    return std::ranges::is_sorted(
        mine, {}, [this](int64_t i) { return samples[static_cast<size_t>(i)].place; });
  }
};

void Balancer::State::read(const std::vector<std::vector<std::byte>>& messages) {
  for (size_t r = 0; r < messages.size(); ++r) {
    const std::span<const int64_t> words = words_of(messages[r]).subspan(kHeaderWords);
    for (size_t i = 0; i < words.size(); i += kWordsPerSample) {
      samples.push_back({words[i], words[i + 1], words[i + 2], static_cast<int32_t>(r),
                         static_cast<int64_t>(i / kWordsPerSample)});
    }
  }
  // Stable: numbers that are not unique stay in the order of ranks.
  std::ranges::stable_sort(samples, {}, &Sample::number);
}

void Balancer::State::decide(int rank, int num_ranks, PartitionMode mode) {
  const base::Stopwatch watch;
  std::vector<int64_t> costs;
  std::vector<int32_t> origins;
  for (const Sample& s : samples) {
    costs.push_back(s.cost);
    origins.push_back(s.rank);
  }
  const std::vector<std::vector<int64_t>> ranks = partition(costs, origins, num_ranks, {mode});
  stats.partition_ms = watch.seconds() * 1e3;
  const size_t size = ranks.size();
  send.resize(size);
  receive.assign(size, 0);
  std::vector<int64_t> before(size, 0), after(size, 0);
  stats.tokens_before.assign(size, 0);
  stats.tokens_after.assign(size, 0);
  stats.samples = static_cast<int64_t>(samples.size());
  for (size_t q = 0; q < size; ++q) {
    for (const int64_t i : ranks[q]) {
      const Sample& s = samples[static_cast<size_t>(i)];
      const auto from = static_cast<size_t>(s.rank);
      before[from] += s.cost;
      after[q] += s.cost;
      stats.tokens_before[from] += s.tokens;
      stats.tokens_after[q] += s.tokens;
      stats.samples_moved += from != q;
      if (s.rank == rank) send[q].push_back(s.place);
      if (static_cast<int>(q) == rank) ++receive[from];
    }
  }
  mine = ranks[static_cast<size_t>(rank)];
  stats.before = imbalance(before);
  stats.after = imbalance(after);
}

Balancer::Balancer(const BalanceConfig& config, SampleShape shape, CostWeights weights,
                   comm::Communicator& group)
    : config_(config), shape_(std::move(shape)), weights_(weights), group_(group) {
  config_.validate();
  if (config_.has_weights()) weights_ = {config_.token_ps, config_.pair_ps};
}

std::vector<std::vector<std::byte>> Balancer::gather(const Batch& batch, State& state) {
  const base::Stopwatch watch;
  const std::vector<SampleCost> costs = sample_costs(batch, shape_, config_.cost, weights_);
  std::vector<int64_t> words{static_cast<int64_t>(schema_hash(batch)), batch.global_samples};
  for (size_t i = 0; i < costs.size(); ++i) {
    words.insert(words.end(),
                 {batch.sample_index[static_cast<int64_t>(i)], costs[i].cost, costs[i].tokens});
  }
  std::vector<std::vector<std::byte>> all;
  group_.all_gather(std::as_bytes(std::span(words)), all)
      .with("gathering the costs of samples")
      .throw_if_failed();
  for (size_t r = 0; r < all.size(); ++r) {
    const std::span<const int64_t> theirs = words_of(all[r]);
    const bool whole =
        theirs.size() >= kHeaderWords && (theirs.size() - kHeaderWords) % kWordsPerSample == 0;
    const bool same_schema = whole && theirs[0] == words[0];
    if (same_schema && theirs[1] == words[1]) continue;
    if (same_schema) {
      fail(ErrorCode::kPeer,
           fmt::format("balancing: rank {} has a step of {} samples, rank {} one of {}; all ranks "
                       "must be at the same step of the same data",
                       r, theirs[1], group_.rank(), words[1]));
    }
    fail(ErrorCode::kPeer,
         fmt::format("balancing: the batch of rank {} has other groups or columns than that of "
                     "rank {}; all ranks must run with one config",
                     r, group_.rank()));
  }
  state.stats.gather_ms = watch.seconds() * 1e3;
  return all;
}

BalanceStats Balancer::balance(Batch& batch) {
  State state;
  state.read(gather(batch, state));
  state.decide(group_.rank(), group_.size(), config_.mode);

  // Every rank knows whether anything moves at all.
  const base::Stopwatch watch;
  if (state.stats.samples_moved > 0) {
    exchange_lengths(batch, state);
    exchange_values(batch, state);
    state.stats.bytes_sent =
        sent_lengths_.size() * static_cast<int64_t>(sizeof(int64_t)) + sent_values_.size();
  }
  if (state.stats.samples_moved > 0 || !state.in_order()) assemble(batch, state);
  state.stats.exchange_ms = watch.seconds() * 1e3;
  return std::move(state.stats);
}

void Balancer::exchange_lengths(const Batch& batch, const State& state) {
  const auto groups = static_cast<int64_t>(batch.groups.size());
  std::vector<int64_t> send_counts, receive_counts;
  for (size_t q = 0; q < state.send.size(); ++q) {
    const bool other = static_cast<int>(q) != group_.rank();
    send_counts.push_back(other ? groups * static_cast<int64_t>(state.send[q].size()) : 0);
    receive_counts.push_back(other ? groups * state.receive[q] : 0);
  }
  sent_lengths_.resize(total(send_counts));
  received_lengths_.resize(total(receive_counts));
  int64_t* out = sent_lengths_.data();
  for (size_t q = 0; q < state.send.size(); ++q) {
    if (send_counts[q] == 0) continue;
    for (const int64_t place : state.send[q]) {
      for (const Batch::Group& g : batch.groups) *out++ = g.offsets[place + 1] - g.offsets[place];
    }
  }
  const auto send = parts_of<const std::byte>(sent_lengths_, send_counts);
  const auto receive = parts_of<std::byte>(received_lengths_, receive_counts);
  group_.all_to_all(send, receive).with("exchanging the lengths of samples").throw_if_failed();
}

void Balancer::exchange_values(const Batch& batch, const State& state) {
  const size_t groups = batch.groups.size();
  const size_t ranks = state.send.size();
  std::vector<int64_t> widths(groups, 0);  // bytes of all columns of each group
  for_each_column(batch,
                  [&](const auto& c) { widths[static_cast<size_t>(c.group)] += value_bytes(c); });
  const auto bytes = [&](std::span<const int64_t> lengths) {
    int64_t sum = 0;
    for (size_t i = 0; i < lengths.size(); ++i) sum += lengths[i] * widths[i % groups];
    return sum;
  };
  std::vector<int64_t> send_counts(ranks, 0), receive_counts(ranks, 0);
  const int64_t* sent = sent_lengths_.data();
  const int64_t* received = received_lengths_.data();
  for (size_t q = 0; q < ranks; ++q) {
    if (static_cast<int>(q) == group_.rank()) continue;
    const size_t out = groups * state.send[q].size();
    const size_t in = groups * static_cast<size_t>(state.receive[q]);
    send_counts[q] = bytes({sent, out});
    receive_counts[q] = bytes({received, in});
    sent += out;
    received += in;
  }
  sent_values_.resize(total(send_counts));
  received_values_.resize(total(receive_counts));
  std::byte* out = sent_values_.data();
  for (size_t q = 0; q < ranks; ++q) {
    if (static_cast<int>(q) == group_.rank()) continue;
    for_each_column(batch, [&](const auto& c) {
      const std::span<const int64_t> offsets = batch.offsets(c);
      for (const int64_t place : state.send[q]) {
        const auto at = static_cast<size_t>(place);
        out = std::ranges::copy(bytes_of(c, offsets[at], offsets[at + 1]), out).out;
      }
    });
  }
  const auto send = parts_of<const std::byte>(sent_values_, send_counts);
  const auto receive = parts_of<std::byte>(received_values_, receive_counts);
  group_.all_to_all(send, receive).with("exchanging samples").throw_if_failed();
}

/// Puts the samples that stayed and those that came into spare_, in order, and swaps. What a rank
/// sends is in the order of sample numbers too, so that its k-th sample is the k-th one met here.
void Balancer::assemble(Batch& batch, const State& state) {
  if (spare_.groups.empty()) spare_ = batch.schema();
  spare_.clear();
  for (size_t a = 0; a < spare_.attributes.size(); ++a) {
    spare_.attributes[a].values = batch.attributes[a].values;  // of a store that was opened again
  }
  const size_t groups = batch.groups.size();
  const size_t ranks = state.send.size();
  const auto own = static_cast<size_t>(group_.rank());
  std::vector<const int64_t*> lengths(ranks, nullptr);  // where each rank's message stands
  const int64_t* at = received_lengths_.data();
  for (size_t q = 0; q < ranks; ++q) {
    lengths[q] = at;
    if (q != own) at += static_cast<int64_t>(groups) * state.receive[q];
  }
  for (const int64_t i : state.mine) {
    const State::Sample& s = state.samples[static_cast<size_t>(i)];
    const auto from = static_cast<size_t>(s.rank);
    spare_.sample_index.push_back(s.number);
    for (size_t g = 0; g < groups; ++g) {
      const HostArray<int64_t>& held = batch.groups[g].offsets;
      const int64_t length = from == own ? held[s.place + 1] - held[s.place] : *lengths[from]++;
      HostArray<int64_t>& offsets = spare_.groups[g].offsets;
      offsets.push_back(offsets[offsets.size() - 1] + length);
    }
  }
  assemble_values(batch, state);
  spare_.global_samples = batch.global_samples;
  std::swap(batch, spare_);
}

/// The values of spare_, whose samples and offsets are there. Each message has its columns one
/// after the other.
void Balancer::assemble_values(const Batch& batch, const State& state) {
  const auto own = static_cast<size_t>(group_.rank());
  const auto sample = [&](size_t k) -> const State::Sample& {
    return state.samples[static_cast<size_t>(state.mine[k])];
  };
  std::vector<int64_t> sizes(state.send.size(), 0);  // of each rank's message
  for_each_column(spare_, [&](const auto& c) {
    const std::span<const int64_t> offsets = spare_.offsets(c);
    for (size_t k = 0; k < state.mine.size(); ++k) {
      const auto from = static_cast<size_t>(sample(k).rank);
      if (from != own) sizes[from] += (offsets[k + 1] - offsets[k]) * value_bytes(c);
    }
  });
  std::vector<const std::byte*> messages;
  for (const std::span<const std::byte> part : parts_of<const std::byte>(received_values_, sizes)) {
    messages.push_back(part.data());
  }
  const auto fill = [&](const auto& held, auto& columns) {
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::span<const int64_t> held_offsets = batch.offsets(held[c]);
      const std::span<const int64_t> offsets = spare_.offsets(columns[c]);
      columns[c].values.resize(offsets.back());
      std::byte* out = std::as_writable_bytes(columns[c].values.span()).data();
      for (size_t k = 0; k < state.mine.size(); ++k) {
        const auto from = static_cast<size_t>(sample(k).rank);
        const int64_t bytes = (offsets[k + 1] - offsets[k]) * value_bytes(held[c]);
        const std::byte* source = messages[from];
        if (from == own) {
          const auto place = static_cast<size_t>(sample(k).place);
          source = bytes_of(held[c], held_offsets[place], held_offsets[place + 1]).data();
        } else {
          messages[from] += bytes;
        }
        out = std::copy_n(source, bytes, out);
      }
    }
  };
  fill(batch.columns, spare_.columns);
  fill(batch.float_columns, spare_.float_columns);
}

}  // namespace segue::balance
