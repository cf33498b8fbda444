#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace segue::data {

/// What one user did with one value: an item, or the value of an attribute.
struct UserValueTally {
  int32_t user = 0, value = 0;
  uint32_t positive = 0, all = 0;
};

inline constexpr int kMostTasteGroups = 64;

/// Puts values that the same users like better than others do, and dislike alike, into one group. A
/// user has a taste for each group, normal around what the user and the value have anyway; a value
/// goes where what its users did is most likely. Values move one by one, those of most users first,
/// for a few passes, with a randomness that ends; groups that nobody needs stay empty. Equal
/// arguments give equal groups.
///
/// `tallies` come by value, and of a value by user. `groups` has the group of each value from 1 on,
/// or 0: none, because too few users know it. What it has before is where the passes start.
void find_taste_groups(std::span<const UserValueTally> tallies, std::span<uint8_t> groups);

}  // namespace segue::data
