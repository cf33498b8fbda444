#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "bench/bench.h"
#include "bench/steps.h"
#include "tensor/device_memory.h"
#include "train/step/trainer.h"

namespace segue::bench {

void bench_step(const Settings& settings, Report& report) {
  train::RunConfig config = load_config(settings);
  const Batches batches = make_batches(config, settings.repeats.timed);
  if (settings.preset.empty()) report.add(measure_gemm_rate(settings, report));
  const std::unique_ptr<comm::World> alone = comm::self_world();
  const auto run = [&](const std::string& name) {
    Result r =
        measure_steps(config, batches, settings.repeats, *alone, EnergyMeter(report.card())).result;
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
  const Batches batches = make_batches(config, settings.repeats.timed);
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
