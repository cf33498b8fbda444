#include "data/store/later_check.h"

#include <algorithm>

namespace segue::data {
namespace {

constexpr int64_t kMostWaiting = int64_t{1} << 26;  // events of a user: 3 GiB
constexpr int64_t kLastTime = int64_t{1} << 60;     // far from what overflows; no log has one

}  // namespace

LaterCheck::LaterCheck(const LogSchema& schema) : labels_(schema, kMostWaiting) {
  for (const LaterRule& rule : schema.later) {
    rules_.push_back({kind_bits(schema, rule.kinds), rule.within_seconds});
  }
}

int64_t LaterCheck::add(const Event& event) {
  stored_.push_back(event.outcomes);
  Event plain = event;
  plain.outcomes = 0;
  plain.time = std::clamp(event.time, int64_t{0}, kLastTime);
  labels_.add({&plain, 1}, decided_);
  compare();
  return wrong_;
}

int64_t LaterCheck::finish(int64_t last_time) {
  labels_.finish(decided_);
  compare();
  return wrong_ < 0 && earliest_time_ <= last_time ? earliest_ : wrong_;
}

void LaterCheck::compare() {
  for (const Event& e : decided_) {
    const uint8_t stored = stored_.front();
    stored_.pop_front();
    for (size_t r = 0; r < rules_.size(); ++r) {
      const bool has = (stored >> r & 1) != 0, follows = (e.outcomes >> r & 1) != 0;
      const bool possible = (rules_[r].kinds >> e.kind & 1) != 0;
      if ((follows && !has) || (has && !possible)) {
        if (wrong_ < 0) wrong_ = position_;
      } else if (has && !follows && e.time + rules_[r].within < earliest_time_) {
        earliest_ = position_;
        earliest_time_ = e.time + rules_[r].within;
      }
    }
    ++position_;
  }
  decided_.clear();
}

}  // namespace segue::data
