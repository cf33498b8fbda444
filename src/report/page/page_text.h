#pragma once

#include <string>

namespace segue::report {

/// A number that is not there.
inline constexpr const char* kNone = "–";
/// An AUC or entropy of labels that are all alike.
inline constexpr const char* kOneClass = "n/a (one class)";
/// A number as tables and headlines have it.
std::string fixed(double value, int digits);

}  // namespace segue::report
