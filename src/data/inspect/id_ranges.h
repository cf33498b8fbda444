#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/store/event_log.h"
#include "data/store/event_store.h"

namespace segue::data {

/// The largest id that samples of a store have in a column: a static table needs one row more.
struct IdRange {
  std::string column, candidate_column;  // of the history or the sample; of candidates, or empty
  int64_t largest = 0;
  int64_t values = 1;  // more: columns are column_1 and on, with ids of one kind

  bool has(std::string_view name) const;  // a column of samples
};

/// Of users, items and attributes of both, from tables that a store keeps beside its events: no
/// event is read. A store that does not say how often its items occur (the reference's) has no
/// range of items; hashes have none either, they are cut to their tables.
std::vector<IdRange> id_ranges(const EventStore& store);

/// Which items occur in some piece of the log, by id; empty: a piece does not tell without a look
/// at its events.
std::vector<bool> items_that_occur(const EventLog& log);

}  // namespace segue::data
