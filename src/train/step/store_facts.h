#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>

#include "model/model.h"
#include "train/step/held_out.h"
#include "train/step/source.h"

namespace segue::train {

/// Facts of events of a store, on the calling thread. Reads the log four times; `stop` ends that
/// early, with a result that is worth nothing.
HeldOutFacts store_facts(const RunStore& store, std::span<const model::TaskConfig> tasks,
                         std::span<const int64_t> positions, const std::stop_token& stop = {});

/// AUC of true probabilities, one for every event of the store (see data::read_truth), for the
/// label pool at these events. None where it is not known for all of them.
std::optional<double> truth_auc(const data::EventStore& store, std::span<const float> truth,
                                std::span<const int64_t> positions);

/// Whether evaluations are to have facts of a log of so many events. `timed`: nothing may cost time
/// that was not asked for.
bool wants_facts(const EvalConfig& eval, int64_t events, bool timed);

}  // namespace segue::train
