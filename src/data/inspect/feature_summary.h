#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/inspect/inspect.h"
#include "data/store/event_store.h"

namespace segue::data {

/// A number of events over the whole log.
struct NumberSummary {
  std::string name;
  bool outcome = false;
  int64_t events = 0, missing = 0;
  double min = 0, max = 0;  // 0 where all are missing, as the rest
  double mean = 0, deviation = 0;
  double log_mean = 0, log_deviation = 0;  // of sign(x) log(1 + |x|)
};
/// Reads the columns once. Depends on no order of threads.
std::vector<NumberSummary> summarize_numbers(const EventStore& store);

/// Attributes of users: shares are those of users with events, and of events.
std::vector<AttributeSummary> summarize_user_attributes(const EventStore& store);

}  // namespace segue::data
