// The config of a run: read with overrides, planned, written again.
// Input: TOML up to a zero byte, then overrides as of --set, each up to a zero byte.

#include <vector>

#include "fuzz.h"
#include "train/plan/memory_plan.h"
#include "train/run/run_state.h"
#include "train/run_config.h"

namespace {

using namespace segue;

train::RunConfig load(const std::string& text, std::vector<std::string> sets) {
  return train::load_run_config(
      {.file = "fuzz.toml", .text = text, .sets = std::move(sets), .use_environment = false});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  // A text that is empty would be looked for in the file.
  const std::string text = std::string(input.before('\0')) + "\n";
  std::vector<std::string> sets;
  while (!input.empty()) sets.emplace_back(input.before('\0'));
  const auto config = fuzz::accepted([&] { return load(text, sets); });
  if (!config) return 0;

  fuzz::accepted_all([&] {
    fuzz::require(train::memory_plan(*config, Device::cpu(), 2).total() > 0, "a run needs memory");
  });
  const std::string written = base::to_toml(*config);
  fuzz::require(base::to_toml(load(written, {})) == written, "what was written is what was read");
  fuzz::require(train::config_differences(written, written).empty(),
                "a config does not differ from itself");
  return 0;
}
