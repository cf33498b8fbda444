// Rows of `segue bench --json`, from which `segue plan` takes its rates.

#include <cmath>

#include "memory_file.h"
#include "train/plan/scaling_model.h"

using namespace segue;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryFile file(std::string_view(reinterpret_cast<const char*>(data), size));
  train::SimulationConfig rates;
  const model::SampleWork work{
      .token_flop = 6.0 * 512 * 3584, .pair_flop = 7.0 * 1024, .layers = 3, .width = 512};
  if (!fuzz::accepted_all([&] { train::read_rates(file.path(), work, rates); })) return 0;
  fuzz::accepted_all([&] {
    rates.validate();
    const balance::CostWeights weights = train::cost_weights(work, rates);
    fuzz::require(weights.token_ps >= 0 && weights.pair_ps >= 0, "a cost is a number");
  });
  return 0;
}
