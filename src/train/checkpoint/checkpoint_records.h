#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_manifest.h"

namespace segue::train {

/// Writes `record` into `folder`, by rename, as the last thing its rank does there: rank 0 may move
/// the folder as soon as it sees it.
void leave_record(const std::string& folder, const RankRecord& record);

/// Records of the ranks 1 ... ranks - 1, in this order; they are removed. A rank that leaves none
/// while nothing in the folder grows for `timeout_seconds` has a record that says so; so have those
/// that are missing a few seconds after `hurry` was set.
std::vector<RankRecord> collect_records(const std::string& folder, int64_t step, int ranks,
                                        double timeout_seconds, const std::atomic<bool>& hurry);

}  // namespace segue::train
