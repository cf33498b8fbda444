#include "data/store/windows.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"

namespace segue::data {
namespace {

constexpr int64_t kChunk = int64_t{1} << 20;  // anchors handled between two looks at memory
constexpr int64_t kWindowsForThreads = int64_t{1} << 20;
constexpr int64_t kMinBuffer = 512;  // anchors of a window that are written together, at least

enum Section : size_t { kFacts, kOffsets, kHighStarts, kLow };
enum Fact : size_t { kMinHistory, kWindowSeconds, kTimeMin, kTimeMax, kNumHigh, kNumFacts };

/// Largest upper half of an event's position.
int64_t upper_halves(int64_t num_events) { return num_events > 0 ? (num_events - 1) >> 32 : 0; }

/// What streams over the anchors.
class Builder {
 public:
  Builder(const EventStore& store, const Anchors& anchors, int64_t min_history, int64_t seconds,
          std::optional<int64_t> origin)
      : anchors_(anchors), seconds_(seconds), num_events_(store.num_events()) {
    find_time_range(origin);
    count_windows();
    facts_[kMinHistory] = min_history;
    facts_[kWindowSeconds] = seconds;
    facts_[kTimeMin] = t_min_;
    facts_[kTimeMax] = t_max_;
    facts_[kNumHigh] = num_high_;
  }

  void write(const std::string& path, uint64_t key, int64_t memory_bytes) {
    constexpr auto kWord = static_cast<int64_t>(sizeof(int64_t));
    const int64_t sizes[] = {kNumFacts * kWord, static_cast<int64_t>(offsets_.size()) * kWord,
                             static_cast<int64_t>(high_starts_.size()) * kWord,
                             count() * static_cast<int64_t>(sizeof(uint32_t))};
    IndexWriter writer(path, key, sizes);
    writer.write_items(kFacts, 0, std::span<const int64_t>(facts_));
    writer.write_items(kOffsets, 0, std::span<const int64_t>(offsets_));
    writer.write_items(kHighStarts, 0, std::span<const int64_t>(high_starts_));
    // Anchors are in user order, so every window grows at once: each has a buffer. If there are so
    // many windows that buffers would be tiny, the anchors are passed over several times.
    const int64_t room =
        std::max<int64_t>(1, memory_bytes / static_cast<int64_t>(sizeof(uint32_t)));
    const int64_t together =
        std::clamp<int64_t>(room / kMinBuffer, 1, std::max<int64_t>(1, num_windows_));
    const int64_t passes = base::num_chunks(num_windows_, together);
    BuildProgress progress("windows", count() * passes, "anchors");
    for (int64_t first = 0; first < num_windows_; first += together) {
      const int64_t end = std::min(num_windows_, first + together);
      scatter(writer, first, end, room / (end - first), progress);
    }
    writer.commit();
  }

 private:
  int64_t count() const { return static_cast<int64_t>(anchors_.positions.size()); }
  int64_t window_of(int64_t timestamp) const { return (timestamp - t_min_) / seconds_; }

  void find_time_range(std::optional<int64_t> origin) {
    if (count() == 0) return;
    t_min_ = std::numeric_limits<int64_t>::max();
    t_max_ = std::numeric_limits<int64_t>::min();
    std::mutex mutex;
    base::parallel_for(count(), kChunk, [&](int64_t begin, int64_t end) {
      const auto part =
          anchors_.timestamps.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      const auto [low, high] = std::ranges::minmax(part);
      forget(part);
      const std::lock_guard lock(mutex);
      t_min_ = std::min(t_min_, low);
      t_max_ = std::max(t_max_, high);
    });
    int64_t span = 0;
    if (origin) {
      if (__builtin_sub_overflow(t_min_, *origin, &span) || span < 0) {
        fail(ErrorCode::kCorrupt, fmt::format("{}: begins at {}, before the log does at {}",
                                              anchors_.timestamps_file, t_min_, *origin));
      }
      t_min_ -= span % seconds_;
    }
    if (__builtin_sub_overflow(t_max_, t_min_, &span) ||
        span / seconds_ >= WindowIndex::kMaxWindows) {
      fail(ErrorCode::kCorrupt, fmt::format("{}: times from {} to {} make too many windows of {} s",
                                            anchors_.timestamps_file, t_min_, t_max_, seconds_));
    }
    num_windows_ = span / seconds_ + 1;
  }

