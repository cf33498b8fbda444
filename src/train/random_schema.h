#pragma once

#include <cstdint>

#include "data/random_batches.h"
#include "model/config.h"
#include "sparse/tables_config.h"

namespace segue::train {

/// Candidates of one random sample: the item that a ranking request asks about.
inline constexpr int64_t kRandomCandidates = 1;

/// The columns that a model reads, as random batches make them. Features of an event other than the
/// item are functions of the item, as an artist is of a song. Tables give the ranges of ids, tasks
/// and action weights the label bits. Error(kConfig) when two features want the same column.
data::RandomSchema random_schema(const model::ModelConfig& model,
                                 const sparse::TablesConfig& tables);

/// Bits that label values need for the tasks: 3 for tasks on bits 1 and 4.
int64_t label_bits(const model::ModelConfig& model);

/// Most events that a random history can have; -1: no bound.
int64_t longest_history(const data::Distribution& lengths);

}  // namespace segue::train
