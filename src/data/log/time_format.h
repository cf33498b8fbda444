#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace segue::data {

/// Seconds since 1970 of a time that is written as `format` says: %Y %y %m %d %b %a %H %I %p %M %S
/// %z as strptime has them, %% and any other characters as they are; blanks at the ends do not
/// count. Numbers may lack a leading zero where no digit follows. Without %z it is UTC. False for
/// anything else, and for days and hours that there are not.
bool parse_time(std::string_view text, std::string_view format, int64_t& seconds);

/// What is wrong with a format; empty: nothing.
std::string time_format_problem(std::string_view format);

}  // namespace segue::data
