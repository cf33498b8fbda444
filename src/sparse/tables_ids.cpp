// What Tables does with ids that stay on a GPU, and with a row for each id.

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/id_rows.h"
#include "sparse/tables.h"

namespace segue::sparse {
namespace {

constexpr int64_t kIdGrain = 1 << 16;

void copy_ids(std::span<const int64_t> from, int64_t* to) {
  base::parallel_for(std::ssize(from), kIdGrain, [&](int64_t begin, int64_t end) {
    std::copy(from.data() + begin, from.data() + end, to + begin);
  });
}

}  // namespace

std::vector<TableId> Tables::all() const {
  std::vector<TableId> ids(tables_.size());
  for (size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<TableId>(t);
  return ids;
}

bool Tables::can_begin_on_device(std::span<const Lookup> lookups) const {
  return alone() && device_.is_cuda() && std::ranges::all_of(lookups, [&](const Lookup& lookup) {
           return lookup.uses.empty() && table(lookup.table).ids_are_keys();
         });
}

/// Tables in their order, and the lookups of a table in theirs. Ids that lie so on the device
/// already stay where they are.
Tensor Tables::send_ids(std::span<const Lookup> lookups, const std::vector<int64_t>& ids_per_table,
                        Ticket& ticket, const Stream& stream) const {
  std::vector<int64_t> first(ids_per_table.size() + 1, 0);
  std::partial_sum(ids_per_table.begin(), ids_per_table.end(), first.begin() + 1);
  const auto place = [&](size_t l) {
    return first[static_cast<size_t>(lookups[l].table)] + ticket.lookups[l].at;
  };
  const auto* begin =
      lookups.empty() ? nullptr : static_cast<const int64_t*>(lookups[0].on_device.data);
  bool in_place = begin != nullptr, on_host = false;
  for (size_t l = 0; l < lookups.size(); ++l) {
    in_place = in_place && lookups[l].on_device && lookups[l].on_device.data == begin + place(l);
    on_host = on_host || !lookups[l].on_device;
  }
  const int64_t n = first.back();
  if (in_place) return {lookups[0].on_device.data, DType::kI64, device_, {n}};
  const Tensor to = ticket.dedup.input(n, device_);
  ticket.ids.set_memory(HostMemory::kPinned);
  if (on_host) ticket.ids.resize(n);
  for (size_t l = 0; l < lookups.size(); ++l) {
    if (!lookups[l].on_device) copy_ids(lookups[l].ids, ticket.ids.data() + place(l));
  }
  if (on_host) copy(to, ticket.ids.tensor(), &stream);
  for (size_t l = 0; l < lookups.size(); ++l) {
    if (!lookups[l].on_device) continue;
    copy(to.narrow(0, place(l), lookups[l].count()), lookups[l].on_device, &stream);
  }
  return to;
}

bool Tables::begin_on_device(std::span<const Lookup> lookups, Mode mode, int64_t time,
                             Ticket& ticket) {
  if (ticket.held) drop(ticket);
  const std::vector<int64_t> ids_per_table = lay_out(lookups, mode, time, ticket);
  std::vector<IdPart> parts(tables_.size());
  for (size_t t = 0; t < parts.size(); ++t) {
    const TableSpec& spec = tables_[t]->spec();
    const bool late = tables_[t]->resolves_late();
    parts[t].count = ids_per_table[t];
    if (parts[t].count == 0) continue;
    // Where any id is legal, most lie where those of batches before did.
    parts[t].range = late ? work_[t].range : IdRange{0, spec.config.rows - 1};
    const bool clamps = !late && spec.out_of_range == OutOfRange::kClamp;
    parts[t].outside = clamps ? OutsideIds::kClamp : OutsideIds::kSkip;
  }
  if (!DeviceDedup::fits(parts)) return false;
  // Short kernels, beside the long ones of a step.
  if (!id_stream_) id_stream_ = std::make_unique<Stream>(device_, Priority::kAhead);
  ticket.last_use.hold(*id_stream_);
  const Tensor ids = send_ids(lookups, ids_per_table, ticket, *id_stream_);
  for (bool again = true; again;) {
    ticket.found = ticket.dedup.find(ids, parts, *id_stream_);
    again = false;
    for (size_t t = 0; t < parts.size(); ++t) {
      const DeviceDedup::PartFound found = ticket.dedup.part(t);
      if (found.outside == 0 || !tables_[t]->resolves_late()) continue;
      parts[t].range = work_[t].range = found.range;
      again = true;
    }
    if (again && !DeviceDedup::fits(parts)) return false;
  }
  for (size_t l = 0; l < lookups.size(); ++l) {
    const Table& of = table(lookups[l].table);
    if (of.resolves_late() || of.spec().out_of_range != OutOfRange::kError) continue;
    if (ticket.dedup.part(static_cast<size_t>(lookups[l].table)).outside == 0) continue;
    // The host says which.
    Lookup lookup = lookups[l];
    std::vector<int64_t> back(static_cast<size_t>(lookup.count()));
    if (lookup.on_device) copy(host_view(std::span<int64_t>(back)), lookup.on_device, nullptr);
    if (lookup.on_device) lookup.ids = back;
    of.check(lookup);
  }
  for (size_t t = 0; t < parts.size(); ++t) {
    const DeviceDedup::PartFound found = ticket.dedup.part(t);
    if (!tables_[t]->resolves_late()) out_of_range_[t] += found.outside;
    Ticket::Part& part = ticket.parts[t];
    part.rows = found.count;
    part.distinct.values.resize(0);
    part.placed_slots = ticket.found.values.narrow(0, found.first, found.count);
    part.slots = part.request_slots = {};
  }
  find_slots_by_host(mode, ticket);
  ticket.on_device = ticket.held = true;
  return true;
}

/// Of tables that keep account of slots on the host: keys come, slots take their places.
void Tables::find_slots_by_host(Mode mode, Ticket& ticket) {
  std::vector<TableId> tables = all();
  std::erase_if(tables, [this](TableId id) { return table(id).slots_are_keys(); });
  if (tables.empty()) return;
  for (const TableId id : tables) {
    Ticket::Part& part = ticket.part(id);
    part.distinct.values.set_memory(HostMemory::kPinned);
    part.distinct.values.resize(part.rows);
    copy(part.distinct.values.tensor(), part.placed_slots, id_stream_.get());
  }
  id_stream_->synchronize();
  find_slots(tables, mode, ticket);
  for (const TableId id : tables) {
    Ticket::Part& part = ticket.part(id);
    copy(part.placed_slots, part.distinct.values.tensor(), id_stream_.get());
  }
  id_stream_->synchronize();
}

/// Side by side; a single one has all threads.
void Tables::find_slots(std::span<const TableId> tables, Mode mode, Ticket& ticket) {
  base::parallel_for(std::ssize(tables), 1, [&](int64_t i, int64_t) {
    const TableId id = tables[static_cast<size_t>(i)];
    Ticket::Part& part = ticket.part(id);
    table(id).find_slots(part.distinct.values.span(), mode);
    table(id).look_ahead(part.distinct.values.span(), part.held);
  });
}

Tables::Places Tables::places(const Exec& exec, Ticket& ticket) const {
  if (ticket.on_device) {
    return {ticket.found.inverse, {{ticket.found.places, ticket.found.order}, ticket.found.starts}};
  }
  HostArray<int32_t>& to = ticket.all_places;
  const auto made = [&] {
    if (exec.device.is_cpu()) return Places{to.tensor(), {}};
    return Places{{ticket.places_memory.data(), DType::kI32, exec.device, {to.size()}}, {}};
  };
  if (ticket.has_places) return made();
  ticket.has_places = true;
  ticket.places_sent.synchronize();  // those of an earlier batch
  if (exec.device.is_cuda()) to.set_memory(HostMemory::kPinned);
  to.resize(0);
  int64_t first = 0;
  for (const Ticket::Part& part : ticket.parts) {
    const std::span<const int32_t> inverse = part.distinct.inverse.span();
    const int64_t at = to.size();
    to.resize(at + std::ssize(inverse));
    base::parallel_for(std::ssize(inverse), kIdGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t place = inverse[static_cast<size_t>(i)];
        to[at + i] = place < 0 ? place : place + static_cast<int32_t>(first);
      }
    });
    first += part.rows;
  }
  if (exec.device.is_cpu()) return made();
  const int64_t bytes = to.size() * size_of(DType::kI32);
  if (ticket.places_memory.bytes() < bytes) {
    ticket.places_memory = Buffer(exec.device, bytes + bytes / 2, Purpose::kBatch);
  }
  copy(made().inverse, to.tensor(), exec.stream);
  ticket.places_sent.record(*exec.stream);
  return made();
}

