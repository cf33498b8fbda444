#pragma once

#include <string>
#include <vector>

#include "train/run_config.h"
#include "train/step/source.h"

namespace segue::train {

// What the facts of a store say of a config before the first step.

/// Every static table that is too small for the ids of the store, and the rows that it needs: keys
/// to set, one a line.
std::vector<std::string> missing_rows(const RunConfig& config, const data::EventStore& events);
/// Error(kConfig) with them. Nothing where such ids are clamped or read as zeros.
void require_rows(const RunConfig& config, const data::EventStore& events);

/// What is allowed and yet likely a mistake, in sentences that say what to do: labels of one class,
/// hardly anything held out, batches that a window does not fill, histories longer than samples
/// may be, times of another unit, tables that nobody looks up or that are many times too large.
/// Reads a few thousand samples.
std::vector<std::string> doubts_about(const RunConfig& config, const RunStore& store);

}  // namespace segue::train
