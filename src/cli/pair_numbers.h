#pragma once

#include <string>
#include <vector>

#include "data/sample/gather.h"

namespace segue::cli {

/// Gives pairs the numbers of the log that the model reads of candidates, from columns of their
/// names in the file of the pairs; a warning names those that it has not: they count as missing.
void read_pair_numbers(const std::string& path, const data::SampleSchema& schema,
                       std::vector<data::CandidateQuery>& questions);

}  // namespace segue::cli
