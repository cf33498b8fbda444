#pragma once

#include <cstdint>

#include "data/synth/random_batches.h"
#include "model/model.h"
#include "sparse/tables_config.h"

namespace segue::train {

/// The columns that a model reads, as random batches make them, with so many candidates a sample.
/// Tables give the ranges of ids.
data::RandomSchema random_schema(const model::Model& model, const sparse::TablesConfig& tables,
                                 int64_t candidates = 1);

/// Most events that a random history can have; -1: no bound.
int64_t longest_history(const data::Distribution& lengths);

}  // namespace segue::train
