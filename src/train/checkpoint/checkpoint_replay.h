#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sparse/table_snapshot.h"

namespace segue::train {

/// One table of a full checkpoint with the changes of its increments, oldest first, put together:
/// shown as touched rows ("row"), or by "key" in their order. Rows are read where they lie.
/// Error(kCorrupt), which begins with `name`, where increments do not fit what is before them.
std::unique_ptr<sparse::SavedArrays> replay(
    std::vector<std::unique_ptr<sparse::SavedArrays>> generations, const std::string& name);

}  // namespace segue::train
