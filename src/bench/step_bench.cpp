#include <utility>

#include "base/time.h"
#include "bench/bench.h"
#include "data/random_batches.h"
#include "train/random_schema.h"
#include "train/run_config.h"
#include "train/trainer.h"

namespace segue::bench {
namespace {

Result measure_steps(const train::RunConfig& config, const Repeats& repeats) {
  train::Trainer trainer(config, train::choose_device(config.train.device));
  const data::RandomBatches data(train::random_schema(config.model, config.sparse),
                                 config.data.random_config(),
                                 static_cast<uint64_t>(config.train.seed));
  Batch batch;
  Result r;
  int64_t samples = 0, tokens = 0;
  double flop = 0;
  for (int64_t i = 1; i <= repeats.warm_up + repeats.timed; ++i) {
    data.fill(i, batch);
    const train::StepStats stats = trainer.step(batch);
    if (i <= repeats.warm_up) continue;
    r.timing.seconds.push_back(stats.seconds);
    samples += stats.samples;
    tokens += stats.tokens;
    flop += stats.model_flops;
  }
  // Batches differ in length: the mean over the timed steps stands for one of them.
  r.flop = flop / static_cast<double>(repeats.timed);
  r.shape = {{"dim", config.model.dim},
             {"layers", config.model.layers},
             {"samples", samples / repeats.timed},
             {"tokens", tokens / repeats.timed}};
  return r;
}

}  // namespace

void bench_step(const Settings& settings, Report& report) {
  base::ConfigSources sources;
  sources.file = settings.config;
  sources.sets = settings.sets;
  train::RunConfig config = train::load_run_config(sources);
  report.add(measure_gemm_rate(settings, report));
  // Work that the identities skip is counted too, so that the rates compare.
  for (const auto& [name, on] :
       {std::pair("step, identities on", true), std::pair("step, identities off", false)}) {
    config.model.identities = {on, on, on};
    Result r = measure_steps(config, settings.repeats);
    r.name = name;
    report.add(r);
  }
}

}  // namespace segue::bench
