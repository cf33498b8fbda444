#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace segue::base {

/// JSON on one line, without a line end: keys in their order, a space behind commas and colons, so
/// that scripts find `"step": 20`. Numbers read back as the same bits; NaN and infinities, which
/// JSON does not have, become null; bytes that are no UTF-8 become U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

}  // namespace segue::base
