#include "sparse/tables.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/rows.h"
#include "sparse/table_exchange.h"

namespace segue::sparse {
namespace {

/// How often the batch uses each of a table's distinct rows.
void count_uses(std::span<const Lookup> lookups, const Ticket& ticket, size_t table,
                HostArray<int32_t>& uses) {
  std::ranges::fill(uses.span(), 0);
  for (size_t l = 0; l < lookups.size(); ++l) {
    if (static_cast<size_t>(lookups[l].table) != table) continue;
    const std::span<const int32_t> inverse = ticket.inverse(static_cast<int64_t>(l));
    if (lookups[l].uses.empty()) {
      for (const int32_t place : inverse) ++uses[place];
    } else {
      for (const int32_t id : lookups[l].uses) ++uses[inverse[static_cast<size_t>(id)]];
    }
  }
}

/// The largest score among a batch's uses of each of a table's distinct rows.
void find_scores(std::span<const Lookup> lookups, const Ticket& ticket, size_t table,
                 HostArray<int64_t>& scores) {
  std::ranges::fill(scores.span(), std::numeric_limits<int64_t>::min());
  for (size_t l = 0; l < lookups.size(); ++l) {
    const Lookup& lookup = lookups[l];
    if (static_cast<size_t>(lookup.table) != table) continue;
    const std::span<const int32_t> inverse = ticket.inverse(static_cast<int64_t>(l));
    for (size_t use = 0; use < lookup.scores.size(); ++use) {
      const size_t id = lookup.uses.empty() ? use : static_cast<size_t>(lookup.uses[use]);
      int64_t& score = scores[inverse[id]];
      score = std::max(score, lookup.scores[use]);
    }
  }
}

}  // namespace

Tables::Tables(const TablesConfig& config, Device device, DType dtype, uint64_t seed)
    : Tables(config, ShardPlan::single(static_cast<int64_t>(config.tables.size())), {}, device,
             dtype, seed) {}

Tables::Tables(const TablesConfig& config, const ShardPlan& plan, TableGroups groups, Device device,
               DType dtype, uint64_t seed, const MakeTable& make)
    : config_(config), plan_(plan), groups_(groups), device_(device), dtype_(dtype) {
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
  std::vector<TableSpec> specs;
  for (size_t t = 0; t < config_.tables.size(); ++t) {
    const TableConfig& table = config_.tables[t];
    specs.push_back({.config = table,
                     .dim = config_.dim_of(table),
                     .rows = config_.rows_of(table),
                     .optimizer = config_.optimizer_of(table),
                     .init_bound = config_.init_bound_of(table),
                     .per_block_state = config_.per_block_state,
                     .out_of_range = config_.out_of_range,
                     .placement = plan_.tables[t],
                     .ranks = plan_.ranks,
                     .rank = rank_,
                     .device = device,
                     .dtype = dtype,
                     .seed = seed,
                     .spill_folder = config_.spill_folder});
  }
  share_memory(specs);
  for (TableSpec& spec : specs) tables_.push_back(make(std::move(spec)));
  out_of_range_.assign(tables_.size(), 0);
  work_.resize(tables_.size());
}

/// A GPU maps memory that grows in pieces of kSmall: a table whose rows need less than one gains
/// nothing by growing, and shares.
void Tables::share_memory(std::span<TableSpec> specs) {
  constexpr int64_t kSmall = 2 << 20, kAlignment = 256;
  const auto aligned = [](int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::vector<RowBytes> at(specs.size());
  RowBytes all;
  for (size_t t = 0; t < specs.size(); ++t) {
    at[t] = all;
    const RowBytes rows = rows_on_device(specs[t]);
    if (rows.weights > kSmall || rows.state > kSmall) continue;
    all.weights += aligned(rows.weights);
    all.state += aligned(rows.state);
  }
  small_weights_ = Buffer(device_, all.weights, Purpose::kTable);
  small_state_ = Buffer(device_, all.state, Purpose::kOptimizer);
  for (size_t t = 0; t < specs.size(); ++t) {
    const int64_t weights_end = t + 1 < specs.size() ? at[t + 1].weights : all.weights;
    if (weights_end == at[t].weights) continue;  // it is large, or not here
    specs[t].weights = static_cast<std::byte*>(small_weights_.data()) + at[t].weights;
    specs[t].state = static_cast<std::byte*>(small_state_.data()) + at[t].state;
  }
}

std::vector<int64_t> Tables::lay_out(std::span<const Lookup> lookups, Mode mode, int64_t time,
                                     Ticket& ticket) const {
  ticket.mode = mode;
  ticket.tables = self_;
  ticket.staged = ticket.resolved = ticket.on_device = ticket.has_places = false;
  ticket.time = time;
  ticket.shared = !alone();
  ticket.lookups.resize(lookups.size());
  ticket.parts.resize(tables_.size());
  std::vector<int64_t> ids_per_table(tables_.size(), 0);
  for (size_t l = 0; l < lookups.size(); ++l) {
    const auto t = static_cast<size_t>(lookups[l].table);
    const int64_t size = lookups[l].count();
    ticket.lookups[l] = {lookups[l].table, ids_per_table[t], size};
    ids_per_table[t] += size;
  }
  return ids_per_table;
}

Ticket Tables::begin(std::span<const Lookup> lookups, Mode mode, Ticket ticket, int64_t time,
                     InverseAt inverse) {
  if (inverse == InverseAt::kDevice && can_begin_on_device(lookups) &&
      begin_on_device(lookups, mode, time, ticket)) {
    return ticket;
  }
  // All checks come first: an error leaves the counts as they were. Lookups and tables are worked
  // on side by side rather than cut into pieces, because every start of threads costs.
  std::vector<int64_t> outside(lookups.size());
  base::parallel_for(static_cast<int64_t>(lookups.size()), 1, [&](int64_t l, int64_t) {
    const Lookup& lookup = lookups[static_cast<size_t>(l)];
    SEGUE_ASSERT(static_cast<size_t>(lookup.table) < tables_.size(), "lookup in an unknown table");
    if (lookup.on_device) {
      fail(
          ErrorCode::kUnsupported,
          fmt::format("feature `{}` has its ids on a device, but table `{}` needs them on the host",
                      lookup.feature, table(lookup.table).spec().config.name));
    }
    outside[static_cast<size_t>(l)] = table(lookup.table).check(lookup);
    const bool scored = mode == Mode::kTraining && table(lookup.table).keeps_scores();
    if (scored && std::ssize(lookup.scores) != lookup.num_uses()) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("feature `{}` has {} ids and {} scores for them, but table `{}` forgets by "
                       "score and needs one for each",
                       lookup.feature, lookup.num_uses(), lookup.scores.size(),
                       table(lookup.table).spec().config.name));
    }
  });
  if (ticket.held) drop(ticket);
  const std::vector<int64_t> ids_per_table = lay_out(lookups, mode, time, ticket);
  for (size_t l = 0; l < lookups.size(); ++l) {
    out_of_range_[static_cast<size_t>(lookups[l].table)] += outside[l];
  }

