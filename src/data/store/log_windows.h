#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/store/event_log.h"
#include "data/store/windows.h"

namespace segue::data {

/// The windows of a log: each piece has an index of its own, all count from the earliest anchor of
/// the log. Appending a segment changes no window but the last one, which may grow, and makes new
/// ones.
class LogWindows {
 public:
  /// Opens the indexes; those that are missing are made.
  LogWindows(const EventLog& log, int64_t min_history, int64_t window_seconds);

  int64_t num_windows() const { return num_windows_; }
  int64_t num_anchors() const { return size(0, num_windows_); }
  int64_t min_history() const { return pieces_[0].min_history(); }
  int64_t window_seconds() const { return pieces_[0].window_seconds(); }
  // Of anchors, not of events; 0 without any.
  int64_t t_min() const { return t_min_; }
  int64_t t_max() const { return t_max_; }
  int64_t start_time(int64_t window) const { return t_min_ + window * window_seconds(); }
  /// Windows that no later event can enter: those before the newest event's.
  int64_t num_closed() const;

  int64_t size(int64_t window) const { return size(window, window + 1); }
  /// Anchors of windows [first, end).
  int64_t size(int64_t first, int64_t end) const;

  /// Leaves some of a piece's anchors out, which come by their ascending positions there.
  using Keep = std::function<void(const EventStore& piece, std::vector<int64_t>& positions)>;
  /// The window's anchors by user, and of a user by time; checked as WindowIndex does.
  std::vector<int64_t> read(int64_t window, const Keep& keep = {}) const;

  const std::vector<WindowIndex>& pieces() const { return pieces_; }

 private:
  EventLog log_;
  std::vector<WindowIndex> pieces_;
  std::vector<int64_t> first_window_;  // of each piece
  int64_t num_windows_ = 0, t_min_ = 0, t_max_ = 0;
};

}  // namespace segue::data
