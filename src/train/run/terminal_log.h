#pragma once

#include <cstdint>

#include "train/run/loop.h"
#include "train/run/run_folder.h"
#include "train/run_config.h"
#include "train/step/trainer.h"

namespace segue::train {

// What a run says in the terminal at its beginning, after an evaluation and at its end.

/// `card` may be null.
void log_start(const RunConfig& config, Trainer& trainer, const RunFolder& folder,
               const CardSensor* card);
void log_evaluation(const Evaluation& evaluation, int64_t step, double seconds);
/// `has_loss`: the losses of the summary are measured ones.
void log_end(const TrainSummary& summary, bool has_loss);

}  // namespace segue::train
