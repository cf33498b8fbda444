#pragma once

#include <cstdint>

#include "data/synth/random_batches.h"
#include "model/model.h"
#include "sparse/tables_config.h"

namespace segue::train {

/// Candidates of one random sample: the item that a ranking request asks about.
inline constexpr int64_t kRandomCandidates = 1;

/// The columns that a model reads, as random batches make them. Tables give the ranges of ids.
data::RandomSchema random_schema(const model::Model& model, const sparse::TablesConfig& tables);

/// Most events that a random history can have; -1: no bound.
int64_t longest_history(const data::Distribution& lengths);

}  // namespace segue::train
