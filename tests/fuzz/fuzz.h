#pragma once

// What the fuzz targets share (docs/fuzzing.md).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace segue::fuzz {

/// A promise of the code under test; broken, it is a finding.
inline void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: broken promise: %s\n", promise);
  std::abort();
}

/// What `parse` returns, or nothing when it refuses the input. Anything but a segue::Error that
/// says something is a finding: nobody catches it.
template <class Parse>
auto accepted(Parse parse) -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (const Error& error) {
    require(!std::string_view(error.what()).empty(), "an error says what is wrong");
    return std::nullopt;
  }
}

/// The same of something that returns nothing: whether it came to its end.
template <class Action>
bool accepted_all(Action action) {
  return accepted([&] {
           action();
           return true;
         })
      .has_value();
}

/// Reads `value`, though nobody wants to know it.
template <class T>
void touch(const T& value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

/// The input: a few bytes that choose how, then what is to be read.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : text_(reinterpret_cast<const char*>(data), size) {}

  /// Takes one byte from the front; 0 when there is none.
  uint8_t byte() {
    if (text_.empty()) return 0;
    const auto first = static_cast<uint8_t>(text_.front());
    text_.remove_prefix(1);
    return first;
  }
  /// Takes what stands before the next `separator`, and that; all, when there is none.
  std::string_view before(char separator) {
    const size_t end = std::min(text_.find(separator), text_.size());
    const std::string_view part = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    return part;
  }
  bool empty() const { return text_.empty(); }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace segue::fuzz

/// What libFuzzer, or replay_main.cpp, calls with every input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
