#include "bench/experiments.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "bench/length_kinds.h"
#include "bench/row_file.h"
#include "bench/steps.h"
#include "tensor/peak_flops.h"
#include "train/run/run_start.h"
#include "train/step/ranks.h"

namespace segue::bench {
namespace {

using Sets = std::vector<std::string>;

/// The table that takes most memory: the one that is worth a cache.
size_t largest_table(const train::RunConfig& config) {
  const auto bytes = [&](const sparse::TableConfig& t) {
    return config.sparse.rows_of(t) * config.sparse.dim_of(t);
  };
  const auto& tables = config.sparse.tables;
  return static_cast<size_t>(std::ranges::max_element(tables, {}, bytes) - tables.begin());
}

Sets identities(bool on) {
  Sets sets;
  for (const char* name : {"last_layer_targets", "distinct_rows", "action_codes"}) {
    sets.push_back(fmt::format("model.identities.{}={}", name, on));
  }
  return sets;
}

void append(Sets& to, const Sets& from) { to.insert(to.end(), from.begin(), from.end()); }

Sets id_sets(const std::string& name) {
  if (name == "uniform") return {"data.random.ids.kind=uniform"};
  // Zipf's law over the rows of a table; see the preset hstu-suite-zipf.
  if (name == "zipf") return {"data.random.ids.kind=zipf_bounded", "data.random.ids.alpha=0.95"};
  fail(ErrorCode::kInvalidArgument,
       fmt::format("bench suite: there are no ids `{}`; there is: uniform, zipf", name));
}

/// A config, and what rows say about it.
struct Workload {
  Settings settings;
  train::RunConfig config;
  std::vector<std::pair<std::string, std::string>> labels;
};

Workload make_workload(const SuiteSettings& suite, const std::string& lengths,
                       const std::string& ids, int ranks) {
  Workload made{suite.bench, {}, {}};
  Settings& s = made.settings;
  const Sets given = s.sets;
  if (s.device != "auto") s.sets.push_back("train.device=" + s.device);
  if (!lengths.empty()) append(s.sets, length_sets(load_config(s), lengths));
  if (!ids.empty()) append(s.sets, id_sets(ids));
  made.config = load_config(s);
  // What one GPU does in the published suites stays the same on any number of them.
  s.sets.push_back(fmt::format("data.batch_size={}", made.config.data.batch_size * ranks));
  const data::RandomDataConfig& random = made.config.data.random;
  made.labels = {s.preset.empty() ? std::pair("config", s.config) : std::pair("preset", s.preset),
                 {"lengths", name_of(random.lengths)},
                 {"ids", name_of(random.ids)},
                 {"ranks", std::to_string(ranks)}};
  if (!given.empty()) made.labels.emplace_back("given", fmt::format("{}", fmt::join(given, " ")));
  return made;
}

class Suite {
 public:
  Suite(const SuiteSettings& settings, comm::World& world, Report& report)
      : settings_(settings), world_(world), report_(report), file_(rows_of_first()) {}

  void run(const Workload& workload) {
    Sets sets;  // of the experiments that the next one builds on
    std::optional<Result> first;
    for (const Experiment& experiment :
         experiments(workload.config, report_.device(), world_.size())) {
      Sets mine = sets;
      append(mine, experiment.sets);
      if (experiment.goes_on && experiment.not_run.empty()) sets = mine;
      Result r;
      r.name = experiment.name;
      r.labels = workload.labels;
      r.labels.emplace_back("set", fmt::format("{}", fmt::join(experiment.sets, " ")));
      r.not_run = experiment.not_run;
      if (!first) first = r;
      if (wanted(experiment.name)) measure(workload, mine, *first, r);
    }
  }

 private:
  /// Only the first rank reads the file, before it writes it: all of them must want the same rows.
  std::string rows_of_first() { return world_.rank() == 0 ? settings_.out : std::string(); }

  bool wanted(const std::string& name) const {
    return settings_.only.empty() ||
           std::ranges::find(settings_.only, name) != settings_.only.end();
  }

