#pragma once

#include <memory>

#include "train/step/source.h"

namespace segue::train {

/// Samples of `config.data.interactions`, in their order, as often as it says: a window is one pass
/// over the training part. Error(kConfig) when the model reads what such a log does not have.
std::unique_ptr<Source> make_interaction_source(const RunConfig& config, int rank, int ranks);

}  // namespace segue::train
