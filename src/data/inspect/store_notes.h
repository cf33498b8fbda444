#pragma once

#include <string>
#include <vector>

#include "data/inspect/inspect.h"

namespace segue::data {

/// What whoever trains on a store should know of it, in sentences that say what to do: times of
/// another unit, events that enter no history, histories that pools keep short, events that are not
/// predicted for want of a history, labels of one class. Empty: nothing stands out.
std::vector<std::string> notes_about(const StoreSummary& summary, const LogSchema& schema);

}  // namespace segue::data
