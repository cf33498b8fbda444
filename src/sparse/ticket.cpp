#include "sparse/ticket.h"

#include <utility>

#include "base/error.h"

namespace segue::sparse {

std::span<const int32_t> Ticket::inverse(int64_t lookup) const {
  SEGUE_ASSERT(!on_device, "the inverse was left on the device");
  const auto& [table, at, size] = lookups[static_cast<size_t>(lookup)];
  return part(table).distinct.inverse.span().subspan(static_cast<size_t>(at),
                                                     static_cast<size_t>(size));
}

std::span<const int64_t> Ticket::slots(TableId table) const {
  if (shared) return block.span(part(table).requests.distinct_slots);
  return part(table).distinct.values.span();
}

}  // namespace segue::sparse
