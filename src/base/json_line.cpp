#include "base/json_line.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace segue::base {

using Json = nlohmann::ordered_json;

std::string json_line(const Json& value) {
  if (value.is_number_float() && std::isfinite(value.get<double>())) {
    return fmt::format("{}", value.get<double>());  // 20, where dump() says 20.0
  }
  if (!value.is_structured()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string text;
  for (const auto& item : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += json_line(item.key()) + ": ";
    text += json_line(item.value());
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

}  // namespace segue::base
