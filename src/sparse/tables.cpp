#include "sparse/tables.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"
#include "base/parallel.h"
#include "ops/initialize.h"
#include "ops/rows.h"
#include "sparse/table_exchange.h"

namespace segue::sparse {
namespace {

using base::fail_config;

constexpr int64_t kIdGrain = 1 << 16;  // ids per chunk of a scan

bool outside(int64_t id, int64_t rows) {
  return static_cast<uint64_t>(id) >= static_cast<uint64_t>(rows);  // negative ids are huge
}

struct Outside {
  int64_t count = 0;
  int64_t first = -1;  // position of the first one
};

Outside find_outside(std::span<const int64_t> ids, int64_t rows) {
  const auto n = static_cast<int64_t>(ids.size());
  std::vector<Outside> parts(static_cast<size_t>(base::num_chunks(n, kIdGrain)));
  base::parallel_for(n, kIdGrain, [&](int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) count += outside(ids[static_cast<size_t>(i)], rows);
    int64_t first = -1;
    for (int64_t i = begin; count > 0 && first < 0; ++i) {
      if (outside(ids[static_cast<size_t>(i)], rows)) first = i;
    }
    parts[static_cast<size_t>(begin / kIdGrain)] = {count, first};
  });
  Outside all;
  for (const Outside& part : parts) {
    if (all.first < 0) all.first = part.first;
    all.count += part.count;
  }
  return all;
}

[[noreturn]] void fail_outside(const Lookup& lookup, const TableConfig& table,
                               const Outside& found) {
  fail(ErrorCode::kOutOfRange,
       fmt::format("feature `{}` has id {}, but table `{}` has {} rows (ids 0 to {}); {} of {} "
                   "ids of this batch are outside. Correct the data, raise `rows` of the table, "
                   "or set `out_of_range` to \"clamp\" or \"zero\"",
                   lookup.feature, lookup.ids[static_cast<size_t>(found.first)], table.name,
                   table.rows, table.rows - 1, found.count, lookup.ids.size()));
}

/// Copies ids as they are dealt out, those outside the table made harmless: moved to the nearest
/// row, or -1.
void copy_ids(std::span<const int64_t> from, const RowDeal& deal, OutOfRange policy, int64_t* to) {
  base::parallel_for(static_cast<int64_t>(from.size()), kIdGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = from[static_cast<size_t>(i)];
      to[i] = policy == OutOfRange::kClamp ? std::clamp<int64_t>(id, 0, deal.rows - 1)
                                           : (outside(id, deal.rows) ? -1 : id);
      if (deal.parts > 1 && to[i] >= 0) to[i] = deal.dealt(to[i]);
    }
  });
}

/// Rows of a shard are scattered over the table: their numbers go along, some at a time.
void initialize_shard(const LocalShard& shard, const Tensor& weights, double bound, uint64_t seed,
                      std::string_view name) {
  constexpr int64_t kRows = 1 << 20;
  const int64_t rows = shard.rows();
  std::vector<int64_t> numbers;
  const Stream stream(weights.device);
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = std::min(kRows, rows - first);
    numbers.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      numbers[static_cast<size_t>(i)] = shard.deal.row_of(shard.part, first + i);
    }
    const Tensor here = host_view(std::span<int64_t>(numbers));
    Buffer there;
    Tensor placed = here;
    if (weights.device.is_cuda()) {
      there = Buffer(weights.device, here.bytes(), Purpose::kScratch);
      placed = Tensor(there.data(), DType::kI64, weights.device, {count});
      copy(placed, here, &stream);
      stream.synchronize();
    }
    ops::initialize_part(weights.rows(first, count), bound, seed, name, placed,
                         shard.columns.begin);
  }
}

}  // namespace

DType wire_type(Wire wire) {
  if (wire == Wire::kF32) return DType::kF32;
  return wire == Wire::kF16 ? DType::kF16 : DType::kBf16;
}

std::span<const int32_t> Ticket::inverse(int64_t lookup, int64_t count) const {
  const Place& first = lookups_[static_cast<size_t>(lookup)];
  int64_t size = 0;
  for (int64_t l = lookup; l < lookup + count; ++l) {
    const Place& p = lookups_[static_cast<size_t>(l)];
    SEGUE_ASSERT(p.table == first.table && p.at == first.at + size, "lookups of one table");
    size += p.size;
  }
  return parts_[first.table].inverse.span().subspan(static_cast<size_t>(first.at),
                                                    static_cast<size_t>(size));
}

