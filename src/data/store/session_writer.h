#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/file_io.h"
#include "data/log/event.h"

namespace segue::data {

/// Writes train_sessions.parquet, session_index.parquet and test_events.parquet of a store.
class SessionWriter {
 public:
  virtual ~SessionWriter() = default;
  /// A whole session of one user; by user, then by number (from 0).
  virtual void add_session(int64_t session, std::span<const Event> events) = 0;
  virtual void add_test(const Event& event) = 0;
  virtual std::vector<base::FileRecord> finish() = 0;
};

}  // namespace segue::data
