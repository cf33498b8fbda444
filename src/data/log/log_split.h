#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/log/log_schema.h"
#include "data/store/session_writer.h"
#include "data/store/store_writer.h"

namespace segue::data {

/// Which times train and which test: [train_start, train_end) and [test_start, test_end).
struct LogSplit {
  int64_t first_time = 0, last_time = 0;
  int64_t train_start = 0, train_end = 0, test_start = 0, test_end = 0;
  int64_t wait = 0;  // that labels take

  LogSplit(const LogSchema& schema, int64_t first, int64_t last);
  bool trains(const Event& e) const { return e.time >= train_start && e.time < train_end; }
  bool tests(const Event& e) const { return e.time >= test_start && e.time < test_end; }
  bool uses(const Event& e) const { return trains(e) || tests(e); }
  /// Also events that decide the labels of those that train.
  bool needs(const Event& e) const {
    return uses(e) || (e.time >= train_start && e.time <= train_end + wait);
  }
};

struct SplitCounts {
  int64_t train_events = 0, test_events = 0, sessions = 0, users = 0;
};

/// The text of split_meta.json.
std::string split_meta_json(const LogSchema& schema, const LogSplit& split,
                            const SplitCounts& counts);

/// Takes all events in store order; sends those that train to the store and, where wanted, sessions
/// and test events to their files. A test event counts only if its user has train events.
class SplitSink {
 public:
  SplitSink(const LogSchema& schema, const LogSplit& split, StoreWriter& store,
            SessionWriter* sessions);
  void add(std::span<const Event> events);
  SplitCounts finish();

 private:
  void add_train(const Event& e);
  void end_session();

  LogSplit split_;
  int64_t session_gap_;
  StoreWriter& store_;
  SessionWriter* sessions_;
  std::vector<Event> train_;      // of one call
  std::vector<Event> session_;    // kept only for `sessions_`
  int64_t user_ = -1, time_ = 0;  // of the last train event
  int64_t session_number_ = 0;
  SplitCounts counts_;
};

}  // namespace segue::data
