#include "tensor/peak_flops.h"

#include <utility>

namespace segue {

double stated_peak_flops(std::string_view gpu_name) {
  constexpr std::pair<std::string_view, double> kPeaks[] = {
      {"H200", 989e12}, {"H100", 989e12}, {"B200", 2250e12}, {"A100", 312e12}};
  for (const auto& [name, peak] : kPeaks) {
    if (gpu_name.find(name) != gpu_name.npos) return peak;
  }
  return 0;
}

}  // namespace segue
