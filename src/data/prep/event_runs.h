#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_io.h"
#include "data/log/number_arena.h"

namespace segue::data {

/// Among events of a user at one time: either the order of all their fields, so that the input's
/// order does not matter, or the order of the input.
enum class TieOrder { kFields, kFile };

/// Sorts [begin, end) of a run.
void sort_events(std::span<Event> events, TieOrder ties);

/// Adds sorted events to `bytes`, packed to about a third of their size in memory, numbers as they
/// are. Any number of calls makes one run; all events of a run have equally many numbers.
void encode_events(std::span<const Event> events, std::vector<uint8_t>& bytes);

/// A sorted piece of a file.
struct EventRun {
  std::shared_ptr<const base::InputFile> file;
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// Walks over the events of a run through a buffer.
class RunCursor {
 public:
  RunCursor(const EventRun& run, size_t buffer_bytes);

  bool at_end() const { return next_ == events_.size(); }
  const Event& front() const { return events_[next_]; }
  void pop() {
    if (++next_ == events_.size()) load_block();
  }

 private:
  void load_block();
  void fill();

  const base::InputFile& file_;
  int64_t offset_, end_;  // of what has not been read
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0, size_ = 0;  // of what was read and not decoded
  std::vector<Event> events_;    // of the block at hand
  NumberArena numbers_;          // of those
  size_t next_ = 0;
};

/// Several runs as one sorted stream. With TieOrder::kFile an earlier run comes first.
class RunMerger {
 public:
  RunMerger(std::span<const EventRun> runs, size_t buffer_bytes, TieOrder ties);

  /// Replaces `block` by the next events, `most` at most; false at the end.
  bool next(EventBlock& block, size_t most);

 private:
  bool before(size_t a, size_t b) const;
  void replay(size_t leaf);

  std::vector<std::unique_ptr<RunCursor>> cursors_;
  TieOrder ties_;
  // Tournament: tree_[0] is the winner, tree_[k] the loser of the match at node k.
  std::vector<size_t> tree_;
};

}  // namespace segue::data
