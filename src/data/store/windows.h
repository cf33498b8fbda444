#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/store/event_store.h"
#include "data/store/index_file.h"

namespace segue::data {

/// Anchors by time. Window w holds the anchors with a timestamp in
///     [t_min + w * seconds, t_min + (w + 1) * seconds),   t_min = the earliest anchor
/// (of a segment: the beginning of the log's window that has it), by their event positions,
/// ascending, which is user after user. Reading a window is reading one slice of a file: anchor
/// lists of billions need not be scanned again for every window.
class WindowIndex {
 public:
  static constexpr int64_t kBuildBytes = int64_t{256} << 20;
  static constexpr int64_t kMaxWindows = int64_t{1} << 25;

  /// Opens windows_m<min_history>_s<seconds>.idx of the store's index folder; makes it first when
  /// it is missing, damaged or of other anchors, using about `memory_bytes`. Windows of a segment
  /// begin where those that count from `origin`, the t_min of the log, do.
  static WindowIndex open_or_build(const EventStore& store, int64_t min_history,
                                   int64_t window_seconds, int64_t memory_bytes = kBuildBytes,
                                   std::optional<int64_t> origin = std::nullopt);

  int64_t num_windows() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t num_anchors() const { return offsets_.back(); }
  int64_t min_history() const { return min_history_; }
  int64_t window_seconds() const { return window_seconds_; }
  // Of anchors, not of events; 0 without any.
  int64_t t_min() const { return t_min_; }
  int64_t t_max() const { return t_max_; }
  int64_t start_time(int64_t window) const { return t_min_ + window * window_seconds_; }

  int64_t size(int64_t window) const {
    const auto w = static_cast<size_t>(window);
    return offsets_[w + 1] - offsets_[w];
  }
  /// Anchors of windows [first, end).
  int64_t size(int64_t first, int64_t end) const {
    return offsets_[static_cast<size_t>(end)] - offsets_[static_cast<size_t>(first)];
  }
  /// Appends the event positions of the window's anchors. They are checked: each is an event of the
  /// store, behind the one before it. Error(kCorrupt) otherwise.
  void read(int64_t window, std::vector<int64_t>& positions) const;
  const std::string& path() const { return file_.path(); }
  const IndexFile& file() const { return file_; }

 private:
  WindowIndex(IndexFile file, int64_t num_events, int64_t min_history, int64_t window_seconds);

  IndexFile file_;
  int64_t num_events_ = 0;
  int64_t min_history_ = 0, window_seconds_ = 0, t_min_ = 0, t_max_ = 0;
  std::span<const int64_t> offsets_;  // [windows + 1]
  // Positions rise inside a window, so their upper halves change a few times only:
  std::span<const uint32_t> low_;         // [anchors]: lower 32 bits
  std::span<const int64_t> high_starts_;  // [windows, num_high_]: anchors before upper half h + 1
  int64_t num_high_ = 0;
};

/// Which users are held out: a pure function of user and salt.
struct UserSplit {
  double train_share = 1;  // 1: no user is held out
  uint64_t salt = 0;

  bool active() const { return train_share < 1; }
  static double hash(int64_t uid, uint64_t salt);  // uniform in [0, 1)
  bool is_eval(int64_t uid) const { return hash(uid, salt) >= train_share; }
};

}  // namespace segue::data