Tensor Tables::rows_of_ids(const Exec& exec, Ticket& ticket) {
  SEGUE_ASSERT(alone(), "rows of ids are for one rank");
  make_ready(exec, ticket);
  const std::vector<TableId> tables = all();
  std::vector<int64_t> ids_per_table(tables_.size(), 0);
  for (const Ticket::LookupPlace& l : ticket.lookups) {
    ids_per_table[static_cast<size_t>(l.table)] += l.size;
  }
  const int64_t ids = std::accumulate(ids_per_table.begin(), ids_per_table.end(), int64_t{0});
  const Tensor to = exec.arena->tensor(dtype_, {ids, table(tables.front()).spec().dim});
  const Arena::Mark mark(*exec.arena);
  const Tensor inverse = places(exec, ticket).inverse;
  std::vector<ops::IdRows> gathers;
  std::vector<ops::MissingRows> missing;
  int64_t at = 0, first = 0;
  for (const TableId id : tables) {
    const int64_t n = ids_per_table[static_cast<size_t>(id)];
    const Tensor part = to.rows(at, n), of = inverse.narrow(0, at, n);
    const Tensor slots = slots_for(exec, ticket, id);
    gathers.push_back({table(id).resident().weights, slots, of, first, part});
    if (table(id).resolves_late()) {
      missing.push_back(missing_rows(exec, ticket, id));
      missing.back().to = part;
      missing.back().of = of;
      missing.back().first = first;
    }
    at += n;
    first += ticket.distinct_rows(id);
  }
  ops::gather_id_rows(exec, gathers, wire_type(config_.forward_wire));
  fill_missing(exec, missing);
  return to;
}

