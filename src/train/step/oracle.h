#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/batch.h"
#include "data/synth/random_batches.h"
#include "model/model.h"

namespace segue::train {

/// The best that any model could do on random batches: AUC of the probabilities that the labels
/// were drawn with, mean over the binary tasks (0.5 without any).
double oracle_auc(const data::RandomBatches& data, const model::Model& model,
                  std::span<const Batch> batches);

/// The number of the sample that each label belongs to, where candidates are labelled and samples
/// have several.
std::vector<int64_t> sample_lists(const model::Model& model, std::span<const Batch> batches);

}  // namespace segue::train
