#pragma once

#include <cmath>
#include <string>

#include <fmt/format.h>

namespace segue::report {

// Texts that several parts of a page are made of.

inline constexpr const char* kNone = "–";

inline std::string fixed(double value, int digits) {
  if (std::isnan(value)) return kNone;
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "not finite";
}

}  // namespace segue::report
