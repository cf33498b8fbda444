#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/checked_json.h"

namespace segue::report::detail {

/// Of files with a list of events. Error(kCorrupt) with `place`.
base::CheckedJson parse_trace_json(std::string_view text, const std::string& place);

/// A member in microseconds, as nanoseconds. Error(kCorrupt).
int64_t event_ns(const base::CheckedJson& event, const char* member);

}  // namespace segue::report::detail
