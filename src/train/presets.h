#pragma once

#include <string>
#include <vector>

#include "train/run_config.h"

namespace segue::train {

/// A published configuration to start from, not yet validated: model, tables and optimizer, of
/// benchmarks also samples and precision. Error(kConfig) with the known names.
///   yambda-5b         the DLRMv4 model with all of its tables
///   dlrmv4-1gpu       the same beside 70 GB of tables, on random samples
///   hstu-suite-fixed, hstu-suite-zipf, hstu-suite-uniform
///                     a gated stack of 8 layers on random samples of a length, or of lengths by
///                     that distribution
RunConfig preset_config(const std::string& name);
const std::vector<std::string>& preset_names();

}  // namespace segue::train
