#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "train/run/run_state.h"

namespace segue::train {

// Checkpoints record which store they were trained on (data::StoreIdentity): its content, and which
// ids its numbers stand for. Another store may take its place only where the ids have their numbers
// still, and for going on with the run only if somebody says so. Where a store lies does not
// matter.

inline constexpr const char* kStoreKey = "data.store";

/// For RunState::store: of a store and its first `segments` segments; empty without a store.
std::string store_record(const std::string& store, int64_t segments);

/// Error(kConfig) if a number of `store` stands for another id than when `checkpoint` was saved;
/// ids may have come behind those. A warning if that was by a version that did not record it.
/// Nothing is asked of a path that holds no store. True: there are new ids, or may be.
bool require_ids(const RunState& state, const std::string& checkpoint, const std::string& store);

/// The same for a run that goes on with `store`. Error(kConfig) if it is another store than the one
/// that was recorded, or has fewer segments, unless `allowed` names data.store. True: it is that
/// store, which may have grown; false: whether it is may depend on its path.
bool require_store(const RunState& state, const std::string& checkpoint, const std::string& store,
                   std::span<const std::string> allowed);

}  // namespace segue::train
