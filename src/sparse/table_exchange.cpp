#include "sparse/table_exchange.h"

#include <algorithm>
#include <numeric>

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
  const LocalShard shard =
      local_shard(placement(t), tables_.config_.tables[t].rows, tables_.config_.dim, owner);
  if (shard.part < 0) return {};
  const std::span<const int64_t> ids = ticket_.parts_[t].values.span();
  const int64_t slots = shard.deal.slots();
  const auto begin = std::ranges::lower_bound(ids, shard.part * slots);
  const auto end = std::ranges::lower_bound(ids, (shard.part + 1) * slots);
  return {begin - ids.begin(), end - begin, shard.columns};
}

int64_t TableExchange::row_bytes(size_t t, int64_t columns, Wire wire) const {
  return columns * size_of(comm::wire_dtype(wire, tables_.tables_[t].weights.dtype));
}

int64_t TableExchange::total_served(size_t t) const { return sum(ticket_.shared_[t].served); }

// Two exchanges: how many rows of each table every rank wants from every other, then which ones.
void TableExchange::ask() {
  comm::Communicator& group = *tables_.groups_.ids;
  const auto w = static_cast<size_t>(ranks());
  const size_t tables = tables_.tables_.size();
  ticket_.shared_.assign(tables, {});
  ticket_.block_.clear();
  std::vector<int64_t> counts(w * tables), slots, slot_counts(w);
  for (size_t q = 0; q < w; ++q) {
    for (size_t t = 0; t < tables; ++t) {
      const Segment& segment =
          ticket_.shared_[t].from.emplace_back(find_segment(t, static_cast<int>(q)));
      const RowDeal deal = tables_.tables_[t].shard.deal;
      counts[q * tables + t] = segment.count;
      slot_counts[q] += segment.count;
      const std::span<const int64_t> ids = ticket_.parts_[t].values.span().subspan(
          static_cast<size_t>(segment.first), static_cast<size_t>(segment.count));
      for (const int64_t id : ids) slots.push_back(id % deal.slots());
    }
  }
  const std::vector<int64_t> equal(w, static_cast<int64_t>(tables));
  const std::vector<int64_t> wanted = exchange_words(group, counts, equal, equal);
  std::vector<int64_t> wanted_slots(w);
  for (size_t q = 0; q < w; ++q) {
    wanted_slots[q] = sum(std::span(wanted).subspan(q * tables, tables));
  }
  const std::vector<int64_t> received = exchange_words(group, slots, slot_counts, wanted_slots);

  if (tables_.tables_.front().weights.device.is_cuda()) {
    ticket_.block_.set_memory(HostMemory::kPinned);
  }
  std::vector<std::vector<int64_t>> of_table(tables);
  size_t at = 0;
  for (size_t q = 0; q < w; ++q) {
    for (size_t t = 0; t < tables; ++t) {
      const auto count = static_cast<size_t>(wanted[q * tables + t]);
      ticket_.shared_[t].served.push_back(static_cast<int64_t>(count));
      const auto first = received.begin() + static_cast<std::ptrdiff_t>(at);
      of_table[t].insert(of_table[t].end(), first, first + static_cast<std::ptrdiff_t>(count));
      at += count;
    }
  }
  for (size_t t = 0; t < tables; ++t) {
    Ticket::Shared& shared = ticket_.shared_[t];
    const Distinct distinct_slots = distinct(of_table[t]);
    shared.slots = ticket_.block_.add(std::span<const int64_t>(of_table[t]));
    shared.distinct = ticket_.block_.add(distinct_slots.values.span());
    shared.place = ticket_.block_.add(distinct_slots.inverse.span());
  }
}

/// Rows [first, first + count) of those asked for, as they travel.
void TableExchange::serve(const Exec& exec, size_t t, int64_t first, int64_t count,
                          std::byte* to) const {
  const Tensor from = tables_.tables_[t].weights;
  const Tensor slots = ticket_.placed_.tensor(ticket_.shared_[t].slots);
  const Wire wire = tables_.config_.forward_wire;
  const int64_t columns = from.size(1);
  if (wire == Wire::kF32) {
    ops::gather_rows(exec, from, slots.narrow(0, first, count),
                     Tensor(to, from.dtype, from.device, {count, columns}));
    return;
  }
  const Arena::Mark mark(*exec.arena);
  const Tensor some = exec.arena->tensor(from.dtype, {std::min(count, kEncodeRows), columns});
  for (int64_t done = 0; done < count; done += kEncodeRows) {
    const int64_t n = std::min(kEncodeRows, count - done);
    ops::gather_rows(exec, from, slots.narrow(0, first + done, n), some.rows(0, n));
    encode(some.rows(0, n), wire, to + done * row_bytes(t, columns, wire), exec.stream);
  }
}

Tensor TableExchange::exchange(const Exec& exec, const Tensor& send, const Messages& out,
                               const Messages& in) const {
  const Tensor received = exec.arena->tensor(DType::kU8, {in.total()});
  tables_.groups_.rows->all_to_all(send, out.bytes, received, in.bytes, exec.stream)
      .throw_if_failed();
  return received;
}

