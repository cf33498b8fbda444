#pragma once

#include <string_view>

namespace segue {

/// Dense bf16 rate that the maker states for a GPU, in FLOP/s; 0: not known. `gpu_name` is that of
/// CudaFacts.
double stated_peak_flops(std::string_view gpu_name);

}  // namespace segue
