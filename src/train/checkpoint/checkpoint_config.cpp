#include "train/checkpoint/checkpoint_config.h"

#include "base/config_checks.h"

namespace segue::train {
namespace {

bool is_multiple(int64_t count, int64_t every) {
  return every > 0 && count > 0 && count % every == 0;
}

}  // namespace

void CheckpointConfig::validate() const {
  constexpr int64_t kMostIncrements = 1000;
  constexpr double kLongest = 1e9, kMostGib = 1 << 20;
  base::require_at_least("checkpoint.keep_last", keep_last, 0);
  base::require_between("checkpoint.full_every", full_every, 1, kMostIncrements);
  base::require_at_least("checkpoint.every_batches", every_batches, 0);
  base::require_at_least("checkpoint.every_steps", every_steps, 0);
  base::require_between("checkpoint.every_seconds", every_seconds, 0, kLongest);
  base::require_between("checkpoint.copy_gib", copy_gib, 0, kMostGib);
}

void describe(base::ConfigVisitor& v, CheckpointConfig& c) {
  v.field("keep_last", c.keep_last, "checkpoints that stay; 0: all");
  v.field("full_every", c.full_every,
          "one checkpoint in so many holds whole tables, those between only rows that changed; 1: "
          "all do");
  v.field("every_batches", c.every_batches, "save every so many batches of a window; 0: off");
  v.field("every_steps", c.every_steps, "save when steps done is a multiple of this; 0: off");
  v.field("every_seconds", c.every_seconds, "save when the last one is this old; 0: off");
  v.field("copy_gib", c.copy_gib,
          "memory for the copy that is written in the background; training waits while a larger "
          "state is written");
  v.choice("on_failure", c.on_failure, {"go_on", "stop"},
           "when one cannot be written (disk full): warn and train on, or stop");
}

const char* to_string(SaveReason reason) {
  switch (reason) {
    case SaveReason::kNone:
      return "none";
    case SaveReason::kBatchesInWindow:
      return "batches in window";
    case SaveReason::kSteps:
      return "steps";
    case SaveReason::kSeconds:
      return "seconds";
  }
  return "?";
}

SaveReason due(const CheckpointConfig& config, int64_t batches_in_window, int64_t steps,
               double seconds_since_save) {
  if (is_multiple(batches_in_window, config.every_batches)) return SaveReason::kBatchesInWindow;
  if (is_multiple(steps, config.every_steps)) return SaveReason::kSteps;
  if (config.every_seconds > 0 && seconds_since_save >= config.every_seconds) {
    return SaveReason::kSeconds;
  }
  return SaveReason::kNone;
}

}  // namespace segue::train