Tensor Ticket::ids_for(const Exec& exec, TableId table) const {
  const HostArray<int64_t>& ids = part(table).values;
  if (exec.device.is_cpu()) return ids.tensor();
  const auto t = static_cast<size_t>(table);
  if (t < placed_ids_.size() && placed_ids_[t]) return placed_ids_[t];
  const Tensor there = exec.arena->tensor(DType::kI64, {ids.size()});
  copy(there, ids.tensor(), exec.stream);
  return there;
}

void describe(base::ConfigVisitor& v, TableConfig& c) {
  v.field("name", c.name, "name that features refer to");
  v.field("rows", c.rows, "number of rows; ids are 0 .. rows - 1");
  v.field("init_bound", c.init_bound, "initial values are uniform in +-bound; 0: 1 / sqrt(rows)");
  v.choice(
      "sharding", c.sharding, {"auto", "table", "row", "column", "table_row", "replicated"},
      "how ranks share it: as planned, whole on one, rows or columns dealt out, rows within one "
      "machine, a copy each");
  v.choice("placement", c.placement, {"auto", "device", "host"}, "which memory its rows lie in");
}

void describe(base::ConfigVisitor& v, TablesConfig& c) {
  v.list("tables", c.tables, "embedding tables");
  v.field("dim", c.dim, "width of every row");
  v.choice("out_of_range", c.out_of_range, {"error", "clamp", "zero"},
           "ids outside their table: stop, take the nearest row, or read zeros");
  v.choice("optimizer", c.optimizer, {"rowwise_adagrad", "adagrad", "sgd", "adam"},
           "how rows are updated");
  v.field("eps", c.eps, "added to the root in Adagrad and Adam");
  v.field("beta1", c.beta1, "Adam: decay of the first moment");
  v.field("beta2", c.beta2, "Adam: decay of the second moment");
  v.choice("forward_wire", c.forward_wire, {"f32", "bf16", "f16"},
           "rows are rounded as if they had travelled in this type");
  v.choice("backward_wire", c.backward_wire, {"f32", "bf16", "f16"},
           "row gradients are rounded as if they had travelled in this type");
  v.field("per_block_state", c.per_block_state,
          "row-wise Adagrad of tables cut by columns: one accumulator per block, as the reference");
}

void TablesConfig::validate() const {
  if (tables.empty()) fail_config("there are no embedding tables; add at least one to `tables`");
  constexpr int64_t kMostColumns = 1 << 16;
  if (dim <= 0 || dim > kMostColumns) {
    fail_config(fmt::format("`dim`, the width of table rows, must be between 1 and {}, not {}",
                            kMostColumns, dim));
  }
  if (!(eps >= 0) || !std::isfinite(eps)) {
    fail_config(fmt::format("`eps` of the table optimizer must be 0 or more, not {}", eps));
  }
  for (const auto& [name, beta] : {std::pair("beta1", beta1), std::pair("beta2", beta2)}) {
    if (!(beta >= 0 && beta < 1)) {
      fail_config(fmt::format("`{}` of the table optimizer must be in [0, 1), not {}", name, beta));
    }
  }
  constexpr int64_t kBytesPerValue = 8;
  const int64_t most_rows = std::numeric_limits<int64_t>::max() / kBytesPerValue / dim / 2;
  for (size_t i = 0; i < tables.size(); ++i) {
    const TableConfig& table = tables[i];
    if (table.name.empty()) fail_config(fmt::format("table {} of `tables` has no name", i));
    const auto same = [&](const TableConfig& other) { return other.name == table.name; };
    if (std::any_of(tables.begin(), tables.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      fail_config(fmt::format("two tables are called `{}`; features that share rows name one table",
                              table.name));
    }
    if (table.rows <= 0 || table.rows > most_rows) {
      fail_config(fmt::format("table `{}`: `rows` must be between 1 and {}, not {}", table.name,
                              most_rows, table.rows));
    }
    if (!(table.init_bound >= 0) || !std::isfinite(table.init_bound)) {
      fail_config(
          fmt::format("table `{}`: `init_bound` must be 0 (for 1 / sqrt(rows)) or more, not {}",
                      table.name, table.init_bound));
    }
  }
}

Tables::Tables(const TablesConfig& config, Device device, DType dtype, uint64_t seed)
    : Tables(config, ShardPlan::single(static_cast<int64_t>(config.tables.size())), {}, device,
             dtype, seed) {}

Tables::Tables(const TablesConfig& config, const ShardPlan& plan, TableGroups groups, Device device,
               DType dtype, uint64_t seed)
    : config_(config), plan_(plan), groups_(groups), dtype_(dtype) {
  config_.validate();
  SEGUE_ASSERT(dtype == DType::kF32 || dtype == DType::kF64, "tables are kept in float or double");
  SEGUE_ASSERT(plan_.tables.size() == config_.tables.size(), "a placement for every table");
  SEGUE_ASSERT(plan_.ranks == (alone() ? 1 : groups_.rows->size()) &&
                   (alone() || groups_.ids->size() == plan_.ranks),
               "the plan and the groups are of the same ranks");
  if (!alone()) rank_ = groups_.rows->rank();
  if (dtype == DType::kF64 &&
      (config_.forward_wire == Wire::kBf16 || config_.backward_wire == Wire::kBf16)) {
    fail(ErrorCode::kUnsupported, "tables in double precision have no bf16 wire; use f32 or f16");
  }
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (plan_.tables[t].tier == Tier::kHost) {
      fail(ErrorCode::kUnsupported,
           fmt::format("table `{}` is planned into host memory, which training cannot use yet. Use "
                       "more ranks, fewer rows, a smaller dim, or more device memory per rank",
                       config_.tables[t].name));
    }
    add_table(config_.tables[t], plan_.tables[t], device, dtype, seed);
  }
  out_of_range_.assign(tables_.size(), 0);
  work_.resize(tables_.size());
}

