#pragma once

#include <string>

#include "edu/lab.h"

namespace segue::edu {

// The commands of `segue edu`. Each says what it finds through the sink, and writes files where
// options.out names a folder. `made` says by which program, for the page.

void run_micro_dlrm(const Options& options, const Sink& sink);
void run_micro_dlrm_dram(const Options& options, const Sink& sink);
void run_micro_dlrm_distributed(const Options& options, const Sink& sink);
/// All three, the experiments, a page, and a registry of the sidecars.
void run_compare(const Options& options, const Sink& sink, const std::string& made);

}  // namespace segue::edu