void TableExchange::rows(const Exec& exec, std::span<const Tensor> to) {
  const size_t tables = tables_.tables_.size();
  const Wire wire = tables_.config_.forward_wire;
  ticket_.placed_ = ticket_.block_.place(exec);
  const auto travels = [&](size_t t) { return to[t] && !replicated(t); };
  Messages out, in;
  const Arena::Mark mark(*exec.arena);
  for (int q = 0; q < ranks(); ++q) {
    out.bytes.push_back(0);
    in.bytes.push_back(0);
    for (size_t t = 0; t < tables; ++t) {
      if (!travels(t)) continue;
      const auto peer = static_cast<size_t>(q);
      out.bytes.back() += ticket_.shared_[t].served[peer] * row_bytes(t, own_columns(t), wire);
      const Segment& segment = from_owner(t, q);
      in.bytes.back() += segment.count * row_bytes(t, segment.columns.width(), wire);
    }
  }
  const Tensor send = exec.arena->tensor(DType::kU8, {out.total()});
  auto* at = static_cast<std::byte*>(send.data);
  std::vector<int64_t> first(tables, 0);
  for (size_t q = 0; q < out.bytes.size(); ++q) {
    for (size_t t = 0; t < tables; ++t) {
      const int64_t count = !travels(t) ? 0 : ticket_.shared_[t].served[q];
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
    if (!replicated(t) || !to[t]) continue;
    ops::gather_rows(exec, tables_.tables_[t].weights,
                     ticket_.ids_for(exec, static_cast<TableId>(t)), to[t]);
    ops::round_rows_to_wire(exec, wire_type(wire), to[t]);
  }
}

/// Per table that this rank has a part of: the gradients that came for it, by rank.
std::vector<Tensor> TableExchange::collect(const Exec& exec, const Tensor& received,
                                           std::span<const Tensor> row_gradients) const {
  const Wire wire = tables_.config_.backward_wire;
  std::vector<Tensor> all(row_gradients.size());
  for (size_t t = 0; t < all.size(); ++t) {
    if (!row_gradients[t] || tables_.tables_[t].shard.part < 0) continue;
    all[t] = exec.arena->tensor(row_gradients[t].dtype, {total_served(t), own_columns(t)});
  }
  const auto* from = static_cast<const std::byte*>(received.data);
  std::vector<int64_t> first(all.size(), 0);
  for (size_t q = 0; q < static_cast<size_t>(ranks()); ++q) {
    for (size_t t = 0; t < all.size(); ++t) {
      const int64_t count = all[t] ? ticket_.shared_[t].served[q] : 0;
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
  if (tables_.config_.optimizer != ops::RowOptimizer::kRowwiseAdagrad ||
      tables_.config_.per_block_state) {
    return squares;
  }
  const auto by_columns = [&](size_t t) { return placement(t).sharding == Sharding::kColumn; };
  bool any = false;
  for (size_t t = 0; t < sums.size(); ++t) any |= by_columns(t);
  if (!any) return squares;

  Messages messages;  // the same in both directions: owners of a table have the same rows of it
  messages.bytes.assign(static_cast<size_t>(ranks()), 0);
  const auto for_owners = [&](auto&& use) {  // (rank, table), in the order of the messages
    for (int q = 0; q < ranks(); ++q) {
      for (size_t t = 0; t < sums.size(); ++t) {
        if (by_columns(t) && sums[t] && std::ranges::count(placement(t).ranks, q) > 0) use(q, t);
      }
    }
  };
  const auto bytes = [&](size_t t) { return sums[t].size(0) * size_of(DType::kF64); };
  for (size_t t = 0; t < sums.size(); ++t) {
    if (!by_columns(t) || !sums[t]) continue;
    squares[t] = exec.arena->tensor(DType::kF64, {sums[t].size(0)});
    ops::row_mean_squares(exec, sums[t], tables_.config_.dim, squares[t]);
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
      parts[t] =
          exec.arena->tensor(DType::kF64, {static_cast<int64_t>(placement(t).ranks.size()), n});
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
  const Wire wire = tables_.config_.backward_wire;
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
          ticket_.shared_[t].served[static_cast<size_t>(q)] * row_bytes(t, own_columns(t), wire);
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
    const Ticket::Shared& shared = ticket_.shared_[t];
    const Tensor total = exec.arena->tensor(sums[t].dtype, {shared.distinct.count, own_columns(t)});
    zero(total, exec.stream);
    ops::segment_sum(exec, sums[t], ticket_.placed_.tensor(shared.place), total);
    sums[t] = total;
  }
  const std::vector<Tensor> squares = whole_row_squares(exec, sums);
  for (size_t t = 0; t < tables; ++t) {
    if (!sums[t]) continue;
    const auto table = static_cast<TableId>(t);
    ops::rowwise_update(exec, tables_.update_params(lr, step),
                        {ticket_.placed_.tensor(ticket_.shared_[t].distinct), sums[t],
                         tables_.weights(table), tables_.state(table), squares[t]},
                        finite);
  }
}

}  // namespace segue::sparse
