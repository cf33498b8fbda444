#pragma once

#include <cstdint>
#include <string_view>

namespace segue::data {

/// Seconds since 1970 of "2026-01-31", "2026-01-31 23:59", "2026-01-31T23:59:59.123Z" or
/// "2026-01-31T23:59:59+02:00"; fractions are cut off, without a zone it is UTC. False for anything
/// else, and for days and hours that there are not.
bool parse_iso_time(std::string_view text, int64_t& seconds);

}  // namespace segue::data
