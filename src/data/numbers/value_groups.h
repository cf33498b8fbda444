#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "data/numbers/day_counts.h"
#include "data/numbers/taste_groups.h"
#include "data/store/event_log.h"
#include "data/store/index_file.h"

namespace segue::data {

/// What groups are found from; tests lower it.
struct ValueGroupLimits {
  int64_t tries = int64_t{1} << 24;          // of a sample of users; 32 bytes each at most
  int64_t tries_of_user = int64_t{1} << 20;  // the newest ones
  int64_t users = int64_t{1} << 20;          // of the sample; 1 KiB each
};

/// Items and values of attributes that the same users like (find_taste_groups), for the days of one
/// piece of a log. Groups of a day are made from what was known before it. They are made anew one
/// day after the first on which something was tried, and then whenever such days are a quarter
/// more, beginning with those before; days from one to the next are a period. Days without tries
/// are not counted: a few events may lie years from all others.
class ValueGroups {
 public:
  /// groups.idx of the piece's index folder, made when it is missing or stale; `fingerprint` says
  /// what it is made from. `days` has the pieces up to this one, `before` is what the piece before
  /// has.
  static ValueGroups open_or_build(const EventLog& log, std::span<const DayCounts> days,
                                   const ValueGroups* before, uint64_t fingerprint,
                                   const ValueGroupLimits& limits = {});

  /// Number of the period of a day, the same in every piece; 0 before the first.
  int64_t period(int64_t day) const;
  /// Of an item or an attribute's value (DayCounts::Of) in a period of this piece; 0: none.
  uint8_t group(int64_t period, size_t of, int64_t id) const {
    const int64_t row = period - first_period_;
    const std::span<const uint8_t> all = groups_[of - DayCounts::kItem];
    const int64_t values = row < 0 ? 0 : std::ssize(all) / std::ssize(begins_);
    if (id < 0 || id >= values) return 0;
    // Look-ups trust it, and anyone can make a file.
    return std::min<uint8_t>(all[static_cast<size_t>(row * values + id)], kMostTasteGroups);
  }

  const IndexFile& file() const { return file_; }

 private:
  class Builder;
  ValueGroups(IndexFile file, size_t kinds);

  IndexFile file_;
  int64_t first_period_ = 0;
  std::span<const int64_t> begins_;               // day of each period
  std::vector<std::span<const uint8_t>> groups_;  // by what is counted: [periods, values]
};

}  // namespace segue::data
