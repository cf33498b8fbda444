#include "data/log/log_split.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace segue::data {
namespace {

constexpr int64_t kDay = 86400;
constexpr int64_t kMinute = 60;

/// A whole number where it is one, as the reference writes it.
nlohmann::ordered_json quotient(int64_t value, int64_t unit) {
  if (value % unit == 0) return value / unit;
  return static_cast<double>(value) / static_cast<double>(unit);
}

}  // namespace

LogSplit::LogSplit(const LogSchema& schema, int64_t first, int64_t last)
    : first_time(first), last_time(last) {
  const bool everything = schema.test_seconds == 0 && schema.gap_seconds == 0;
  test_end = everything ? last + 1 : last;
  test_start = test_end - schema.test_seconds;
  wait = schema.longest_wait();
  train_end = std::min(test_start - schema.gap_seconds, last + 1 - wait);
  train_start = schema.train_days == 0 ? first : train_end - schema.train_days * kDay;
}

std::string split_meta_json(const LogSchema& schema, const LogSplit& split,
                            const SplitCounts& counts) {
  nlohmann::ordered_json j;
  j["size"] = schema.label;
  j["t_min"] = split.first_time;
  j["t_max"] = split.last_time;
  j["train_start"] = split.train_start;
  j["train_end"] = split.train_end;
  j["test_start"] = split.test_start;
  j["test_end"] = split.test_end;
  j["train_days"] = schema.train_days;
  j["gap_minutes"] = quotient(schema.gap_seconds, kMinute);
  j["test_days"] = quotient(schema.test_seconds, kDay);
  j["session_gap_seconds"] = schema.session_gap_seconds;
  j["num_train_events"] = counts.train_events;
  j["num_test_events"] = counts.test_events;
  j["num_sessions"] = counts.sessions;
  j["num_users"] = counts.users;
  return j.dump(2);
}

SplitSink::SplitSink(const LogSchema& schema, const LogSplit& split, StoreWriter& store,
                     SessionWriter* sessions)
    : split_(split), session_gap_(schema.session_gap_seconds), store_(store), sessions_(sessions) {}

void SplitSink::add(std::span<const Event> events) {
  train_.clear();
  for (const Event& e : events) {
    if (split_.trains(e)) {
      add_train(e);
    } else if (split_.tests(e) && e.user == user_) {
      // Train comes before test, so a user's train events have been seen by now.
      ++counts_.test_events;
      if (sessions_ != nullptr) sessions_->add_test(e);
    }
  }
  store_.add(train_);
}

void SplitSink::add_train(const Event& e) {
  const bool new_user = e.user != user_;
  if (new_user || e.time - time_ > session_gap_) {
    end_session();
    session_number_ = new_user ? 0 : session_number_ + 1;
    ++counts_.sessions;
  }
  user_ = e.user;
  time_ = e.time;
  train_.push_back(e);
  if (sessions_ == nullptr) return;
  session_.push_back(e);
  session_.back().set_numbers({});  // which last for one call only
}

void SplitSink::end_session() {
  if (!session_.empty()) sessions_->add_session(session_number_, session_);
  session_.clear();
}

SplitCounts SplitSink::finish() {
  end_session();
  counts_.train_events = store_.num_events();
  counts_.users = store_.num_users();
  return counts_;
}

}  // namespace segue::data
