#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "train/step/metrics.h"

namespace segue::train {

/// Adds the metrics of an evaluation to a line of metrics.jsonl; docs/training.md says what its
/// keys mean.
void add_evaluation(const Evaluation& evaluation, nlohmann::ordered_json& line);

/// What TensorBoard shows of it, by tag.
std::vector<std::pair<std::string, double>> evaluation_scalars(const Evaluation& evaluation);

}  // namespace segue::train
