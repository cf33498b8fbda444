#include "bench/steps.h"

#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/time.h"
#include "data/synth/random_batches.h"
#include "model/flops.h"
#include "tensor/device_memory.h"
#include "train/plan/memory_plan.h"
#include "train/run/run_start.h"
#include "train/step/batch_pipeline.h"
#include "train/step/random_schema.h"
#include "train/step/ranks.h"
#include "train/step/trainer.h"

namespace segue::bench {
namespace {

/// Whole batches from windows spread over those that are trained on, so that histories of all ages
/// come up.
Batches store_batches(const train::RunConfig& config, int64_t wanted) {
  Batches made{train::make_source(config, 0, 1, /*verifies=*/false), {}};
  train::Source& source = *made.source;
  const int64_t first = source.first().window, windows = source.end().window - first;
  for (int64_t i = 0; i < wanted; ++i) {
    source.start({first + i * windows / wanted, 0});
    Batch batch;
    while (source.next(batch) && batch.num_samples() < config.data.batch_size) {
    }
    if (batch.num_samples() == config.data.batch_size) made.all.push_back(std::move(batch));
    if (made.all.empty()) break;  // there is none behind the first window
  }
  if (!made.all.empty()) return made;
  fail(ErrorCode::kConfig,
       fmt::format("{}: no training window has the {} samples of a batch; lower data.batch_size, "
                   "or data.stream.min_history, or take longer windows "
                   "(data.stream.window_seconds)",
                   config.data.store, config.data.batch_size));
}

/// Means over the timed steps; batches differ in length, and the mean stands for one of them.
struct Sums {
  int64_t steps = 0, samples = 0, tokens = 0, balanced = 0;
  double flop = 0, recomputed = 0, before = 0, after = 0;
  Timing prepare, wait;  // host work of a batch; waiting for it, part of a step

  void add(const train::RunConfig& config, const train::StepStats& stats,
           const train::BatchPipeline::Item& item, double waited) {
    ++steps;
    samples += stats.samples;
    tokens += stats.tokens;
    flop += stats.model_flops;
    if (config.model.family == model::Family::kHstu) {
      recomputed += model::recomputed_flops(config.model, stats.token_offsets);
    }
    if (item.balance.samples > 0) {
      ++balanced;
      before += item.balance.before.over_mean;
      after += item.balance.after.over_mean;
    }
    prepare.seconds.push_back(item.prepare_seconds);
    wait.seconds.push_back(waited);
  }
};

Result step_result(const train::RunConfig& config, const train::Trainer& trainer, const Sums& sums,
                   int64_t launches, std::vector<double> seconds) {
  Result r;
  r.timing.seconds = std::move(seconds);
  r.runs_differ = true;
  r.flop = sums.flop / static_cast<double>(sums.steps);
  r.shape = {{"dim", config.model.dim},
             {"layers", config.model.layers},
             {"samples", sums.samples / sums.steps},
             {"tokens", sums.tokens / sums.steps},
             {"launches", launches},
             {"arena_bytes", trainer.arena().capacity()},
             {"arena_peak_bytes", trainer.arena().high_water()},
             {"host_us", std::llround(1e6 * sums.prepare.median())},
             {"waited_us", std::llround(1e6 * sums.wait.median())}};
  r.items = static_cast<double>(config.data.batch_size);
  r.item_name = "samples";
  return r;
}

}  // namespace

train::RunConfig load_config(const Settings& settings) {
  base::ConfigSources sources;
  if (settings.preset.empty()) {
    sources.file = settings.config;
  } else {
    sources.sets = {"preset=" + settings.preset};
  }
  if (!settings.store.empty()) sources.sets.push_back("data.store=" + settings.store);
  sources.sets.insert(sources.sets.end(), settings.sets.begin(), settings.sets.end());
  return train::load_run_config(sources);
}

Batches make_batches(const train::RunConfig& config, int64_t most, int rank, int ranks) {
  constexpr int64_t kBatches = 4, kStoreBatches = 8;
  if (!config.data.store.empty()) return store_batches(config, std::min(kStoreBatches, most));
  const data::RandomBatches data(train::random_schema(*train::make_model(config), config.sparse,
                                                      config.data.random.candidates),
                                 config.data.random_config(),
                                 static_cast<uint64_t>(config.train.seed));
  Batches made;
  made.all.resize(static_cast<size_t>(std::min(kBatches, most)));
  const int64_t first = config.data.batch_size * rank / ranks;
  const int64_t count = config.data.batch_size * (rank + 1) / ranks - first;
  for (size_t i = 0; i < made.all.size(); ++i) {
    data.fill(static_cast<int64_t>(i) + 1, first, count, made.all[i]);
  }
  return made;
}

Steps measure_steps(const train::RunConfig& config, const Batches& batches, const Repeats& repeats,
                    comm::World& world, EnergyMeter energy) {
  const Device device = train::take_device(config, world);
  train::Ranks ranks(world, config, device);
  train::RunPlan plan = train::plan_for(config, ranks, device);
  train::require_memory(plan.memory, device, train::available_bytes(device),
                        /*full_batches=*/true);
  train::Trainer trainer(config, device, ranks, std::move(plan));
  const auto balancer = train::make_balancer(config, trainer);
  train::BatchPipeline pipeline(trainer, sparse::Mode::kTraining, config.parallel.pipeline,
                                balancer.get());
  const bool ahead = train::BatchPipeline::runs_ahead(config.parallel.pipeline, device);
  int64_t next = 0;
  double copying = 0;  // where nothing is made ahead it is part of the wait
  pipeline.start([&](Batch& batch) -> std::optional<data::BatchInfo> {
    const base::Stopwatch watch;
    const Batch& made = batches[next++];
    batch = made.slice(0, made.num_samples());
    if (!ahead) copying = watch.seconds();
    return data::BatchInfo{};
  });

  Sums sums;
  std::vector<double> seconds;
  int64_t launches = 0;
  const int64_t steps = repeats.warm_up + repeats.timed;
  for (int64_t i = 0; i < steps; ++i) {
    if (i == repeats.warm_up) energy.start();
    const base::Stopwatch watch;
    const train::BatchPipeline::Item* const item = pipeline.next(steps - i - 1);
    const double waited = watch.seconds() - copying;
    const train::StepStats stats = trainer.step(*item->prepared);
    if (i < repeats.warm_up) continue;
    seconds.push_back(watch.seconds() - copying);
    sums.add(config, stats, *item, waited);
    launches = stats.launches;
  }
  Steps measured;
  measured.device_bytes = device_bytes_in_use(device);
  measured.result = step_result(config, trainer, sums, launches, std::move(seconds));
  const std::optional<double> joules = energy.joules();
  if (joules && sums.samples > 0) {
    measured.result.joules_per_item = *joules / static_cast<double>(sums.samples);
  }
  measured.recomputed_flop = sums.recomputed / static_cast<double>(sums.steps);
  if (sums.balanced > 0) {
    measured.uneven_before = sums.before / static_cast<double>(sums.balanced);
    measured.uneven_after = sums.after / static_cast<double>(sums.balanced);
  }
  return measured;
}

}  // namespace segue::bench
