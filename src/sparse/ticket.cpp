#include "sparse/ticket.h"

#include <utility>

#include "base/error.h"
#include "sparse/tables.h"

namespace segue::sparse {

Ticket::Ticket(Ticket&& other) noexcept : TicketParts(std::move(other)) { other.held = false; }

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this == &other) return *this;
  drop();
  TicketParts::operator=(std::move(other));
  other.held = false;
  return *this;
}

Ticket::~Ticket() { drop(); }

void Ticket::drop() noexcept {
  if (!held || resolved) return;
  const std::shared_ptr<Tables*> of = tables.lock();
  if (of == nullptr) return;
  try {
    (*of)->drop(*this);
  } catch (...) {  // for want of memory: what it holds stays held
  }
}

std::span<const int32_t> TicketParts::inverse(int64_t lookup) const {
  SEGUE_ASSERT(!on_device, "the inverse was left on the device");
  const auto& [table, at, size] = lookups[static_cast<size_t>(lookup)];
  return part(table).distinct.inverse.span().subspan(static_cast<size_t>(at),
                                                     static_cast<size_t>(size));
}

std::span<const int64_t> TicketParts::slots(TableId table) const {
  if (shared) return block.span(part(table).requests.distinct_slots);
  return part(table).distinct.values.span();
}

}  // namespace segue::sparse
