#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/propose/table_sample.h"

namespace segue::data {

constexpr const char* kFillIn = "FILL IN";

std::string as_toml(const std::string& text);
/// A list of texts, as TOML.
std::string list_of(const std::vector<std::string>& names);
/// `text` as a comment can have it: on one line, in UTF-8, of `longest` bytes at most.
std::string as_comment(std::string_view text, size_t longest = std::string::npos);
/// A few values, for comments.
std::string some_values(const ColumnSample& c);

double share(int64_t part, int64_t whole);  // 0 of nothing
std::string per_cent(double share);

/// Whether a value says that something happened, such as yes or 1, and not what.
bool is_yes(const std::string& value);
/// That it did not.
bool is_no(const std::string& value);

/// `name` with nothing but letters, digits and underscores.
std::string plain_letters(const std::string& name);
/// What a schema may call a pool that comes from a column or value of this name.
std::string plain_name(const std::string& name, std::set<std::string>& taken);

}  // namespace segue::data
