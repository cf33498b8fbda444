#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace segue::data {

/// Seconds since 1970 of a time that is written as `format` says: %Y %y %m %d %H %I %M %S are
/// numbers, %b (or %B) and %a (or %A) English names, short or in full, %p is AM or PM, %z +01:00,
/// +0100, +01 or Z, %f digits of a fraction, %% and any other characters are as they are. A blank
/// stands for any number of them, and those at the ends do not count. Numbers may lack a leading
/// zero where no other number touches them. A fraction behind %S is cut off. Without %z it is UTC.
/// False for anything else, and for days and hours that there are not.
bool parse_time(std::string_view text, std::string_view format, int64_t& seconds);

/// What is wrong with a format; empty: nothing.
std::string time_format_problem(std::string_view format);

}  // namespace segue::data
