#pragma once

#include <string>

namespace segue::train {

/// Copies a store to a folder below `folder`, a disk of this machine, and says where it is. A copy
/// of the same files that is there is taken as it is; one that was broken off is completed. Every
/// file is read back and compared; what the store's own checksums say is for whoever opens it.
/// Processes that want the same copy wait for each other. Error(kIo): no room, or a copy that
/// differs.
std::string stage_store(const std::string& store, const std::string& folder);

}  // namespace segue::train
