#include <algorithm>
#include <cmath>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/time.h"
#include "bench/bench.h"
#include "data/synth/random_batches.h"
#include "tensor/device_memory.h"
#include "train/run_config.h"
#include "train/step/random_schema.h"
#include "train/step/source.h"
#include "train/step/trainer.h"

namespace segue::bench {
namespace {

/// The preset, or the file that the settings name, on a store if they name one.
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

/// A few that are used in turn: making them is no part of a step.
struct Batches {
  std::unique_ptr<train::Source> source;  // of a store: attributes of items lie there
  std::vector<Batch> all;

  const Batch& operator[](int64_t i) const { return all[static_cast<size_t>(i) % all.size()]; }
};

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

Batches make_batches(const train::RunConfig& config, const Repeats& repeats) {
  constexpr int64_t kBatches = 4, kStoreBatches = 8;
  if (!config.data.store.empty()) {
    return store_batches(config, std::min(kStoreBatches, repeats.timed));
  }
  const data::RandomBatches data(train::random_schema(*train::make_model(config), config.sparse,
                                                      config.data.random.candidates),
                                 config.data.random_config(),
                                 static_cast<uint64_t>(config.train.seed));
  Batches made;
  made.all.resize(static_cast<size_t>(std::min(kBatches, repeats.timed)));
  for (size_t i = 0; i < made.all.size(); ++i) {
    data.fill(static_cast<int64_t>(i) + 1, made.all[i]);
  }
  return made;
}

/// Host work of the next batch goes on while one is trained, as in a run on a GPU whose pipeline is
/// not off.
Result measure_steps(const train::RunConfig& config, const Batches& batches, const Repeats& repeats,
                     EnergyMeter energy) {
  train::Trainer trainer(config, train::choose_device(config.train.device));
  const bool ahead =
      trainer.device().is_cuda() && config.parallel.pipeline != train::Pipeline::kOff;
  const std::unique_ptr<model::PreparedBatch> prepared[] = {trainer.model().new_batch(),
                                                            trainer.model().new_batch()};
  const auto prepare = [&](int64_t i) {
    const base::Stopwatch watch;
    trainer.prepare(batches[i], *prepared[static_cast<size_t>(i % 2)]);
    return watch.seconds();
  };
  const auto policy = ahead ? std::launch::async : std::launch::deferred;
  std::future<double> pending = std::async(policy, prepare, 0);
  Result r;
  Timing host, wait;  // host work of a batch; waiting for it, part of a step
  int64_t samples = 0, tokens = 0, kernels = 0;
  double flop = 0;
  const int64_t steps = repeats.warm_up + repeats.timed;
  for (int64_t i = 0; i < steps; ++i) {
    if (i == repeats.warm_up) energy.start();
    const base::Stopwatch watch;
    const double prepare_seconds = pending.get();
    const double wait_seconds = watch.seconds();
    if (i + 1 < steps) pending = std::async(policy, prepare, i + 1);
    const train::StepStats stats = trainer.step(*prepared[static_cast<size_t>(i % 2)]);
    if (i < repeats.warm_up) continue;
    r.timing.seconds.push_back(watch.seconds());
    host.seconds.push_back(prepare_seconds);
    wait.seconds.push_back(wait_seconds);
    kernels = stats.launches;
    samples += stats.samples;
    tokens += stats.tokens;
    flop += stats.model_flops;
  }
  if (const std::optional<double> joules = energy.joules(); joules && samples > 0) {
    r.joules_per_item = *joules / static_cast<double>(samples);
  }
  // Batches differ in length: the mean over the timed steps stands for one of them.
  r.flop = flop / static_cast<double>(repeats.timed);
  r.shape = {{"dim", config.model.dim},
             {"layers", config.model.layers},
             {"samples", samples / repeats.timed},
             {"tokens", tokens / repeats.timed},
             {"launches", kernels},
             {"arena_bytes", trainer.arena().capacity()},
             {"arena_peak_bytes", trainer.arena().high_water()},
             {"host_us", std::llround(1e6 * host.median())},
             {"waited_us", std::llround(1e6 * wait.median())}};
  r.items = static_cast<double>(config.data.batch_size);
  r.item_name = "samples";
  return r;
}

}  // namespace

void bench_step(const Settings& settings, Report& report) {
  train::RunConfig config = load_config(settings);
  const Batches batches = make_batches(config, settings.repeats);
  if (settings.preset.empty()) report.add(measure_gemm_rate(settings, report));
  const auto run = [&](const std::string& name) {
    Result r = measure_steps(config, batches, settings.repeats, EnergyMeter(report.card()));
    if (!settings.preset.empty()) r.labels.emplace_back("preset", settings.preset);
    if (!settings.sets.empty()) {
      r.labels.emplace_back("set", fmt::format("{}", fmt::join(settings.sets, " ")));
    }
    r.name = name;
    report.add(r);
  };
  // A store is there to compare a run with: as its config says.
  if (!config.data.store.empty()) return run("step");
  const auto names_identity = [](const std::string& set) {
    return set.starts_with("model.identities.");
  };
  if (std::ranges::any_of(settings.sets, names_identity)) return run("step");
  // Work that the identities skip is counted too, so that the rates compare.
  for (const auto& [name, on] :
       {std::pair("step, identities on", true), std::pair("step, identities off", false)}) {
    config.model.identities = {on, on, on};
    run(name);
  }
}

void bench_prepare(const Settings& settings, Report& report) {
  const train::RunConfig config = load_config(settings);
  report.add(measure_gemm_rate(settings, report));
  const Device device = train::choose_device(config.train.device);
  use_device(device);
  train::Trainer trainer(config, device);
  const Batches batches = make_batches(config, settings.repeats);
  const std::unique_ptr<model::PreparedBatch> prepared = trainer.model().new_batch();
  int64_t next = 0, tokens = 0, distinct = 0;
  Result r;
  r.name = "prepare";
  r.timing = measure(settings.repeats, [&] {
    trainer.prepare(batches[next++], *prepared);
    tokens = prepared->token_offsets.back();
    distinct = prepared->table_rows;
  });
  r.shape = {{"samples", config.data.batch_size}, {"tokens", tokens}, {"table_rows", distinct}};
  r.items = static_cast<double>(config.data.batch_size);
  r.item_name = "samples";
  report.add(r);
}

}  // namespace segue::bench
