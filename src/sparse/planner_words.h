#pragma once

#include <string>

#include "sparse/shard_plan.h"

namespace segue::sparse {

/// How ranks share a table, for people.
std::string how_shared(const TablePlacement& placement);

}  // namespace segue::sparse