void Tables::add_table(const TableConfig& config, const TablePlacement& placement, Device device,
                       DType dtype, uint64_t seed) {
  Table table;
  table.config = config;
  table.shard = local_shard(placement, config.rows, config_.dim, rank_);
  const int64_t rows = table.shard.rows(), columns = table.shard.columns.width();
  const int64_t state_size = ops::row_state_size(config_.optimizer, columns);
  table.weight_memory = Buffer(device, rows * columns * size_of(dtype), Purpose::kTable);
  table.weights = Tensor(table.weight_memory.data(), dtype, device, {rows, columns});
  table.state_memory = Buffer(device, rows * state_size * size_of(dtype), Purpose::kOptimizer);
  table.state = Tensor(table.state_memory.data(), dtype, device, {rows, state_size});
  const double bound =
      config.init_bound > 0 ? config.init_bound : 1 / std::sqrt(static_cast<double>(config.rows));
  if (rows == config.rows && columns == config_.dim) {
    ops::initialize(table.weights, ops::Init::kUniform, bound, seed, config.name);
  } else {
    initialize_shard(table.shard, table.weights, bound, seed, config.name);
  }
  tables_.push_back(std::move(table));
}

TableId Tables::id(std::string_view name) const {
  std::vector<std::string> names;
  for (size_t t = 0; t < tables_.size(); ++t) {
    names.push_back(tables_[t].config.name);
    if (names.back() == name) return static_cast<TableId>(t);
  }
  const std::string nearest = base::nearest_name(name, names);
  std::string hint = nearest.empty() ? "known tables: " : "did you mean `" + nearest + "`?";
  if (nearest.empty()) {
    for (size_t t = 0; t < names.size(); ++t) hint += (t == 0 ? "`" : ", `") + names[t] + "`";
  }
  fail_config(fmt::format("there is no table `{}`; {}", name, hint));
}

