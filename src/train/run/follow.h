#pragma once

#include <cstdint>
#include <functional>

#include "train/run_config.h"
#include "train/step/ranks.h"
#include "train/step/source.h"

namespace segue::train {

enum class Waited { kMore, kStop, kEnd };

/// At the end of a log that still grows (data.follow): waits until a new segment completes window
/// `next`, a signal asks to stop, or nothing new has come for data.follow_seconds. Collective: the
/// first rank looks for segments, and all open the same ones. Calls `alive` every few seconds.
Waited wait_for_window(const RunConfig& config, int64_t next, const Ranks& ranks, Source& source,
                       const std::function<void()>& alive);

}  // namespace segue::train
