#include "sparse/table_exchange.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "comm/codec.h"
#include "comm/sum_parts.h"
#include "ops/optimizer.h"
#include "ops/rows.h"

namespace segue::sparse {
namespace {

// Rows that pass through a temporary on their way into a 16-bit message.
constexpr int64_t kEncodeRows = 4096;

int64_t sum(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

/// `count` rows of a message.
Tensor message_rows(const std::byte* at, Wire wire, const Tensor& like, int64_t count,
                    int64_t columns) {
  return {const_cast<std::byte*>(at),
          comm::wire_dtype(wire, like.dtype),
          like.device,
          {count, columns}};
}

void encode(const Tensor& rows, Wire wire, std::byte* to, const Stream* stream) {
  comm::encode_rows(rows, message_rows(to, wire, rows, rows.size(0), rows.size(1)), stream);
}

void decode(const std::byte* from, Wire wire, const Tensor& rows, const Stream* stream) {
  comm::decode_rows(message_rows(from, wire, rows, rows.size(0), rows.size(1)), rows, stream);
}

/// One int64 message per rank, and what comes back.
std::vector<int64_t> exchange_words(comm::Communicator& group, std::span<const int64_t> send,
                                    std::span<const int64_t> send_counts,
                                    std::span<const int64_t> receive_counts) {
  std::vector<int64_t> received(static_cast<size_t>(sum(receive_counts)));
  const Tensor from(const_cast<int64_t*>(send.data()), DType::kI64, Device::cpu(),
                    {static_cast<int64_t>(send.size())});
  group.all_to_all(from, send_counts, host_view(std::span<int64_t>(received)), receive_counts)
      .throw_if_failed();
  return received;
}

}  // namespace

int64_t TableExchange::Messages::total() const { return sum(bytes); }

TableExchange::Segment TableExchange::find_segment(size_t t, int owner) const {
  const Share share = table(t).share_of(owner);
  if (share.empty()) return {};
  const std::span<const int64_t> keys = ticket_.parts[t].distinct.values.span();
  const auto begin = std::ranges::lower_bound(keys, share.first_key);
  const auto end = std::ranges::upper_bound(keys, share.last_key);
  return {begin - keys.begin(), end - begin, share.columns};
}

int64_t TableExchange::served_before(size_t t, int rank) const {
  return sum(std::span(requests(t).served).first(static_cast<size_t>(rank)));
}

int64_t TableExchange::row_bytes(size_t t, int64_t columns, Wire wire) const {
  return columns * size_of(comm::wire_dtype(wire, spec(t).dtype));
}

// Two exchanges: how many rows of each table every rank wants from every other (and how late it is
// there), then which ones, and how often and with which scores where that counts.
void TableExchange::ask() {
  comm::Communicator& group = *tables_.groups().ids;
  const auto w = static_cast<size_t>(ranks());
  const size_t tables = count();
  const size_t head = tables + 1;
  ticket_.block.clear();
  if (tables_.device().is_cuda()) ticket_.block.set_memory(HostMemory::kPinned);
  for (Ticket::Part& part : ticket_.parts) part.requests = {};
  std::vector<int64_t> counts(w * head), words, word_counts(w);
  for (size_t q = 0; q < w; ++q) {
    const size_t before = words.size();
    for (size_t t = 0; t < tables; ++t) {
      const Segment& segment = requests(t).from.emplace_back(find_segment(t, static_cast<int>(q)));
      counts[q * head + t] = segment.count;
      const Ticket::Part& part = ticket_.parts[t];
      const auto add = [&](const auto& values) {
        const auto first = values.span().begin() + segment.first;
        words.insert(words.end(), first, first + segment.count);
      };
      add(part.distinct.values);
      if (table(t).counts_uses()) add(part.uses);
      if (has_scores(t)) add(part.scores);
    }
    counts[q * head + tables] = ticket_.time;
    word_counts[q] = static_cast<int64_t>(words.size() - before);
  }
  const std::vector<int64_t> equal(w, static_cast<int64_t>(head));
  const std::vector<int64_t> wanted = exchange_words(group, counts, equal, equal);
  std::vector<int64_t> wanted_words(w);
  for (size_t q = 0; q < w; ++q) {
    for (size_t t = 0; t < tables; ++t) {
      const int words_per_key = 1 + (table(t).counts_uses() ? 1 : 0) + (has_scores(t) ? 1 : 0);
      wanted_words[q] += wanted[q * head + t] * words_per_key;
    }
    ticket_.time = std::max(ticket_.time, wanted[q * head + tables]);
  }
  const std::vector<int64_t> received = exchange_words(group, words, word_counts, wanted_words);

  std::vector<Asked> asked(tables);
  auto at = received.begin();
  const auto take = [&](int64_t n, std::vector<int64_t>& to) {
    to.insert(to.end(), at, at + n);
    at += n;
  };
  for (size_t q = 0; q < w; ++q) {
    for (size_t t = 0; t < tables; ++t) {
      const int64_t n = wanted[q * head + t];
      requests(t).served.push_back(n);
      take(n, asked[t].keys);
      if (table(t).counts_uses()) take(n, asked[t].uses);
      if (has_scores(t)) take(n, asked[t].scores);
    }
  }
  for (size_t t = 0; t < tables; ++t) add_requests(t, asked[t]);
}

void TableExchange::add_requests(size_t t, const Asked& asked) {
  Distinct wanted = distinct(asked.keys);
  UploadBlock& block = ticket_.block;
  Requests& to = requests(t);
  if (table(t).counts_uses()) {
    to.uses = block.add<int32_t>(wanted.values.size());
    const std::span<int32_t> uses = block.span(to.uses);
    std::ranges::fill(uses, 0);
    for (size_t i = 0; i < asked.uses.size(); ++i) {
      uses[static_cast<size_t>(wanted.inverse[static_cast<int64_t>(i)])] +=
          static_cast<int32_t>(asked.uses[i]);
    }
  }
  if (has_scores(t)) {
    to.scores = block.add<int64_t>(wanted.values.size());
    const std::span<int64_t> scores = block.span(to.scores);
    std::ranges::fill(scores, std::numeric_limits<int64_t>::min());
    for (size_t i = 0; i < asked.scores.size(); ++i) {
      int64_t& score = scores[static_cast<size_t>(wanted.inverse[static_cast<int64_t>(i)])];
      score = std::max(score, asked.scores[i]);
    }
  }
  table(t).find_slots(wanted.values.span(), ticket_.mode);
  table(t).look_ahead(wanted.values.span(), ticket_.parts[t].held);
  to.slots = block.add<int64_t>(static_cast<int64_t>(asked.keys.size()));
  const std::span<int64_t> slots = block.span(to.slots);
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i] = wanted.values[wanted.inverse[static_cast<int64_t>(i)]];
  }
  to.distinct_slots = block.add(std::as_const(wanted.values).span());
  to.place = block.add(std::as_const(wanted.inverse).span());
  ticket_.parts[t].distinct.values.resize(0);  // keys have served
}

