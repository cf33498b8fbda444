#include "data/store/log_windows.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/error.h"

namespace segue::data {

LogWindows::LogWindows(const EventLog& log, int64_t min_history, int64_t window_seconds)
    : log_(log) {
  std::optional<int64_t> origin;  // known from the first piece with an anchor on
  for (size_t p = 0; p < log_.num_pieces(); ++p) {
    pieces_.push_back(WindowIndex::open_or_build(log_.piece(p), min_history, window_seconds,
                                                 WindowIndex::kBuildBytes, origin));
    const WindowIndex& index = pieces_.back();
    first_window_.push_back(0);
    if (index.num_windows() == 0) continue;
    if (!origin) origin = t_min_ = index.t_min();
    first_window_.back() = (index.t_min() - t_min_) / window_seconds;
    num_windows_ = std::max(num_windows_, first_window_.back() + index.num_windows());
    t_max_ = index.t_max();
    if (num_windows_ > WindowIndex::kMaxWindows) index.file().fail_senseless("too many windows");
  }
}

int64_t LogWindows::num_closed() const {
  int64_t span = 0;  // what comes is later than the newest event by a second at least
  if (__builtin_sub_overflow(log_.last_time(), t_min_, &span)) return 0;
  const int64_t seconds = window_seconds();
  return std::clamp<int64_t>(span / seconds + (span % seconds == seconds - 1), 0, num_windows_);
}

int64_t LogWindows::size(int64_t first, int64_t end) const {
  int64_t anchors = 0;
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const int64_t windows = pieces_[p].num_windows();
    const int64_t from = std::clamp<int64_t>(first - first_window_[p], 0, windows);
    const int64_t to = std::clamp<int64_t>(end - first_window_[p], from, windows);
    anchors += pieces_[p].size(from, to);
  }
  return anchors;
}

std::vector<int64_t> LogWindows::read(int64_t window, const Keep& keep) const {
  SEGUE_ASSERT(window >= 0 && window < num_windows_, "no such window");
  const auto earlier_user = [this](int64_t a, int64_t b) {
    return log_.at(a, &EventStore::users) < log_.at(b, &EventStore::users);
  };
  std::vector<int64_t> all, found, merged;
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const int64_t own = window - first_window_[p];
    if (own < 0 || own >= pieces_[p].num_windows()) continue;
    found.clear();
    pieces_[p].read(own, found);
    if (keep) keep(log_.piece(p), found);
    if (found.empty()) continue;
    for (int64_t& position : found) position += log_.first(p);
    if (all.empty()) {
      all.swap(found);
      continue;
    }
    merged.clear();
    std::ranges::merge(all, found, std::back_inserter(merged), earlier_user);
    all.swap(merged);
  }
  return all;
}

}  // namespace segue::data
