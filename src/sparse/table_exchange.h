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
  TableExchange(const Tables& tables, Ticket& ticket) : tables_(tables), ticket_(ticket) {}

  void ask();
  /// Per table; absent ones are not asked for.
  void rows(const Exec& exec, std::span<const Tensor> to);
  void apply(const Exec& exec, std::span<const Tensor> row_gradients, double lr, int64_t step,
             const Tensor& finite);

 private:
  using Segment = Ticket::Shared::Segment;
  /// One message per rank in one buffer: where each begins.
  struct Messages {
    std::vector<int64_t> bytes;  // [ranks]
    int64_t total() const;
  };

  const TablePlacement& placement(size_t t) const { return tables_.plan_.tables[t]; }
  bool replicated(size_t t) const { return placement(t).sharding == Sharding::kReplicated; }
  int ranks() const { return tables_.plan_.ranks; }
  /// What rank `owner` has of the rows that this rank needs: found once, by ask().
  Segment find_segment(size_t t, int owner) const;
  const Segment& from_owner(size_t t, int owner) const {
    return ticket_.shared_[t].from[static_cast<size_t>(owner)];
  }
  int64_t row_bytes(size_t t, int64_t columns, Wire wire) const;
  int64_t own_columns(size_t t) const { return tables_.tables_[t].shard.columns.width(); }
  int64_t total_served(size_t t) const;

  void serve(const Exec& exec, size_t t, int64_t first, int64_t count, std::byte* to) const;
  Tensor exchange(const Exec& exec, const Tensor& send, const Messages& out,
                  const Messages& in) const;
  std::vector<Tensor> collect(const Exec& exec, const Tensor& received,
                              std::span<const Tensor> row_gradients) const;
  std::vector<Tensor> whole_row_squares(const Exec& exec, std::span<const Tensor> sums) const;

  const Tables& tables_;
  Ticket& ticket_;
};

}  // namespace segue::sparse
