#pragma once

#include <string>
#include <vector>

#include "data/inspect/inspect.h"

namespace segue::data {

/// What whoever trains on a store should know of it, in sentences that say what to do: times of
/// another unit, events that enter no history, histories that pools keep short, events that are not
/// predicted for want of a history, labels of one class, events of one second. Empty: nothing
/// stands out.
std::vector<std::string> notes_about(const StoreSummary& summary, const LogSchema& schema);

// Two of them, which `segue prep` warns of, too; empty: nothing stands out.

/// Of events that enter no history.
std::string pools_note(int64_t in_no_pool, int64_t events);
/// Of labels of one class; `positive` of those that may be predicted are in the label's pool.
std::string label_note(int64_t positive, int64_t predicted, const LogSchema& schema);

}  // namespace segue::data