  /// One pass over both files: sizes of the windows, and whether the anchors are in order.
  void count_windows() {
    num_high_ = upper_halves(num_events_);
    offsets_.assign(static_cast<size_t>(num_windows_) + 1, 0);
    high_starts_.assign(static_cast<size_t>(num_windows_ * num_high_), 0);
    // Each thread counts for itself, unless that would take too much memory.
    const int64_t grain =
        num_windows_ <= kWindowsForThreads ? 16 * kChunk : std::max<int64_t>(1, count());
    std::mutex mutex;
    base::parallel_for(count(), grain, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> sizes(static_cast<size_t>(num_windows_), 0);
      std::vector<int64_t> high_starts(high_starts_.size(), 0);
      for (int64_t at = begin; at < end; at += kChunk) {
        count_chunk(at, std::min(end, at + kChunk), sizes, high_starts);
      }
      const std::lock_guard lock(mutex);
      for (size_t w = 0; w < sizes.size(); ++w) offsets_[w + 1] += sizes[w];
      for (size_t i = 0; i < high_starts.size(); ++i) high_starts_[i] += high_starts[i];
    });
    for (size_t w = 1; w < offsets_.size(); ++w) offsets_[w] += offsets_[w - 1];
  }

  void count_chunk(int64_t begin, int64_t end, std::vector<int64_t>& sizes,
                   std::vector<int64_t>& high_starts) const {
    int64_t last = begin > 0 ? anchors_.positions[static_cast<size_t>(begin) - 1] : -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t position = anchors_.positions[static_cast<size_t>(i)];
      if (position <= last || position >= num_events_) {
        fail(ErrorCode::kCorrupt,
             fmt::format("{}: anchor {} is event {}: not one of {} events in ascending order",
                         anchors_.positions_file, i, position, num_events_));
      }
      last = position;
      const int64_t w = window_of(anchors_.timestamps[static_cast<size_t>(i)]);
      if (w < 0 || w >= num_windows_) fail_changed();
      ++sizes[static_cast<size_t>(w)];
      for (int64_t h = position >> 32; h < num_high_; ++h) {
        ++high_starts[static_cast<size_t>(w * num_high_ + h)];
      }
    }
    forget_chunk(begin, end);
  }

  /// Writes windows [first, end), at most `buffer` anchors of one at a time.
  void scatter(const IndexWriter& writer, int64_t first, int64_t end, int64_t buffer,
               BuildProgress& progress) const {
    struct Window {
      int64_t next = 0;                        // place in the file of its next anchor
      size_t begin = 0, filled = 0, room = 0;  // of its buffer
    };
    std::vector<Window> windows;
    size_t total = 0;
    for (int64_t w = first; w < end; ++w) {
      const int64_t begin = offsets_[static_cast<size_t>(w)];
      const int64_t size = offsets_[static_cast<size_t>(w) + 1] - begin;
      windows.push_back({begin, total, 0, static_cast<size_t>(std::min(size, buffer))});
      total += windows.back().room;
    }
    std::vector<uint32_t> buffered(total);
    const auto flush = [&](Window& w) {
      writer.write_items(kLow, w.next,
                         std::span<const uint32_t>(buffered).subspan(w.begin, w.filled));
      w.next += static_cast<int64_t>(w.filled);
      w.filled = 0;
    };
    for (int64_t begin = 0; begin < count(); begin += kChunk) {
      const int64_t stop = std::min(count(), begin + kChunk);
      for (int64_t i = begin; i < stop; ++i) {
        const int64_t number = window_of(anchors_.timestamps[static_cast<size_t>(i)]);
        if (number < first || number >= end) continue;
        Window& w = windows[static_cast<size_t>(number - first)];
        if (w.room == 0) fail_changed();
        if (w.filled == w.room) flush(w);
        buffered[w.begin + w.filled++] =
            static_cast<uint32_t>(anchors_.positions[static_cast<size_t>(i)]);
      }
      forget_chunk(begin, stop);
      progress.add(stop - begin);
    }
    for (Window& w : windows) flush(w);
  }

  [[noreturn]] void fail_changed() const {
    fail(ErrorCode::kIo, fmt::format("{}: changed while it was read", anchors_.timestamps_file));
  }

  void forget_chunk(int64_t begin, int64_t end) const {
    const auto first = static_cast<size_t>(begin), n = static_cast<size_t>(end - begin);
    forget(anchors_.positions.subspan(first, n));
    forget(anchors_.timestamps.subspan(first, n));
  }

