#include <fmt/format.h>

#include "bench/bench.h"
#include "train/plan/calibration.h"
#include "train/run_config.h"

namespace segue::bench {

void bench_balance(const Settings& settings, Report& report) {
  base::ConfigSources sources;
  sources.file = settings.config;
  sources.sets = settings.sets;
  const train::RunConfig config = train::load_run_config(sources);
  const train::Calibration found = train::calibrate_cost(config, 1, report.device());
  for (const train::Calibration::Step& step : found.steps) {
    Result r;
    r.name = fmt::format("step of {} samples", step.samples);
    r.shape = {{"samples", step.samples},
               {"events", step.events},
               {"tokens", static_cast<int64_t>(step.timing.tokens)},
               {"pairs", static_cast<int64_t>(step.timing.pairs)}};
    r.timing.seconds = step.seconds;
    r.items = step.timing.tokens;
    r.item_name = "tokens";
    report.add(r);
  }
  report.note("  for the config of runs on this device:");
  report.note("  [balance]");
  report.note(fmt::format("  token_ps = {:.6g}", found.weights.token_ps));
  report.note(fmt::format("  pair_ps = {:.6g}", found.weights.pair_ps));
}

}  // namespace segue::bench
