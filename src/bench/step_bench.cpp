#include <algorithm>
#include <array>
#include <cmath>
#include <future>
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
#include "train/step/trainer.h"

namespace segue::bench {
namespace {

constexpr const char* kOneGpu = "dlrmv4-1gpu";

/// The reference's dense model on one GPU: item, artist and album tables in full, the contextual
/// ones scaled alike until all take 70 GB; 256 samples of 1 to 3,276 tokens; ids by Zipf's law.
train::RunConfig one_gpu_config() {
  train::RunConfig c;
  model::Preset preset = model::preset("yambda-5b");
  c.model = std::move(preset.model);
  c.sparse = std::move(preset.tables);
  c.optimizer = preset.optimizer;
  constexpr double kTableBytes = 70e9;
  constexpr size_t kSequenceTables = 3;
  const auto is_sequence = [&](const std::string& table) {
    if (table == c.model.item.table) return true;
    for (const model::SequenceFeature& f : c.model.additional) {
      if (table == f.table) return true;
    }
    return false;
  };
  double whole = 0, scaled = 0;
  size_t sequence_tables = 0;
  for (const sparse::TableConfig& t : c.sparse.tables) {
    const double bytes = 4.0 * static_cast<double>(t.rows * c.sparse.dim);
    (is_sequence(t.name) ? whole : scaled) += bytes;
    sequence_tables += is_sequence(t.name);
  }
  SEGUE_ASSERT(sequence_tables == kSequenceTables, "item, artist and album");
  const double factor = (kTableBytes - whole) / scaled;
  for (sparse::TableConfig& t : c.sparse.tables) {
    if (is_sequence(t.name)) continue;
    t.rows = static_cast<int64_t>(static_cast<double>(t.rows) * factor);
  }
  c.data.batch_size = 256;
  // Contextual tokens and the candidate come on top of the history.
  c.data.random.lengths.low = 0;
  c.data.random.lengths.high = 3277 - c.model.contextual_tokens() - c.data.random.candidates;
  c.train.steps = 1;
  c.train.precision = Precision::kBf16;
  c.train.micro_batch_tokens = 500'000;
  c.train.device = "cuda";
  return c;
}

/// The preset, or the file that the settings name.
train::RunConfig load_config(const Settings& settings) {
  base::ConfigSources sources;
  sources.sets = settings.sets;
  if (settings.preset == kOneGpu) {
    train::RunConfig config = one_gpu_config();
    base::load_config(config, sources);
    config.validate();
    return config;
  }
  if (!settings.preset.empty()) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("preset `{}` is not known; there is: {}", settings.preset, kOneGpu));
  }
  sources.file = settings.config;
  return train::load_run_config(sources);
}

/// Making random batches is no part of a step; a few are used in turn.
std::vector<Batch> make_batches(const train::RunConfig& config, const Repeats& repeats) {
  const data::RandomBatches data(train::random_schema(*train::make_model(config), config.sparse,
                                                      config.data.random.candidates),
                                 config.data.random_config(),
                                 static_cast<uint64_t>(config.train.seed));
  constexpr int64_t kBatches = 4;
  std::vector<Batch> batches(static_cast<size_t>(std::min(kBatches, repeats.timed)));
  for (size_t i = 0; i < batches.size(); ++i) {
    data.fill(static_cast<int64_t>(i) + 1, batches[i]);
  }
  return batches;
}

/// Host work of the next batch goes on while one is trained, as in a run on a GPU whose pipeline is
/// not off.
Result measure_steps(const train::RunConfig& config, const Repeats& repeats, EnergyMeter energy) {
  train::Trainer trainer(config, train::choose_device(config.train.device));
  const std::vector<Batch> batches = make_batches(config, repeats);
  const bool ahead =
      trainer.device().is_cuda() && config.parallel.pipeline != train::Pipeline::kOff;
  const std::unique_ptr<model::PreparedBatch> prepared[] = {trainer.model().new_batch(),
                                                            trainer.model().new_batch()};
  const auto prepare = [&](int64_t i) {
    const base::Stopwatch watch;
    trainer.prepare(batches[static_cast<size_t>(i) % batches.size()],
                    *prepared[static_cast<size_t>(i % 2)]);
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
  if (settings.preset.empty()) report.add(measure_gemm_rate(settings, report));
  const auto run = [&](const std::string& name) {
    Result r = measure_steps(config, settings.repeats, EnergyMeter(report.card()));
    if (!settings.sets.empty()) {
      r.labels = {{"set", fmt::format("{}", fmt::join(settings.sets, " "))}};
    }
    r.name = name;
    report.add(r);
  };
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
  const std::vector<Batch> batches = make_batches(config, settings.repeats);
  const std::unique_ptr<model::PreparedBatch> prepared = trainer.model().new_batch();
  size_t next = 0;
  int64_t tokens = 0, distinct = 0;
  Result r;
  r.name = "prepare";
  r.timing = measure(settings.repeats, [&] {
    trainer.prepare(batches[next++ % batches.size()], *prepared);
    tokens = prepared->token_offsets.back();
    distinct = prepared->table_rows;
  });
  r.shape = {{"samples", config.data.batch_size}, {"tokens", tokens}, {"table_rows", distinct}};
  r.items = static_cast<double>(config.data.batch_size);
  r.item_name = "samples";
  report.add(r);
}

}  // namespace segue::bench
