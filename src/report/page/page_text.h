#pragma once

#include <string>

namespace segue::report {

/// A number that is not there.
inline constexpr const char* kNone = "–";
/// A number as tables and headlines have it.
std::string fixed(double value, int digits);

}  // namespace segue::report
