#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "base/config.h"

namespace segue::cli {

/// The part of `segue plan` that is about several ranks.
struct PlanRanks {
  std::string ranks;
  int ranks_per_machine = 8;
  uint64_t hbm = 0, host = 0;  // bytes of one rank; 0: not given
  bool simulate = false;
  std::string rates;

  bool wanted() const { return simulate || !ranks.empty(); }
  void validate() const;  // Error(kInvalidArgument) for what would have no effect
};
void add_plan_ranks(CLI::App& command, PlanRanks& arguments);
/// Error(kOutOfMemory), after everything was printed, when the plan does not fit.
void plan_ranks(const base::ConfigSources& sources, const PlanRanks& arguments, bool json);

}  // namespace segue::cli
