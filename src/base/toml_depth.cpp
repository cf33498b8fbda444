#include "base/toml_depth.h"

#include <algorithm>
#include <string>

namespace segue::base {
namespace {

/// Place behind the string that begins at `begin`, or behind the text where it has no end.
size_t end_of_string(std::string_view text, size_t begin) {
  const char quote = text[begin];
  const std::string closing(text.substr(begin).starts_with(std::string(3, quote)) ? 3 : 1, quote);
  size_t at = begin + closing.size();
  for (; at < text.size(); ++at) {
    if (text.substr(at).starts_with(closing)) return at + closing.size();
    if (text[at] == '\\' && quote == '"') ++at;
    if (at < text.size() && text[at] == '\n' && closing.size() == 1) break;  // left to the parser
  }
  return std::min(at, text.size());
}

}  // namespace

int64_t line_of_deep_key(std::string_view text) {
  constexpr std::string_view kNotInKeys = "=,[]{}\n";
  int parts = 1;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = end_of_string(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (kNotInKeys.find(c) != std::string_view::npos) parts = 1;
    if (c == '.' && ++parts > kMostKeyParts)
      return 1 + std::ranges::count(text.substr(0, at), '\n');
    ++at;
  }
  return 0;
}

}  // namespace segue::base
