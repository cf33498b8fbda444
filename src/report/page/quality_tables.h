#pragma once

#include <string>
#include <vector>

#include "report/run_reader.h"

namespace segue::report {

/// Tables of the last evaluation of each run, as HTML: tasks, simple rules beside the model, AUC by
/// what is known of the samples. What no run tells is left out.
std::string quality_tables(const std::vector<Run>& runs);

}  // namespace segue::report
