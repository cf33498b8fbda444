#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <span>
#include <tuple>

namespace segue::data {

/// One row of an event log after its schema has been applied: ids are dense integers, time is in
/// seconds.
struct Event {
  int64_t user = 0;
  int64_t time = 0;
  int64_t item = 0;
  float value =
      kNoValue;  // strength, e.g. per cent of a track played; kNoValue where the log has none
  int32_t length = -1;  // seconds of the item; -1 where the log has none
  uint8_t kind = 0;     // number of the kind in the schema
  int8_t organic = 0;
  uint8_t outcomes = 0;  // what later events say of it, see LaterLabels; no part of its identity
  uint8_t num_numbers = 0;
  /// The schema's numbers, NaN where one is missing; whoever made the event keeps them.
  const float* first_number = nullptr;

  static constexpr float kNoValue = -1.f;
  bool has_value() const { return value >= 0; }
  std::span<const float> numbers() const { return {first_number, num_numbers}; }
  void set_numbers(std::span<const float> kept) {
    first_number = kept.data();
    num_numbers = static_cast<uint8_t>(kept.size());
  }

  /// Total order of a store: the same rows in any file order give the same bytes.
  auto key() const { return std::tuple(user, time, kind, item, organic, value, length); }
  friend bool operator<(const Event& a, const Event& b) {
    if (a.key() != b.key()) return a.key() < b.key();
    return std::ranges::lexicographical_compare(a.numbers(), b.numbers(), {}, bits, bits);
  }
  /// In everything that a store keeps of its row.
  bool is_same(const Event& other) const {
    return key() == other.key() && std::ranges::equal(numbers(), other.numbers(), {}, bits, bits);
  }

 private:
  /// Numbers go by their bits: any order will do, and missing ones have a place in it.
  static uint32_t bits(float number) { return std::bit_cast<uint32_t>(number); }
};
static_assert(sizeof(Event) == 48);

}  // namespace segue::data