Tensor TableExchange::request_slots(size_t t) const {
  const Tensor& late = ticket_.parts[t].request_slots;
  return late ? late : ticket_.placed.tensor(requests(t).slots);
}

Tensor TableExchange::distinct_slots(size_t t) const {
  const Tensor& late = ticket_.parts[t].slots;
  return late ? late : ticket_.placed.tensor(requests(t).distinct_slots);
}

/// Rows [first, first + count) of those asked for, as they travel.
void TableExchange::serve(const Exec& exec, size_t t, int64_t first, int64_t count,
                          std::byte* to) const {
  const Tensor from = table(t).resident().weights;
  const Tensor slots = request_slots(t).narrow(0, first, count);
  const Wire wire = tables_.config().forward_wire;
  const int64_t columns = from.size(1);
  const auto gather = [&](int64_t begin, const Tensor& rows) {
    const Tensor some = slots.narrow(0, begin, rows.size(0));
    ops::gather_rows(exec, from, some, rows);
    if (!table(t).resolves_late()) return;
    const Tensor keys = ticket_.placed.tensor(requests(t).slots);
    ops::MissingRows missing = table(t).missing_rows();
    missing.keys = keys.narrow(0, first + begin, rows.size(0));
    missing.slots = some;
    missing.to = rows;
    ops::initialize_missing_rows(exec, {&missing, 1});
  };
  if (wire == Wire::kF32) {
    gather(0, Tensor(to, from.dtype, from.device, {count, columns}));
    return;
  }
  const Arena::Mark mark(*exec.arena);
  const Tensor some = exec.arena->tensor(from.dtype, {std::min(count, kEncodeRows), columns});
  for (int64_t done = 0; done < count; done += kEncodeRows) {
    const int64_t n = std::min(kEncodeRows, count - done);
    gather(done, some.rows(0, n));
    encode(some.rows(0, n), wire, to + done * row_bytes(t, columns, wire), exec.stream);
  }
}

Tensor TableExchange::exchange(const Exec& exec, const Tensor& send, const Messages& out,
                               const Messages& in) const {
  const Tensor received = exec.arena->tensor(DType::kU8, {in.total()});
  tables_.groups()
      .rows->all_to_all(send, out.bytes, received, in.bytes, exec.stream)
      .throw_if_failed();
  return received;
}

