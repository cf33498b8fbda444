#include "sparse/ticket.h"

#include <utility>

#include "base/error.h"

namespace segue::sparse {

std::span<const int32_t> Ticket::inverse(int64_t lookup, int64_t count) const {
  const LookupPlace& first = lookups[static_cast<size_t>(lookup)];
  int64_t size = 0;
  for (int64_t l = lookup; l < lookup + count; ++l) {
    const LookupPlace& place = lookups[static_cast<size_t>(l)];
    SEGUE_ASSERT(place.table == first.table && place.at == first.at + size, "lookups of one table");
    size += place.size;
  }
  return part(first.table)
      .distinct.inverse.span()
      .subspan(static_cast<size_t>(first.at), static_cast<size_t>(size));
}

std::span<const int64_t> Ticket::slots(TableId table) const {
  if (shared) return block.span(part(table).requests.distinct_slots);
  return part(table).distinct.values.span();
}

}  // namespace segue::sparse
