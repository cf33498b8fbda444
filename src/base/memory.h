#pragma once

#include <cstdint>
#include <optional>

namespace segue::base {

inline constexpr double kMib = 1 << 20, kGib = 1 << 30;  // bytes

/// Bytes of host memory that this process could still take without swapping: what the machine has
/// available, or less where its control group allows less. nullopt where the system does not tell.
std::optional<int64_t> available_memory();

}  // namespace segue::base