void TableExchange::rows(const Exec& exec, std::span<const Tensor> to) {
  const size_t tables = count();
  const Wire wire = tables_.config().forward_wire;
  const auto travels = [&](size_t t) { return to[t] && !table(t).replicated(); };
  Messages out, in;
  const Arena::Mark mark(*exec.arena);
  for (int q = 0; q < ranks(); ++q) {
    out.bytes.push_back(0);
    in.bytes.push_back(0);
    for (size_t t = 0; t < tables; ++t) {
      if (!travels(t)) continue;
      const auto peer = static_cast<size_t>(q);
      out.bytes.back() += requests(t).served[peer] * row_bytes(t, own_columns(t), wire);
      const Segment& segment = from_owner(t, q);
      in.bytes.back() += segment.count * row_bytes(t, segment.columns.width(), wire);
    }
  }
  const Tensor send = exec.arena->tensor(DType::kU8, {out.total()});
  auto* at = static_cast<std::byte*>(send.data);
  std::vector<int64_t> first(tables, 0);
  for (size_t q = 0; q < out.bytes.size(); ++q) {
    for (size_t t = 0; t < tables; ++t) {
      const int64_t count = !travels(t) ? 0 : requests(t).served[q];
      if (count == 0) continue;
      serve(exec, t, first[t], count, at);
      first[t] += count;
      at += count * row_bytes(t, own_columns(t), wire);
    }
  }
  const Tensor received = exchange(exec, send, out, in);
  const auto* from = static_cast<const std::byte*>(received.data);
  for (int q = 0; q < ranks(); ++q) {
    for (size_t t = 0; t < tables; ++t) {
      if (!travels(t)) continue;
      const Segment& segment = from_owner(t, q);
      if (segment.count == 0) continue;
      decode(from, wire,
             to[t]
                 .rows(segment.first, segment.count)
                 .columns(segment.columns.begin, segment.columns.width()),
             exec.stream);
      from += segment.count * row_bytes(t, segment.columns.width(), wire);
    }
  }
  for (size_t t = 0; t < tables; ++t) {
    if (!table(t).replicated() || !to[t]) continue;
    ops::gather_rows(exec, table(t).resident().weights,
                     request_slots(t).narrow(0, served_before(t, tables_.rank()), to[t].size(0)),
                     to[t]);
    ops::round_rows_to_wire(exec, wire_type(wire), to[t]);
  }
}

/// Per table that this rank has a part of: the gradients that came for it, by rank.
std::vector<Tensor> TableExchange::collect(const Exec& exec, const Tensor& received,
                                           std::span<const Tensor> row_gradients) const {
  const Wire wire = tables_.config().backward_wire;
  std::vector<Tensor> all(row_gradients.size());
  for (size_t t = 0; t < all.size(); ++t) {
    if (!row_gradients[t] || !owns(t)) continue;
    all[t] =
        exec.arena->tensor(row_gradients[t].dtype, {served_before(t, ranks()), own_columns(t)});
  }
  const auto* from = static_cast<const std::byte*>(received.data);
  std::vector<int64_t> first(all.size(), 0);
  for (size_t q = 0; q < static_cast<size_t>(ranks()); ++q) {
    for (size_t t = 0; t < all.size(); ++t) {
      const int64_t count = all[t] ? requests(t).served[q] : 0;
      if (count == 0) continue;
      decode(from, wire, all[t].rows(first[t], count), exec.stream);
      first[t] += count;
      from += count * row_bytes(t, own_columns(t), wire);
    }
  }
  return all;
}