  // Features that share a table share its distinct rows.
  base::parallel_for(count(), 1, [&](int64_t number, int64_t) {
    const auto t = static_cast<size_t>(number);
    HostArray<int64_t>& keys = work_[t].keys;
    keys.resize(ids_per_table[t]);
    for (size_t l = 0; l < lookups.size(); ++l) {
      if (static_cast<size_t>(lookups[l].table) != t) continue;
      tables_[t]->make_keys(lookups[l].ids, keys.data() + ticket.lookups[l].at);
    }
    Ticket::Part& part = ticket.parts[t];
    const bool skip_negative = !tables_[t]->has_negative_keys();
    distinct(keys.span(), skip_negative, work_[t].scratch, part.distinct);
    part.rows = part.distinct.values.size();
    part.placed_slots = part.slots = part.request_slots = {};
    if (tables_[t]->counts_uses()) {
      if (device_.is_cuda()) part.uses.set_memory(HostMemory::kPinned);
      part.uses.resize(part.rows);
      count_uses(lookups, ticket, t, part.uses);
    }
    if (mode == Mode::kTraining && tables_[t]->keeps_scores()) {
      if (device_.is_cuda()) part.scores.set_memory(HostMemory::kPinned);
      part.scores.resize(part.rows);
      find_scores(lookups, ticket, t, part.scores);
    }
  });
  if (alone()) {
    std::vector<TableId> tables = all();
    std::erase_if(tables, [this](TableId id) { return table(id).slots_are_keys(); });
    find_slots(tables, mode, ticket);
  } else {
    TableExchange(*this, ticket).ask();
  }
  ticket.held = true;
  return ticket;
}

void Tables::stage(Ticket& ticket, const Stream& copy_stream) {
  ticket.staged = true;
  bool moving = false;
  for (size_t t = 0; t < tables_.size(); ++t) {
    moving |= tables_[t]->stage(ticket.slots(static_cast<TableId>(t)), copy_stream);
  }
  if (moving) ticket.arrived.record(copy_stream);
  if (ticket.shared) ticket.block.send(copy_stream);
}

