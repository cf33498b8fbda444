#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace segue::base {

// JSON that anybody may have written: a checksum in it says that it is as it was written, not by
// whom. Everything here throws Error(kCorrupt), without a path, but with the name of the member.

/// The largest count that anything is ever asked to hold: sums of a few of them fit 64 bits.
inline constexpr int64_t kMostCounted = int64_t{1} << 60;

using CheckedJson = nlohmann::ordered_json;

/// Nested no deeper than our own files, no more members in an object, every one of them once.
CheckedJson parse_checked(std::string_view text);

const CheckedJson& member_of(const CheckedJson& object, const char* name);
const CheckedJson& list_of(const CheckedJson& object, const char* name);
std::string text_of(const CheckedJson& object, const char* name);
bool flag_of(const CheckedJson& object, const char* name);
/// Of this range. nlohmann's own conversions take true, 1e300 and -1 as well.
int64_t whole_number(const CheckedJson& object, const char* name, int64_t least = 0,
                     int64_t most = kMostCounted);
/// nullopt where the object has no such member.
std::optional<int64_t> whole_number_if_any(const CheckedJson& object, const char* name,
                                           int64_t least = 0);
std::vector<int64_t> whole_numbers(const CheckedJson& object, const char* name, int64_t least = 0);
double real_number(const CheckedJson& object, const char* name,
                   double least = std::numeric_limits<double>::lowest());

}  // namespace segue::base
