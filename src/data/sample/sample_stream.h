#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/config.h"
#include "data/store/event_store.h"
#include "data/store/log_windows.h"

namespace segue::data {

enum class EvalMode { kFixed, kNextWindow };
enum class IncompleteBatches { kTrain, kDrop };

/// Which anchors are trained on in which order, and which are held out.
struct StreamConfig {
  int64_t min_history = -1;  // events of the user before an anchor; -1: the store's history length
  int64_t window_seconds = 86400;
  int64_t start_window = 0;
  int64_t train_windows = -1;  // -1: all before the held-out ones; more than there are: as many
  EvalMode eval = EvalMode::kFixed;
  int64_t eval_window =
      -1;  // fixed: the first one held out; -1: the one after the training windows
  int64_t eval_windows = 1;
  double train_share = 1;  // of the users; the others are only evaluated on, and only they
  int64_t split_salt = 0;
  int64_t batch_size = 1024;  // samples of one step, over all ranks
  double shuffle_fraction = 0;
  int64_t shuffle_seed = 0;
  bool sort_by_time = false;
  IncompleteBatches incomplete = IncompleteBatches::kTrain;
  bool growing = false;  // the log has not ended: windows that may still grow are not there
  /// Above 0: a sample has all anchors of a user in a window, or as many of them in a row as lie
  /// among so many events. 0: a sample has one anchor.
  int64_t sample_events = 0;

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, StreamConfig& c);

/// A place in the training stream: the batch that comes next.
struct StreamPosition {
  int64_t window = 0;
  int64_t batch = 0;
  friend bool operator==(const StreamPosition&, const StreamPosition&) = default;
};

/// The samples of one training window or one evaluation, as one rank sees them. The global list is
/// cut into steps of batch_size samples, whatever the number of ranks; rank r takes elements r,
/// r + world, ... of a step. So every rank has the same number of batches, and ranks differ by at
/// most one sample in a step (and may have none). The last step may be short, unless incomplete
/// batches are dropped as the reference does.
class SampleList {
 public:
  SampleList() = default;
  /// `positions` are the events of all ranks in order. Sample i has those from starts[i] up to
  /// starts[i + 1]; no starts: one each.
  SampleList(std::span<const int64_t> positions, std::span<const int64_t> starts,
             const StreamConfig& config, int rank, int world);

  int64_t num_samples() const { return num_samples_; }  // of all ranks, dropped ones not counted
  int64_t num_batches() const { return num_batches_; }
  /// This rank's anchors of a batch, by event position.
  std::span<const int64_t> batch(int64_t b) const;
  /// Where its samples begin among them, counted from the first of `starts`, and their end; empty:
  /// one anchor each.
  std::span<const int64_t> starts(int64_t b) const;
  /// Samples of a batch over all ranks.
  int64_t global_samples(int64_t b) const;
  /// Number in the global batch of this rank's i-th sample.
  int64_t sample_index(int64_t i) const { return rank_ + i * world_; }

 private:
  /// This rank's samples of batch b: the first, and how many.
  std::pair<size_t, size_t> own_samples(int64_t b) const;

  std::vector<int64_t> positions_;  // of this rank
  std::vector<int64_t> starts_;     // likewise; empty: one anchor each
  int64_t num_samples_ = 0, num_batches_ = 0;
  int64_t batch_size_ = 1, rank_ = 0, world_ = 1;
};

/// The order in which a rank sees anchors: windows in time order; inside a window by event
/// position, or by time, or shuffled. A pure function of (store, config, rank, world): any window
/// can be asked for at any time, from any thread.
class SampleStream {
 public:
  /// Opens the window index, which is made the first time. The store must live longer.
  /// Error(kConfig) when the windows that are asked for do not exist or training would reach into
  /// those held out.
  SampleStream(const EventStore& store, const StreamConfig& config, int rank = 0, int world = 1);

  // Training windows are [first_window(), end_window()).
  int64_t first_window() const { return first_; }
  int64_t end_window() const { return end_; }
  StreamPosition start() const { return {first_, 0}; }
  /// Windows come again in later epochs, shuffled anew.
  SampleList train_window(int64_t window, int64_t epoch = 0) const;

  /// What is evaluated after (or while) training window `after`. With fixed windows `after` does
  /// not matter; otherwise it is the windows behind it. Several windows make one list.
  SampleList evaluation(int64_t after = -1) const;

  /// Samples of training windows [start, start + count), without held-out users. The whole range by
  /// default: the length of an epoch, wherever a run was resumed.
  int64_t total_train_samples(int64_t start, int64_t count) const;
  int64_t total_train_samples() const { return total_train_samples(first_, end_ - first_); }

  /// Global lists, by event position.
  std::vector<int64_t> train_positions(int64_t window, int64_t epoch = 0) const;
  std::vector<int64_t> eval_positions(int64_t after = -1) const;
  /// Where samples begin among anchors, and their end: each has the next ones of a user in a row
  /// (StreamConfig::sample_events). Empty: one each.
  std::vector<int64_t> starts(std::span<const int64_t> positions) const;

  /// Whether samples of a user are trained on, or evaluated on only.
  bool trains_on(int64_t user) const { return !split_.active() || !split_.is_eval(user); }

  const StreamConfig& config() const { return config_; }
  const LogWindows& windows() const { return windows_; }
  int rank() const { return rank_; }

 private:
  void choose_windows();
  /// Anchors of a window whose users are held out, or the others.
  std::vector<int64_t> read(int64_t window, bool eval) const;
  void keep_users(const EventStore& piece, bool eval, std::vector<int64_t>& positions) const;
  void sort_by_time(std::span<int64_t> positions) const;
  void shuffle_samples(std::vector<int64_t>& positions, int64_t number) const;

  const EventStore& store_;
  StreamConfig config_;
  UserSplit split_;
  int rank_ = 0, world_ = 1;
  EventLog log_;
  LogWindows windows_;
  int64_t num_windows_ = 0;  // that there are, or that will not grow
  int64_t first_ = 0, end_ = 0, eval_first_ = 0;
  mutable std::mutex sizes_mutex_;
  mutable std::vector<int64_t> train_sizes_;  // per window, -1: not counted yet
};

/// Random order inside segments of max(1, round(fraction * n)) elements, all of them for a fraction
/// of 1 and more; none for 0. A pure function of (seed, window).
void shuffle_window(std::span<int64_t> positions, double fraction, int64_t seed, int64_t window);
int64_t shuffle_segment(int64_t n, double fraction);

}  // namespace segue::data