void Tables::make_ready(const Exec& exec, Ticket& ticket) {
  const Stream host(Device::cpu());
  const Stream& stream = exec.stream != nullptr ? *exec.stream : host;
  if (!ticket.staged) stage(ticket, stream);
  ticket.arrived.hold(stream);
  if (ticket.shared) ticket.placed = ticket.block.place(exec);
  if (ticket.resolved) return;
  resolve(exec, ticket);
  ticket.resolved = true;
}

/// Every table once per batch, also where this rank has no keys of it: tables count batches.
void Tables::resolve(const Exec& exec, Ticket& ticket) {
  const Arena::Mark mark(*exec.arena);
  std::vector<Table::LateBatch> by_device, by_host;
  for (const TableId id : all()) {
    if (!table(id).resolves_late()) continue;
    (table(id).resolves_on_host() ? by_host : by_device).push_back(late_batch(exec, ticket, id));
  }
  for (const auto* batches : {&by_device, &by_host}) {
    if (!batches->empty()) batches->front().table->resolve(exec, *batches);
  }
  if (!ticket.shared) return;
  for (const TableId id : all()) {
    if (!table(id).resolves_late()) continue;
    const Ticket::Part& part = ticket.part(id);
    ops::take(exec, part.slots, ticket.placed.tensor(part.requests.place), part.request_slots);
  }
}

/// Memory that it takes from the arena is the caller's to give back.
Table::LateBatch Tables::late_batch(const Exec& exec, Ticket& ticket, TableId id) const {
  Ticket::Part& part = ticket.part(id);
  const Ticket::Requests& requests = part.requests;
  KeyBatch batch{.mode = ticket.mode, .time = ticket.time};
  const bool on_host = table(id).resolves_on_host();
  const auto requested = [&](auto array) {
    return on_host ? host_view(ticket.block.span(array)) : ticket.placed.tensor(array);
  };
  if (ticket.shared) {
    batch.keys = requested(requests.distinct_slots);
  } else {
    batch.keys = on_host ? part.distinct.values.tensor() : keys_for(exec, ticket, id);
  }
  const auto where_keys_are = [&](const Tensor& values) {
    if (on_host || values.device == exec.device) return values;
    const Tensor there = exec.arena->tensor(values.dtype, {values.size(0)});
    copy(there, values, exec.stream);
    return there;
  };
  if (table(id).counts_uses()) {
    batch.uses = where_keys_are(ticket.shared ? requested(requests.uses) : part.uses.tensor());
  }
  if (table(id).keeps_scores() && ticket.mode == Mode::kTraining) {
    batch.scores =
        where_keys_are(ticket.shared ? requested(requests.scores) : part.scores.tensor());
  }
  const int64_t distinct = batch.keys.size(0);
  const int64_t asked = ticket.shared ? requests.place.count : 0;
  const int64_t bytes = (distinct + asked) * size_of(DType::kI64);
  if (part.memory.bytes() < bytes) {
    part.memory = Buffer(device_, bytes + bytes / 2, Purpose::kBatch);
  }
  const Tensor all(part.memory.data(), DType::kI64, device_, {distinct + asked});
  part.slots = all.narrow(0, 0, distinct);
  part.request_slots = ticket.shared ? all.narrow(0, distinct, asked) : Tensor{};
  return {tables_[static_cast<size_t>(id)].get(), batch, part.slots, &part.held};
}

/// Of the only rank, where ops can read them: slots, or the keys of a table that resolves late.
Tensor Tables::keys_for(const Exec& exec, const Ticket& ticket, TableId table) {
  const Ticket::Part& part = ticket.part(table);
  const Tensor here = part.distinct.values.tensor();
  if (exec.device.is_cpu()) return here;
  if (part.placed_slots) return part.placed_slots;
  const Tensor there = exec.arena->tensor(DType::kI64, {here.size(0)});
  copy(there, here, exec.stream);
  return there;
}

Tensor Tables::slots_for(const Exec& exec, const Ticket& ticket, TableId table) {
  const Ticket::Part& part = ticket.part(table);
  return part.slots ? part.slots : keys_for(exec, ticket, table);
}

void Tables::release(Ticket& ticket, const Stream& stream) {
  give_back(ticket, &stream);
  if (ticket.on_device) ticket.last_use.record(stream);
  if (ticket.shared) ticket.block.release(stream);
}

void Tables::give_back(Ticket& ticket, const Stream* last_use) {
  ticket.held = false;
  for (size_t t = 0; t < ticket.parts.size(); ++t) {
    const std::span<const int64_t> slots = tables_[t]->resolves_on_host()
                                               ? ticket.parts[t].held.slots.span()
                                               : ticket.slots(static_cast<TableId>(t));
    tables_[t]->release(slots, ticket.mode, last_use);
  }
}

