#pragma once

#include <cstdint>
#include <string>

namespace segue::data {

/// What is odd about a log from `first` to `last`, in seconds since 1970 or since the log began;
/// empty: nothing. A unit that was mistaken shows: logs are days to decades long.
std::string doubt_times(int64_t first, int64_t last);

}  // namespace segue::data
