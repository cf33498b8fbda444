#pragma once

#include <cstdint>

#include "base/append_file.h"
#include "base/config.h"

namespace segue::train {

/// When checkpoints are saved and how many stay. A cadence of 0 is off.
struct CheckpointConfig {
  int64_t keep_last = 2;
  int64_t full_every = 1;
  int64_t every_batches = 0;
  int64_t every_steps = 0;
  double every_seconds = 3600;
  double copy_gib = 8;
  /// What the loop makes of a save that failed; older checkpoints are intact in any case. Logs that
  /// a full disk has no room for go by it as well.
  enum class OnFailure { kGoOn, kStop } on_failure = OnFailure::kGoOn;

  base::WhenFull when_full() const {
    return on_failure == OnFailure::kGoOn ? base::WhenFull::kKeep : base::WhenFull::kFail;
  }
  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, CheckpointConfig& c);

enum class SaveReason { kNone, kBatchesInWindow, kSteps, kSeconds };
const char* to_string(SaveReason reason);

/// Which cadence, if any, asks for a save after a batch; one that would save anyway names the
/// reason in the order of the enumerators. `batches_in_window` and `steps` count finished ones;
/// `seconds_since_save` also counts from the start of the run. Ranks that are to agree pass rank
/// 0's seconds.
SaveReason due(const CheckpointConfig& config, int64_t batches_in_window, int64_t steps,
               double seconds_since_save);

}  // namespace segue::train
