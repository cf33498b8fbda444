#include "base/json_line.h"

#include <cmath>

#include <fmt/format.h>

namespace segue::base {
namespace {

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

JsonLine& JsonLine::member(std::string_view key, std::string_view raw) {
  if (!members_.empty()) members_ += ", ";
  members_ += fmt::format("{}: {}", quote(key), raw);
  return *this;
}

JsonLine& JsonLine::add(std::string_view key, double value) {
  return member(key, std::isfinite(value) ? fmt::format("{}", value) : "null");
}
JsonLine& JsonLine::add(std::string_view key, int64_t value) {
  return member(key, std::to_string(value));
}
JsonLine& JsonLine::add(std::string_view key, bool value) {
  return member(key, value ? "true" : "false");
}
JsonLine& JsonLine::add(std::string_view key, std::string_view value) {
  return member(key, quote(value));
}
JsonLine& JsonLine::add(std::string_view key, const JsonLine& object) {
  return member(key, object.text());
}
JsonLine& JsonLine::add(std::string_view key, std::span<const int64_t> values) {
  return member(key, fmt::format("[{}]", fmt::join(values, ", ")));
}

}  // namespace segue::base
