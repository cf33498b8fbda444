#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sparse/tables.h"

namespace segue::sparse {

/// What Tables does between ranks. A rank asks the owners of rows for the distinct ones it needs,
/// gets them, and sends one summed gradient per row back; each is one exchange for all tables. Rows
/// of a replicated table are at hand; their gradients go to everyone.
class TableExchange {
 public:
  TableExchange(Tables& tables, Ticket& ticket) : tables_(tables), ticket_(ticket) {}

  /// The ticket has keys; afterwards it has requests.
  void ask();
  /// Per table; absent ones are not asked for.
  void rows(const Exec& exec, std::span<const Tensor> to);
  void apply(const Exec& exec, std::span<const Tensor> row_gradients, double lr, int64_t step,
             const Tensor& finite);

 private:
  using Requests = Ticket::Requests;
  using Segment = Requests::Segment;
  /// One message per rank in one buffer: where each begins.
  struct Messages {
    std::vector<int64_t> bytes;  // [ranks]
    int64_t total() const;
  };

  Table& table(size_t t) const { return tables_.table(static_cast<TableId>(t)); }
  const TableSpec& spec(size_t t) const { return table(t).spec(); }
  Requests& requests(size_t t) const { return ticket_.parts[t].requests; }
  size_t count() const { return static_cast<size_t>(tables_.count()); }
  int ranks() const { return tables_.plan().ranks; }
  bool owns(size_t t) const { return !table(t).share_of(tables_.rank()).empty(); }
  /// What rank `owner` has of the rows that this rank needs: found once, by ask().
  Segment find_segment(size_t t, int owner) const;
  const Segment& from_owner(size_t t, int owner) const {
    return requests(t).from[static_cast<size_t>(owner)];
  }
  /// Rows that the ranks before `rank` get from this one.
  int64_t served_before(size_t t, int rank) const;
  int64_t row_bytes(size_t t, int64_t columns, Wire wire) const;
  /// Whether the scores of a table's keys travel.
  bool has_scores(size_t t) const {
    return ticket_.mode == Mode::kTraining && table(t).keeps_scores();
  }
  int64_t own_columns(size_t t) const { return table(t).resident().weights.size(1); }

  /// What all ranks want of a table, one after the other.
  struct Asked {
    std::vector<int64_t> keys, uses, scores;
  };
  void add_requests(size_t t, const Asked& asked);
  Tensor request_slots(size_t t) const;
  Tensor distinct_slots(size_t t) const;
  void serve(const Exec& exec, size_t t, int64_t first, int64_t count, std::byte* to) const;
  Tensor exchange(const Exec& exec, const Tensor& send, const Messages& out,
                  const Messages& in) const;
  std::vector<Tensor> collect(const Exec& exec, const Tensor& received,
                              std::span<const Tensor> row_gradients) const;
  std::vector<Tensor> whole_row_squares(const Exec& exec, std::span<const Tensor> sums) const;

  Tables& tables_;
  Ticket& ticket_;
};

}  // namespace segue::sparse
