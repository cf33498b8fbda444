#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench.h"

namespace segue::bench {

/// Empty lists: on a GPU 1 to 512 sequences of 64 to 16,384 tokens, heads of 64, 128 and 256; a few
/// small ones on the CPU.
struct MapSettings {
  std::string device = "auto";
  std::vector<int64_t> sequences, lengths, head_dims;
  int64_t heads = 4;
  double cell_seconds = 0.02;  // what the timed runs of one direction take, about; one run at least
  std::string out;             // file of rows, kept from call to call; empty: none
};

/// Attention, forward and backward, on every combination of sequences of one length, as shares of
/// the stated peak and of a measured product. Cells that the file has are not measured again; one
/// that takes more memory than there is, is a row with the reason.
void run_map(const MapSettings& settings, Report& report);

}  // namespace segue::bench
