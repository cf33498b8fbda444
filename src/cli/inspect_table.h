#pragma once

#include <string>

namespace segue::cli {

/// Whether `path` is a run, its folder of checkpoints or one checkpoint.
bool is_checkpoint_folder(const std::string& path);

/// Prints what the newest checkpoint at `path` knows of its tables, or of the one that is named:
/// how full they are, when and how often rows were used, and which were trained most.
void inspect_tables(const std::string& path, const std::string& table, bool json);

}  // namespace segue::cli
