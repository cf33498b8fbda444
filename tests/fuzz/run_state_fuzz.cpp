// What a checkpoint keeps beside its arrays: read, and what is in it read as a resumed run does.

#include "fuzz.h"
#include "report/mlperf/mllog_run.h"
#include "train/run/run_state.h"
#include "train/run_config.h"

using namespace segue;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto state = fuzz::accepted([&] { return train::run_state_from_json(text); });
  if (!state) return 0;
  const std::string written = train::to_json(*state);
  fuzz::require(train::to_json(train::run_state_from_json(written)) == written,
                "what was written is what was read");
  if (!state->mllog.empty()) {
    fuzz::accepted_all([&] { report::mllog_state_from_json(state->mllog); });
  }
  fuzz::accepted_all([&] {
    static const std::string kNow = base::to_toml(train::RunConfig());
    train::require_same_config(state->config, kNow, {"model"});
  });
  return 0;
}
