#pragma once

#include <cstdint>
#include <string_view>

namespace segue::base {

/// Most parts of a dotted key (`a.b.c` has three), far beyond any config.
inline constexpr int kMostKeyParts = 16;

/// The line of the first key with more parts, 0 if there is none: to be asked before toml++ reads a
/// text. It bounds how deep values nest, but not how many parts a key has, and each is a table
/// inside the one before. Whoever walks over such a tree, its destructor included, goes one call
/// deeper per part, until the stack ends.
int64_t line_of_deep_key(std::string_view text);

}  // namespace segue::base
