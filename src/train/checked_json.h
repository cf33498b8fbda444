#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace segue::train {

// JSON that anybody may have written: a checksum in it says that it is as it was written, not by
// whom. Objects are looked up by name, so their order does not matter. Everything here throws
// Error(kCorrupt), without a path, or what nlohmann throws.

/// The largest count that anything is ever asked to hold: sums of a few of them fit 64 bits.
inline constexpr int64_t kMostCounted = int64_t{1} << 60;

/// Nested no deeper than our own files, every key once.
nlohmann::json parse_checked(std::string_view text);

/// A whole number of this range. nlohmann's own conversions take true, 1e300 and -1 as well.
int64_t whole_number(const nlohmann::json& value, int64_t least = 0, int64_t most = kMostCounted);
std::vector<int64_t> whole_numbers(const nlohmann::json& list);
double real_number(const nlohmann::json& value,
                   double least = std::numeric_limits<double>::lowest());

/// `object[name]`, which must be a list.
const nlohmann::json& list_in(const nlohmann::json& object, const char* name);

}  // namespace segue::train