  const Anchors& anchors_;
  int64_t seconds_ = 1;
  int64_t num_events_ = 0, num_windows_ = 0, num_high_ = 0;
  int64_t t_min_ = 0, t_max_ = 0;
  std::vector<int64_t> offsets_, high_starts_;
  std::array<int64_t, kNumFacts> facts_{};
};

}  // namespace

WindowIndex WindowIndex::open_or_build(const EventStore& store, int64_t min_history,
                                       int64_t window_seconds, int64_t memory_bytes,
                                       std::optional<int64_t> origin) {
  if (window_seconds < 1) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("a window must be at least a second long, not {}", window_seconds));
  }
  const Anchors anchors = store.anchors(min_history);
  uint64_t key = store.fingerprint_of_file(anchors.positions_file, anchors.positions, 2);
  key = store.fingerprint_of_file(anchors.timestamps_file, anchors.timestamps, key);
  if (origin) key = fingerprint_of(std::span<const int64_t>(&*origin, 1), key);
  IndexFile file = data::open_or_build(
      store.index_folder(), fmt::format("windows_m{}_s{}.idx", min_history, window_seconds), key,
      [&](const std::string& path) {
        const std::string made_from[] = {anchors.positions_file, anchors.timestamps_file};
        store.require_intact(made_from);
        Builder(store, anchors, min_history, window_seconds, origin).write(path, key, memory_bytes);
      });
  return {std::move(file), store.num_events(), min_history, window_seconds};
}

WindowIndex::WindowIndex(IndexFile file, int64_t num_events, int64_t min_history,
                         int64_t window_seconds)
    : file_(std::move(file)),
      num_events_(num_events),
      offsets_(file_.section<int64_t>(kOffsets)),
      low_(file_.section<uint32_t>(kLow)),
      high_starts_(file_.section<int64_t>(kHighStarts)),
      num_high_(upper_halves(num_events)) {
  const std::span<const int64_t> facts = file_.section<int64_t>(kFacts);
  if (facts.size() != kNumFacts || facts[kMinHistory] != min_history ||
      facts[kWindowSeconds] != window_seconds || facts[kNumHigh] != num_high_) {
    file_.fail_senseless("it is of other windows");
  }
  if (offsets_.empty() || num_windows() > kMaxWindows || offsets_.front() != 0 ||
      offsets_.back() != static_cast<int64_t>(low_.size()) || !std::ranges::is_sorted(offsets_) ||
      static_cast<int64_t>(high_starts_.size()) != num_windows() * num_high_) {
    file_.fail_senseless("its offsets are wrong");
  }
  min_history_ = min_history;
  window_seconds_ = window_seconds;
  t_min_ = facts[kTimeMin];
  t_max_ = facts[kTimeMax];
  int64_t span = 0;
  if (num_windows() > 0 && (__builtin_sub_overflow(t_max_, t_min_, &span) || span < 0 ||
                            span / window_seconds != num_windows() - 1)) {
    file_.fail_senseless(fmt::format("times from {} to {} are not {} windows of {} s", t_min_,
                                     t_max_, num_windows(), window_seconds));
  }
}

void WindowIndex::read(int64_t window, std::vector<int64_t>& positions) const {
  SEGUE_ASSERT(window >= 0 && window < num_windows(), "no such window");
  const std::span<const uint32_t> low =
      low_.subspan(static_cast<size_t>(offsets_[static_cast<size_t>(window)]),
                   static_cast<size_t>(size(window)));
  positions.reserve(positions.size() + low.size());
  const auto* const high = high_starts_.data() + window * num_high_;
  size_t i = 0;
  int64_t last = -1;
  bool in_order = true;
  for (int64_t h = 0; h <= num_high_; ++h) {
    const size_t end =
        h < num_high_ ? std::min(static_cast<size_t>(high[h]), low.size()) : low.size();
    for (; i < end; ++i) {
      const int64_t position = h << 32 | low[i];
      in_order = in_order && position > last;
      positions.push_back(last = position);
    }
  }
  forget(low);
  // Positions that rise to less than the number of events are all events.
  if (!in_order || last >= num_events_) {
    file_.fail_senseless(fmt::format("anchors of window {} are not events in order", window));
  }
}

double UserSplit::hash(int64_t uid, uint64_t salt) {
  return static_cast<double>(base::splitmix64(static_cast<uint64_t>(uid) + salt) >> 11) * 0x1p-53;
}

}  // namespace segue::data