Ticket Tables::begin(std::span<const Lookup> lookups, Ticket ticket) {
  // All checks come first: an error leaves the counts as they were. Lookups and tables are worked
  // on side by side rather than cut into pieces, because every start of threads costs.
  std::vector<Outside> outside(lookups.size());
  base::parallel_for(static_cast<int64_t>(lookups.size()), 1, [&](int64_t l, int64_t) {
    const Lookup& lookup = lookups[static_cast<size_t>(l)];
    SEGUE_ASSERT(static_cast<size_t>(lookup.table) < tables_.size(), "lookup in an unknown table");
    outside[static_cast<size_t>(l)] =
        find_outside(lookup.ids, tables_[static_cast<size_t>(lookup.table)].config.rows);
  });
  std::vector<int64_t> counts = out_of_range_;
  ticket.placed_ids_.clear();
  ticket.lookups_.resize(lookups.size());
  ticket.parts_.resize(tables_.size());
  std::vector<int64_t> ids_per_table(tables_.size(), 0);
  for (size_t l = 0; l < lookups.size(); ++l) {
    const Lookup& lookup = lookups[l];
    const auto t = static_cast<size_t>(lookup.table);
    if (outside[l].count > 0 && config_.out_of_range == OutOfRange::kError) {
      fail_outside(lookup, tables_[t].config, outside[l]);
    }
    counts[t] += outside[l].count;
    const auto size = static_cast<int64_t>(lookup.ids.size());
    ticket.lookups_[l] = {t, ids_per_table[t], size};
    ids_per_table[t] += size;
  }
  out_of_range_ = std::move(counts);

  // Features that share a table share its distinct rows.
  base::parallel_for(count(), 1, [&](int64_t table, int64_t) {
    const auto t = static_cast<size_t>(table);
    HostArray<int64_t>& ids = work_[t].ids;
    ids.resize(ids_per_table[t]);
    for (size_t l = 0; l < lookups.size(); ++l) {
      const Ticket::Place& place = ticket.lookups_[l];
      if (place.table != t) continue;
      copy_ids(lookups[l].ids, tables_[t].shard.deal, config_.out_of_range, ids.data() + place.at);
    }
    distinct(ids.span(), /*skip_negative=*/true, work_[t].scratch, ticket.parts_[t]);
  });
  if (!alone()) TableExchange(*this, ticket).ask();
  return ticket;
}

std::vector<Tensor> Tables::split(const Tensor& rows, const Ticket& ticket,
                                  std::span<const TableId> tables) const {
  std::vector<Tensor> parts(tables_.size());
  int64_t first = 0;
  for (const TableId table : tables) {
    const int64_t count = ticket.distinct_rows(table);
    parts[static_cast<size_t>(table)] = rows.rows(first, count);
    first += count;
  }
  SEGUE_ASSERT(first == rows.size(0), "as many rows as distinct ids");
  return parts;
}

Tensor Tables::rows(const Exec& exec, Ticket& ticket, std::span<const TableId> tables) const {
  int64_t count = 0;
  for (const TableId table : tables) count += ticket.distinct_rows(table);
  const Tensor to = exec.arena->tensor(dtype_, {count, config_.dim});
  const std::vector<Tensor> parts = split(to, ticket, tables);
  if (!alone()) {
    TableExchange(*this, ticket).rows(exec, parts);
    return to;
  }
  const Arena::Mark mark(*exec.arena);
  std::vector<ops::TableRows> gathers;
  for (const TableId table : tables) {
    gathers.push_back(
        {weights(table), ticket.ids_for(exec, table), parts[static_cast<size_t>(table)]});
  }
  ops::gather_tables(exec, gathers, wire_type(config_.forward_wire));
  return to;
}

void Tables::apply(const Exec& exec, Ticket& ticket, std::span<const TableId> tables,
                   const Tensor& row_gradients, double lr, int64_t step, const Tensor& finite) {
  SEGUE_ASSERT(row_gradients.rank == 2 && row_gradients.size(1) == config_.dim &&
                   row_gradients.dtype == dtype_,
               "one gradient per distinct row, in the type of the table");
  if (!alone()) {
    TableExchange(*this, ticket)
        .apply(exec, split(row_gradients, ticket, tables), lr, step, finite);
    return;
  }
  const Arena::Mark mark(*exec.arena);
  const std::vector<Tensor> parts = split(row_gradients, ticket, tables);
  std::vector<ops::TableUpdate> updates;
  for (const TableId table : tables) {
    updates.push_back({ticket.ids_for(exec, table), parts[static_cast<size_t>(table)],
                       weights(table), state(table)});
  }
  ops::update_tables(exec, update_params(lr, step), updates, wire_type(config_.backward_wire),
                     finite);
}

ops::RowUpdateParams Tables::update_params(double lr, int64_t step) const {
  ops::RowUpdateParams p;
  p.kind = config_.optimizer;
  p.lr = lr;
  p.eps = config_.eps;
  p.beta1 = config_.beta1;
  p.beta2 = config_.beta2;
  p.t = step;
  return p;
}

int64_t Tables::bytes() const {
  int64_t total = 0;
  for (const Table& table : tables_) {
    total += table.weight_memory.bytes() + table.state_memory.bytes();
  }
  return total;
}

}  // namespace segue::sparse
