#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace segue::base {

struct ConfigSources;

// What validate() of a config struct asks of single values. `key` is how the user writes it.

[[noreturn]] void fail_config(const std::string& message);  // Error(kConfig)
void require_at_least(const char* key, int64_t value, int64_t least);
/// A number of things in memory; with the largest one a size that follows must not overflow.
void require_size(const char* key, int64_t value, int64_t most, int64_t least = 1);
void require_number(const char* key, double value);  // finite, not negative
void require_between(const char* key, double value, double least, double most);  // ends included
void require_share(const char* key, double value);                               // in [0, 1)

/// Whether sources give anything to a top-level key: tells kinds of files apart.
bool has_key(const ConfigSources& sources, std::string_view key);

}  // namespace segue::base
