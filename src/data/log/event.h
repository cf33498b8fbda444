#pragma once

#include <compare>
#include <cstdint>
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

  static constexpr float kNoValue = -1.f;
  bool has_value() const { return value >= 0; }

  /// Total order of a store: the same rows in any file order give the same bytes.
  auto key() const { return std::tuple(user, time, kind, item, organic, value, length); }
  friend bool operator<(const Event& a, const Event& b) { return a.key() < b.key(); }
};
static_assert(sizeof(Event) == 40);

}  // namespace segue::data
