#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/log/vector_table.h"
#include "publish/chain.h"
#include "publish/checkpoint_table.h"

namespace segue::publish {

/// What a table of a checkpoint is other than the last version of a chain.
struct Difference {
  std::vector<size_t> changed;   // places in CheckpointTable::ids() of rows new or with other bytes
  std::vector<int64_t> removed;  // ids
  uint64_t outdated = 0;         // sum of the digests of rows that were replaced or removed
};

/// `keys` is what changed_keys() gives: of other rows that both have only the ids are looked at.
/// Error(kCorrupt) where the chain cannot be replayed.
Difference difference_of(const std::string& folder, std::span<const VersionManifest> chain,
                         size_t table, const data::VectorFiles* parquet, CheckpointTable& rows,
                         std::optional<std::vector<int64_t>> keys);

}  // namespace segue::publish
