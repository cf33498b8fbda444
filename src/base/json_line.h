#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace segue::base {

/// One JSON object on one line, keys in the order of the calls. Numbers read back as the same bits;
/// NaN and infinities, which JSON does not have, become null.
class JsonLine {
 public:
  JsonLine& add(std::string_view key, double value);
  JsonLine& add(std::string_view key, int64_t value);
  JsonLine& add(std::string_view key, bool value);
  JsonLine& add(std::string_view key, std::string_view value);
  JsonLine& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  JsonLine& add(std::string_view key, const JsonLine& object);
  JsonLine& add(std::string_view key, std::span<const int64_t> values);

  /// The object without a line end.
  std::string text() const { return "{" + members_ + "}"; }

 private:
  JsonLine& member(std::string_view key, std::string_view raw);

  std::string members_;
};

}  // namespace segue::base