void Tables::apply_to_ids(const Exec& exec, Ticket& ticket, const Tensor& gradients, double lr,
                          int64_t step, const Tensor& finite) {
  SEGUE_ASSERT(alone(), "gradients of ids are for one rank");
  const std::vector<TableId> tables = all();
  const Arena::Mark mark(*exec.arena);
  const auto [inverse, order] = places(exec, ticket);
  const ops::RowOptimizer optimizer = table(tables.front()).spec().optimizer;
  const bool alike = std::ranges::all_of(
      tables, [&](TableId id) { return table(id).spec().optimizer == optimizer; });
  if (!alike) {
    int64_t rows = 0;
    for (const TableId id : tables) rows += ticket.distinct_rows(id);
    const Tensor sums = exec.arena->tensor(dtype_, {rows, gradients.size(1)});
    zero(sums, exec.stream);
    ops::segment_sum(exec, gradients, inverse, sums, 1, order.sorted);
    apply(exec, ticket, tables, sums, lr, step, finite);
    return;
  }
  SEGUE_ASSERT(ticket.mode == Mode::kTraining, "rows of an evaluation are not updated");
  make_ready(exec, ticket);
  std::vector<ops::TableUpdate> updates;
  for (const TableId id : tables) {
    const auto& [weights, state] = table(id).resident();
    updates.push_back({slots_for(exec, ticket, id), {}, weights, state});
  }
  ops::update_tables_by_sums(exec, config_.update_params(optimizer, lr, step), gradients, inverse,
                             order, updates, wire_type(config_.backward_wire), finite);
}

}  // namespace segue::sparse