  /// True on all ranks when the first one says so.
  bool first_says(bool yes) {
    if (world_.size() == 1) return yes;
    if (!group_) group_ = world_.open("suite");
    const char mine = yes ? 1 : 0;
    std::vector<std::vector<std::byte>> all;
    group_->all_gather(std::as_bytes(std::span(&mine, 1)), all).throw_if_failed();
    return all[0][0] == std::byte{1};
  }

  void measure(const Workload& workload, const Sets& sets, const Result& first, Result& r) {
    if (first_says(file_.has(report_.row(r)))) {
      return note(fmt::format("{:<28} is in {} already", r.name, settings_.out));
    }
    if (r.not_run.empty()) {
      try {
        run_steps(workload, sets, r);
      } catch (const Error& error) {
        // What a machine or a config cannot do is found out by all ranks before the first step.
        if (error.code() != ErrorCode::kOutOfMemory && error.code() != ErrorCode::kUnsupported &&
            error.code() != ErrorCode::kConfig) {
          throw;
        }
        r.not_run = error.what();
        r.not_run.resize(std::min(r.not_run.find('\n'), r.not_run.size()));
      }
    }
    if (world_.rank() != 0) return;
    if (r.not_run.empty()) {
      const double rate = r.items / r.timing.median();
      const auto baseline = r.name == first.name
                                ? std::optional(rate)
                                : file_.figure(report_.row(first), "samples_per_s");
      if (baseline) r.figures.emplace_back("speed_up", rate / *baseline);
    }
    file_.put(report_.row(r));
    report_.add(r);
  }

  void note(const std::string& line) {
    if (world_.rank() == 0) report_.note(line);
  }

  /// A timed run is one round over all batches, which differ in length: the mean of its steps.
  void run_steps(const Workload& workload, const Sets& sets, Result& r) {
    Settings s = workload.settings;
    append(s.sets, sets);
    const train::RunConfig config = load_config(s);
    const Batches batches = make_batches(config, kBatches, world_.rank(), world_.size());
    const auto round = static_cast<int64_t>(batches.all.size());
    Steps steps = measure_steps(config, batches, {s.repeats.warm_up, s.repeats.timed * round},
                                world_, EnergyMeter(report_.card()));
    Timing rounds;
    const std::vector<double>& each = steps.result.timing.seconds;
    for (size_t at = 0; at < each.size(); at += static_cast<size_t>(round)) {
      double sum = 0;
      for (int64_t i = 0; i < round; ++i) sum += each[at + static_cast<size_t>(i)];
      rounds.seconds.push_back(sum / static_cast<double>(round));
    }
    steps.result.name = r.name;
    steps.result.labels = r.labels;
    r = std::move(steps.result);
    r.timing = std::move(rounds);
    r.runs_differ = false;
    add_figures(config, steps, r);
  }

  void add_figures(const train::RunConfig& config, const Steps& steps, Result& r) const {
    const double seconds = r.timing.median();
    double peak = config.train.peak_tflops * 1e12;
    if (peak == 0 && report_.device().is_cuda()) {
      peak = stated_peak_flops(cuda_facts(report_.device().index).name);
    }
    peak *= world_.size();
    const model::IdentityConfig& skips = config.model.identities;
    if (peak > 0) {
      r.figures.emplace_back("mfu", r.flop / seconds / peak);
      // Work that identities skip is in the formula and not in the hardware.
      if (!skips.last_layer_targets && !skips.distinct_rows && !skips.action_codes) {
        r.figures.emplace_back("hfu", (r.flop + steps.recomputed_flop) / seconds / peak);
      }
    }
    if (steps.device_bytes > 0) {
      r.figures.emplace_back("memory_gib", static_cast<double>(steps.device_bytes) / base::kGib);
    }
    if (steps.uneven_before > 0) {
      r.figures.emplace_back("uneven_before", steps.uneven_before);
      r.figures.emplace_back("uneven_after", steps.uneven_after);
    }
  }

