#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"

namespace segue::cli {

/// Starts this command line, without those of its options that have one of the names `left_out`
/// (and a value each) and with `added` behind it, as several ranks on this machine, and waits for
/// them. Returns the exit code. Error(kInvalidArgument) when this process is one of several
/// already, Error(kConfig) when the config's transport is another one.
int start_ranks(int64_t ranks, const comm::CommConfig& config,
                const std::vector<std::string>& left_out,
                const std::vector<std::string>& added = {});

}  // namespace segue::cli
