#include "data/sample/sample_stream.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"
#include "base/rng.h"
#include "data/inspect/time_span.h"
#include "data/synth/draw.h"

namespace segue::data {
namespace {

using base::fail_config;
using base::require_at_least;

}  // namespace
void describe(base::ConfigVisitor& v, StreamConfig& c) {
  v.field("min_history", c.min_history,
          "events that a user must have before one is predicted; -1: the store's history length");
  v.field("window_seconds", c.window_seconds, "length of a time window");
  v.field("start_window", c.start_window, "first window to train on");
  v.field("train_windows", c.train_windows,
          "windows to train on; -1: all before the held-out ones");
  v.choice("eval", c.eval, {"fixed", "next_window"},
           "evaluate on fixed windows, or on what comes next");
  v.field("eval_window", c.eval_window,
          "first held-out window; -1: the one after the training windows");
  v.field("eval_windows", c.eval_windows, "how many windows are evaluated on");
  v.field("train_share", c.train_share, "share of users to train on; the rest is evaluated on");
  v.field("split_salt", c.split_salt, "which users those are");
  v.field("shuffle_fraction", c.shuffle_fraction,
          "anchors are shuffled inside segments of this share of a window; 0: not at all");
  v.field("shuffle_seed", c.shuffle_seed, "seed of the shuffle");
  v.field("sort_by_time", c.sort_by_time, "order a window by time instead of by user");
  v.choice("incomplete", c.incomplete, {"train", "drop"},
           "the last, short batch of a window; the reference drops it");
}

void StreamConfig::validate() const {
  require_at_least("min_history", min_history, -1);
  require_at_least("window_seconds", window_seconds, 1);
  require_at_least("start_window", start_window, 0);
  if (train_windows < -1 || train_windows == 0)
    fail_config("train_windows must be -1 or at least 1");
  require_at_least("eval_window", eval_window, -1);
  require_at_least("eval_windows", eval_windows, 0);
  if (!(train_share > 0 && train_share <= 1)) fail_config("train_share must be in (0, 1]");
  require_at_least("batch_size", batch_size, 1);
  require_at_least("sample_events", sample_events, 0);
  if (!(shuffle_fraction >= 0)) fail_config("shuffle_fraction must not be negative");
}

SampleList::SampleList(std::span<const int64_t> positions, std::span<const int64_t> starts,
                       const StreamConfig& config, int rank, int world)
    : batch_size_(config.batch_size), rank_(rank), world_(world) {
  const bool one_each = starts.empty();
  num_samples_ = std::ssize(one_each ? positions : starts) - (one_each ? 0 : 1);
  if (config.incomplete == IncompleteBatches::kDrop) num_samples_ -= num_samples_ % batch_size_;
  num_batches_ = num_samples_ / batch_size_ + (num_samples_ % batch_size_ != 0);
  positions_.reserve(static_cast<size_t>(num_samples_ / world_ + num_batches_));
  if (!one_each) starts_.push_back(0);
  for (int64_t step = 0; step < num_samples_; step += batch_size_) {
    const int64_t end = std::min(step + batch_size_, num_samples_);
    for (int64_t i = step + rank_; i < end; i += world_) {
      const auto sample = static_cast<size_t>(i);
      if (one_each) {
        positions_.push_back(positions[sample]);
        continue;
      }
      for (int64_t k = starts[sample]; k < starts[sample + 1]; ++k) {
        positions_.push_back(positions[static_cast<size_t>(k)]);
      }
      starts_.push_back(std::ssize(positions_));
    }
  }
}

std::pair<size_t, size_t> SampleList::own_samples(int64_t b) const {
  SEGUE_ASSERT(b >= 0 && b < num_batches_, "no such batch");
  const int64_t own = starts_.empty() ? std::ssize(positions_) : std::ssize(starts_) - 1;
  const int64_t share = (batch_size_ - rank_ + world_ - 1) / world_;  // of a whole step
  const int64_t begin = std::min(b * share, own);
  return {static_cast<size_t>(begin), static_cast<size_t>(std::min(share, own - begin))};
}

std::span<const int64_t> SampleList::batch(int64_t b) const {
  const auto [first, count] = own_samples(b);
  if (starts_.empty()) return std::span(positions_).subspan(first, count);
  const auto begin = static_cast<size_t>(starts_[first]);
  return std::span(positions_).subspan(begin, static_cast<size_t>(starts_[first + count]) - begin);
}

std::span<const int64_t> SampleList::starts(int64_t b) const {
  if (starts_.empty()) return {};
  const auto [first, count] = own_samples(b);
  return std::span(starts_).subspan(first, count + 1);
}

int64_t SampleList::global_samples(int64_t b) const {
  return std::min(batch_size_, num_samples_ - b * batch_size_);
}

SampleStream::SampleStream(const EventStore& store, const StreamConfig& config, int rank, int world)
    : store_(store),
      config_(config),
      split_{config.train_share, static_cast<uint64_t>(config.split_salt)},
      rank_(rank),
      world_(world),
      log_(store),
      windows_((config.validate(), log_),
               config.min_history < 0 ? store.history_length() : config.min_history,
               config.window_seconds) {
  SEGUE_ASSERT(world >= 1 && rank >= 0 && rank < world, "no such rank");
  choose_windows();
  train_sizes_.assign(static_cast<size_t>(windows_.num_windows()), -1);
}

void SampleStream::choose_windows() {
  const int64_t windows = num_windows_ =
      config_.growing ? windows_.num_closed() : windows_.num_windows();
  first_ = config_.start_window;
  if (config_.growing && windows - config_.eval_windows <= first_) {
    end_ = eval_first_ = first_;  // nothing yet
    return;
  }
  const std::string doubt = windows > 0 ? doubt_times(windows_.t_min(), windows_.t_max()) : "";
  const std::string there_are =
      fmt::format("{} has {} windows of {} s{}", store_.folder(), windows, config_.window_seconds,
                  doubt.empty() ? "" : fmt::format(" ({})", doubt));
  if (windows == 0) {
    fail_config(
        fmt::format("{}: no event has {} earlier ones of its user, so there is nothing to train "
                    "on; lower min_history",
                    store_.folder(), windows_.min_history()));
  }
  const bool explicit_eval = config_.eval == EvalMode::kFixed && config_.eval_window >= 0;
  const int64_t eval_first = explicit_eval ? config_.eval_window : windows - config_.eval_windows;
  if (eval_first < 0 || config_.eval_windows > windows - eval_first) {
    fail_config(
        fmt::format("{}; {} from {} on cannot be held out; see window_seconds, eval_window and "
                    "eval_windows of data.stream",
                    there_are, config_.eval_windows, std::max<int64_t>(0, eval_first)));
  }
  if (first_ >= eval_first) {
    fail_config(
        fmt::format("{}; with {} held out from {} on none is left to train on from {}; see "
                    "window_seconds and eval_windows of data.stream",
                    there_are, config_.eval_windows, eval_first, first_));
  }
  end_ = eval_first;
  if (config_.train_windows > 0) {
    // More windows than there are is no mistake, but reaching into named held-out ones is.
    if (explicit_eval && config_.train_windows > eval_first - first_) {
      fail_config(
          fmt::format("training windows {} to {} reach into the held-out ones, which start at {}",
                      first_, first_ + (config_.train_windows - 1), eval_first));
    }
    end_ = first_ + std::min(config_.train_windows, eval_first - first_);
  }
  eval_first_ = explicit_eval ? eval_first : end_;
}

std::vector<int64_t> SampleStream::read(int64_t window, bool eval) const {
  if (!split_.active()) return windows_.read(window);
  return windows_.read(window, [&](const EventStore& piece, std::vector<int64_t>& positions) {
    keep_users(piece, eval, positions);
  });
}

void SampleStream::keep_users(const EventStore& piece, bool eval,
                              std::vector<int64_t>& positions) const {
  // Positions ascend, so users are walked through once.
  const std::span<const int64_t> users = piece.unique_users();
  size_t user = 0;
  int64_t end = 0;
  bool keep = false;
  std::erase_if(positions, [&](int64_t position) {
    if (position >= end) {
      const auto behind = [&](int64_t uid) {
        return position >= piece.user_end()[static_cast<size_t>(uid)];
      };
      while (behind(users[user])) ++user;
      end = piece.user_end()[static_cast<size_t>(users[user])];
      keep = split_.is_eval(users[user]) == eval;
    }
    return !keep;
  });
}

void SampleStream::sort_by_time(std::span<int64_t> positions) const {
  if (!config_.sort_by_time) return;
  std::vector<std::pair<int64_t, int64_t>> timed;
  timed.reserve(positions.size());
  for (const int64_t p : positions) timed.emplace_back(log_.at(p, &EventStore::timestamps), p);
  std::ranges::stable_sort(timed, {}, &std::pair<int64_t, int64_t>::first);  // else as they were
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = timed[i].second;
}

std::vector<int64_t> SampleStream::starts(std::span<const int64_t> positions) const {
  if (config_.sample_events == 0) return {};
  std::vector<int64_t> starts;
  UserEvents owner;
  EventLog::Place first;
  for (size_t i = 0; i < positions.size(); ++i) {
    const EventLog::Place at = log_.place(positions[i]);
    const bool goes_on = i > 0 && at.piece == first.piece && positions[i] > positions[i - 1] &&
                         at.position < owner.end &&
                         at.position - first.position < config_.sample_events;
    if (goes_on) continue;
    starts.push_back(static_cast<int64_t>(i));
    first = at;
    owner = log_.piece(at.piece).owner_of(at.position);
  }
  starts.push_back(std::ssize(positions));
  return starts;
}

/// Whole samples change places.
void SampleStream::shuffle_samples(std::vector<int64_t>& positions, int64_t number) const {
  const std::vector<int64_t> from = starts(positions);
  if (from.empty()) {
    return shuffle_window(positions, config_.shuffle_fraction, config_.shuffle_seed, number);
  }
  std::vector<int64_t> order(from.size() - 1), moved;
  std::iota(order.begin(), order.end(), 0);
  shuffle_window(order, config_.shuffle_fraction, config_.shuffle_seed, number);
  moved.reserve(positions.size());
  for (const int64_t sample : order) {
    const auto s = static_cast<size_t>(sample);
    moved.insert(moved.end(), positions.begin() + from[s], positions.begin() + from[s + 1]);
  }
  positions.swap(moved);
}

std::vector<int64_t> SampleStream::train_positions(int64_t window, int64_t epoch) const {
  SEGUE_ASSERT(window >= 0 && window < windows_.num_windows(), "no such window");
  std::vector<int64_t> positions = read(window, /*eval=*/false);
  sort_by_time(positions);
  shuffle_samples(positions, window + epoch * windows_.num_windows());
  return positions;
}

SampleList SampleStream::train_window(int64_t window, int64_t epoch) const {
  const std::vector<int64_t> positions = train_positions(window, epoch);
  return {positions, starts(positions), config_, rank_, world_};
}

std::vector<int64_t> SampleStream::eval_positions(int64_t after) const {
  const bool fixed = config_.eval == EvalMode::kFixed;
  const int64_t first = fixed ? eval_first_ : after + 1;
  const int64_t end = std::min(first + config_.eval_windows, num_windows_);
  std::vector<int64_t> all;
  for (int64_t window = first; window < end; ++window) {
    std::vector<int64_t> positions = read(window, /*eval=*/true);
    sort_by_time(positions);
    all.insert(all.end(), positions.begin(), positions.end());
  }
  return all;
}

SampleList SampleStream::evaluation(int64_t after) const {
  const std::vector<int64_t> positions = eval_positions(after);
  return {positions, starts(positions), config_, rank_, world_};
}

int64_t SampleStream::total_train_samples(int64_t start, int64_t count) const {
  const int64_t first = std::clamp<int64_t>(start, 0, windows_.num_windows());
  const int64_t end = std::clamp<int64_t>(start + count, first, windows_.num_windows());
  if (!split_.active() && config_.sample_events == 0) return windows_.size(first, end);
  const std::lock_guard lock(sizes_mutex_);
  int64_t total = 0;
  for (int64_t window = first; window < end; ++window) {
    int64_t& size = train_sizes_[static_cast<size_t>(window)];
    if (size < 0) {
      const std::vector<int64_t> positions = read(window, /*eval=*/false);
      size = config_.sample_events == 0 ? std::ssize(positions) : std::ssize(starts(positions)) - 1;
    }
    total += size;
  }
  return total;
}

int64_t shuffle_segment(int64_t n, double fraction) {
  if (fraction >= 1) return std::max<int64_t>(1, n);
  // Halves go to the even neighbour, as in the reference.
  return std::max<int64_t>(1, std::llrint(fraction * static_cast<double>(n)));
}

void shuffle_window(std::span<int64_t> positions, double fraction, int64_t seed, int64_t window) {
  if (fraction <= 0) return;
  const auto n = static_cast<int64_t>(positions.size());
  const int64_t segment = shuffle_segment(n, fraction);
  const uint64_t key = base::splitmix64(base::splitmix64(static_cast<uint64_t>(seed)) ^
                                        static_cast<uint64_t>(window));
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;  // numbers of the SplitMix64 sequence
  for (int64_t begin = 0; begin < n; begin += segment) {
    const int64_t size = std::min(segment, n - begin);
    for (int64_t i = size - 1; i > 0; --i) {
      const uint64_t bits = base::splitmix64(key + static_cast<uint64_t>(begin + i) * kGolden);
      const auto j = static_cast<int64_t>(scale_to(bits, static_cast<uint64_t>(i) + 1));
      std::swap(positions[static_cast<size_t>(begin + i)],
                positions[static_cast<size_t>(begin + j)]);
    }
  }
}

}  // namespace segue::data