  static constexpr int64_t kBatches = 4;
  const SuiteSettings& settings_;
  comm::World& world_;
  Report& report_;
  RowFile file_;
  std::unique_ptr<comm::Communicator> group_;
};

}  // namespace

std::vector<std::string> length_sets(const train::RunConfig& config, const std::string& name) {
  const int64_t most = most_of(config.data.random.lengths);
  if (most < 1) {
    fail(ErrorCode::kConfig,
         "bench suite: other lengths need an end, data.random.lengths.high of the config");
  }
  const data::Distribution d = length_distribution(name, most);
  Sets sets = {"data.random.lengths.kind=" + name_of(d)};
  const auto add = [&](const char* key, auto value) {
    sets.push_back(fmt::format("data.random.lengths.{}={}", key, value));
  };
  add("low", d.low);
  add("high", d.high);
  add("mean", d.mean);
  add("std", d.std);
  add("alpha", d.alpha);
  return sets;
}

std::vector<Experiment> experiments(const train::RunConfig& config, Device device, int ranks) {
  const std::string one_rank = "there is one rank, and nothing to balance: start it with --ranks N";
  const std::string one_kernel = "the CPU has one attention kernel";
  const auto if_not = [](bool fine, const std::string& why) { return fine ? std::string() : why; };
  const bool gpu = device.is_cuda();
  Sets plain = {"balance.on=false", "parallel.pipeline=off"};
  if (gpu) plain.emplace_back("model.attention.kernel=portable");
  append(plain, identities(false));
  const std::string table = fmt::format("sparse.tables.{}.", largest_table(config));
  constexpr int kHeadGroup = 2;
  return {
      {"baseline", plain},
      {"balanced", {"balance.on=true"}, true, if_not(ranks > 1, one_rank)},
      {"fast attention", {"model.attention.kernel=auto"}, true, if_not(gpu, one_kernel)},
      {"recompute", {"model.recompute.normed_input=true"}},
      {"recompute more",
       {"model.recompute.gate=true", "model.recompute.uvqk=true"},
       /*goes_on=*/false},
      {"tensor parallel",
       {fmt::format("parallel.tensor_parallel={}", kHeadGroup)},
       /*goes_on=*/false,
       if_not(ranks % kHeadGroup == 0,
              "attention is shared by two ranks: start it with --ranks N, "
              "N even")},
      {"cached tables", {table + "placement=cached", table + "cache_share=0.1"}},
      {"prefetch", {"parallel.pipeline=on"}},
      {"identities", identities(true)},
  };
}

void run_suite(const SuiteSettings& settings, comm::World& world, Report& report) {
  const auto or_own = [](const Sets& names) { return names.empty() ? Sets{""} : names; };
  std::vector<Workload> workloads;  // what is wrong is an error before any work
  for (const std::string& lengths : or_own(settings.lengths)) {
    for (const std::string& ids : or_own(settings.ids)) {
      workloads.push_back(make_workload(settings, lengths, ids, world.size()));
    }
  }
  const train::RunConfig& config = workloads.front().config;
  if (!config.data.is_random()) {
    fail(ErrorCode::kConfig, "bench suite: it draws its samples; data.store must be empty");
  }
  const Device device = train::take_device(config, world);
  Sets names;
  for (const Experiment& e : experiments(config, device, world.size())) names.push_back(e.name);
  for (const std::string& name : settings.only) {
    if (std::ranges::find(names, name) != names.end()) continue;
    fail(ErrorCode::kInvalidArgument,
         fmt::format("bench suite: there is no experiment `{}`; there is: {}", name,
                     fmt::join(names, ", ")));
  }
  report.set_device(device);
  if (!report.card()) report.set_card(open_card(device));
  if (world.size() > 1 && config.train.threads == 0) {
    base::set_num_threads(train::fair_threads(train::Ranks(world, config, device)));
  }
  const Result ceiling = measure_gemm_rate(settings.bench, report);
  if (world.rank() == 0) report.add(ceiling);
  Suite suite(settings, world, report);
  for (const Workload& workload : workloads) suite.run(workload);
}

}  // namespace segue::bench