std::vector<Tensor> Tables::split(const Tensor& rows, const Ticket& ticket,
                                  std::span<const TableId> tables) const {
  std::vector<Tensor> parts(tables_.size());
  int64_t first = 0;
  for (const TableId id : tables) {
    SEGUE_ASSERT(table(id).spec().dim == rows.size(1), "tables of one width in one call");
    const int64_t count = ticket.distinct_rows(id);
    parts[static_cast<size_t>(id)] = rows.rows(first, count);
    first += count;
  }
  SEGUE_ASSERT(first == rows.size(0), "as many rows as distinct ids");
  return parts;
}

Tensor Tables::rows(const Exec& exec, Ticket& ticket, std::span<const TableId> tables) {
  make_ready(exec, ticket);
  int64_t count = 0;
  for (const TableId id : tables) count += ticket.distinct_rows(id);
  const int64_t dim = tables.empty() ? config_.dim : table(tables.front()).spec().dim;
  const Tensor to = exec.arena->tensor(dtype_, {count, dim});
  const std::vector<Tensor> parts = split(to, ticket, tables);
  if (!alone()) {
    TableExchange(*this, ticket).rows(exec, parts);
    return to;
  }
  const Arena::Mark mark(*exec.arena);
  std::vector<ops::TableRows> gathers;
  for (const TableId id : tables) {
    gathers.push_back({table(id).resident().weights, slots_for(exec, ticket, id),
                       parts[static_cast<size_t>(id)]});
  }
  ops::gather_tables(exec, gathers, wire_type(config_.forward_wire));
  std::vector<ops::MissingRows> missing;
  for (const TableId id : tables) {
    if (table(id).resolves_late()) missing.push_back(missing_rows(exec, ticket, id));
    if (table(id).resolves_late()) missing.back().to = parts[static_cast<size_t>(id)];
  }
  fill_missing(exec, missing);
  return to;
}

ops::MissingRows Tables::missing_rows(const Exec& exec, const Ticket& ticket, TableId id) const {
  ops::MissingRows missing = table(id).missing_rows();
  missing.keys = keys_for(exec, ticket, id);
  missing.slots = slots_for(exec, ticket, id);
  return missing;
}

void Tables::fill_missing(const Exec& exec, std::span<const ops::MissingRows> rows) const {
  ops::initialize_missing_rows(exec, rows);
  for (const ops::MissingRows& of : rows) {
    ops::round_rows_to_wire(exec, wire_type(config_.forward_wire), of.to);
  }
}

void Tables::apply(const Exec& exec, Ticket& ticket, std::span<const TableId> tables,
                   const Tensor& row_gradients, double lr, int64_t step, const Tensor& finite) {
  SEGUE_ASSERT(ticket.mode == Mode::kTraining, "rows of an evaluation are not updated");
  SEGUE_ASSERT(row_gradients.rank == 2 && row_gradients.dtype == dtype_,
               "one gradient per distinct row, in the type of the table");
  make_ready(exec, ticket);
  const std::vector<Tensor> parts = split(row_gradients, ticket, tables);
  if (!alone()) {
    TableExchange(*this, ticket).apply(exec, parts, lr, step, finite);
    return;
  }
  const Arena::Mark mark(*exec.arena);
  struct Group {
    ops::RowOptimizer optimizer;
    std::vector<ops::TableUpdate> updates;
  };
  std::vector<Group> groups;
  for (const TableId id : tables) {
    const ops::RowOptimizer optimizer = table(id).spec().optimizer;
    auto group = std::ranges::find(groups, optimizer, &Group::optimizer);
    if (group == groups.end()) group = groups.insert(groups.end(), {optimizer, {}});
    const auto& [weights, state] = table(id).resident();
    group->updates.push_back(
        {slots_for(exec, ticket, id), parts[static_cast<size_t>(id)], weights, state});
  }
  for (const Group& group : groups) {
    ops::update_tables(exec, config_.update_params(group.optimizer, lr, step), group.updates,
                       wire_type(config_.backward_wire), finite);
  }
}

void Tables::load(
    const std::function<std::unique_ptr<SavedArrays>(const std::string& table)>& saved) {
  for (const std::unique_ptr<Table>& table : tables_)
    table->load(*saved(table->spec().config.name));
}

void Tables::mark_saved() {
  for (const std::unique_ptr<Table>& table : tables_) table->mark_saved();
}

int64_t Tables::bytes() const {
  int64_t total = 0;
  for (const std::unique_ptr<Table>& table : tables_) total += table->bytes();
  return total;
}

}  // namespace segue::sparse