/// Row-wise Adagrad looks at whole rows: where a table is cut by columns, the owners tell each
/// other their parts of the mean squares and add them in the same order.
std::vector<Tensor> TableExchange::whole_row_squares(const Exec& exec,
                                                     std::span<const Tensor> sums) const {
  std::vector<Tensor> squares(sums.size());
  const auto by_columns = [&](size_t t) {
    return spec(t).placement.sharding == Sharding::kColumn && !spec(t).per_block_state &&
           std::ranges::any_of(ops::row_states(spec(t).optimizer), &ops::RowState::of_whole_row);
  };
  bool any = false;
  for (size_t t = 0; t < sums.size(); ++t) any |= by_columns(t);
  if (!any) return squares;

  Messages messages;  // the same in both directions: owners of a table have the same rows of it
  messages.bytes.assign(static_cast<size_t>(ranks()), 0);
  const auto for_owners = [&](auto&& use) {  // (rank, table), in the order of the messages
    for (int q = 0; q < ranks(); ++q) {
      for (size_t t = 0; t < sums.size(); ++t) {
        if (by_columns(t) && sums[t] && !table(t).share_of(q).empty()) use(q, t);
      }
    }
  };
  const auto bytes = [&](size_t t) { return sums[t].size(0) * size_of(DType::kF64); };
  for (size_t t = 0; t < sums.size(); ++t) {
    if (!by_columns(t) || !sums[t]) continue;
    squares[t] = exec.arena->tensor(DType::kF64, {sums[t].size(0)});
    ops::row_mean_squares(exec, sums[t], spec(t).dim, squares[t]);
  }
  for_owners([&](int q, size_t t) { messages.bytes[static_cast<size_t>(q)] += bytes(t); });
  const Tensor send = exec.arena->tensor(DType::kU8, {messages.total()});
  int64_t at = 0;
  for_owners([&](int, size_t t) {
    copy_bytes(static_cast<char*>(send.data) + at, send.device, squares[t].data, send.device,
               static_cast<size_t>(bytes(t)), exec.stream);
    at += bytes(t);
  });
  const Tensor received = exchange(exec, send, messages, messages);
  // The parts of a table lie apart in the messages; brought together they are added in one order.
  std::vector<Tensor> parts(sums.size());
  std::vector<int64_t> next(sums.size(), 0);
  at = 0;
  for_owners([&](int, size_t t) {
    const int64_t n = sums[t].size(0);
    if (!parts[t]) {
      parts[t] = exec.arena->tensor(DType::kF64,
                                    {static_cast<int64_t>(spec(t).placement.ranks.size()), n});
    }
    copy_bytes(parts[t].select(next[t]++).data, send.device,
               static_cast<const char*>(received.data) + at, send.device,
               static_cast<size_t>(bytes(t)), exec.stream);
    at += bytes(t);
  });
  for (size_t t = 0; t < sums.size(); ++t) {
    if (!parts[t]) continue;
    comm::sum_parts(squares[t].data, parts[t].data, static_cast<int>(parts[t].size(0)),
                    parts[t].size(1), DType::kF64, exec.device, exec.stream);
  }
  return squares;
}

void TableExchange::apply(const Exec& exec, std::span<const Tensor> row_gradients, double lr,
                          int64_t step, const Tensor& finite) {
  const Arena::Mark mark(*exec.arena);
  const Wire wire = tables_.config().backward_wire;
  const size_t tables = row_gradients.size();
  Messages out, in;
  for (int q = 0; q < ranks(); ++q) {
    out.bytes.push_back(0);
    in.bytes.push_back(0);
    for (size_t t = 0; t < tables; ++t) {
      if (!row_gradients[t]) continue;
      const Segment& segment = from_owner(t, q);
      out.bytes.back() += segment.count * row_bytes(t, segment.columns.width(), wire);
      in.bytes.back() +=
          requests(t).served[static_cast<size_t>(q)] * row_bytes(t, own_columns(t), wire);
    }
  }
  const Tensor send = exec.arena->tensor(DType::kU8, {out.total()});
  auto* to = static_cast<std::byte*>(send.data);
  for (int q = 0; q < ranks(); ++q) {
    for (size_t t = 0; t < tables; ++t) {
      if (!row_gradients[t]) continue;
      const Segment& segment = from_owner(t, q);
      if (segment.count == 0) continue;
      encode(row_gradients[t]
                 .rows(segment.first, segment.count)
                 .columns(segment.columns.begin, segment.columns.width()),
             wire, to, exec.stream);
      to += segment.count * row_bytes(t, segment.columns.width(), wire);
    }
  }
  const Tensor received = exchange(exec, send, out, in);
  std::vector<Tensor> sums = collect(exec, received, row_gradients);
  for (size_t t = 0; t < tables; ++t) {
    if (!sums[t]) continue;
    const Tensor total =
        exec.arena->tensor(sums[t].dtype, {requests(t).distinct_slots.count, own_columns(t)});
    zero(total, exec.stream);
    ops::segment_sum(exec, sums[t], ticket_.placed.tensor(requests(t).place), total);
    sums[t] = total;
  }
  const std::vector<Tensor> squares = whole_row_squares(exec, sums);
  for (size_t t = 0; t < tables; ++t) {
    if (!sums[t]) continue;
    const auto& [weights, state] = table(t).resident();
    ops::rowwise_update(exec, tables_.config().update_params(spec(t).optimizer, lr, step),
                        {distinct_slots(t), sums[t], weights, state, squares[t]}, finite);
  }
}

}  // namespace segue::sparse
