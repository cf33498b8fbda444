#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/parallel.h"
#include "bench/attention_map.h"
#include "bench/experiments.h"
#include "bench/length_kinds.h"
#include "bench/steps.h"
#include "cli/app.h"
#include "cli/bench_commands.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/start_ranks.h"
#include "comm/world.h"
#include "train/presets.h"

namespace segue::cli {
namespace {

struct SuiteArguments {
  bench::SuiteSettings suite;
  int64_t ranks = 1;
  int threads = 0;
  bool json = false;
};

struct MapArguments {
  bench::MapSettings map;
  int threads = 0;
  bool json = false;
};

bench::Report make_report(bool json, const std::string& command) {
  return bench::Report(
      [](const std::string& line) {
        print(line + "\n");
        flush_output();
      },
      json, command);
}

void run_suite(const SuiteArguments& arguments) {
  const comm::CommConfig links = bench::load_config(arguments.suite.bench).comm;
  if (arguments.ranks > 1) throw ExitWith{start_ranks(arguments.ranks, links, {"--ranks"})};
  const std::unique_ptr<comm::World> world = comm::join_world(links);
  base::set_num_threads(arguments.threads);
  const std::string ranks =
      world->size() > 1 ? fmt::format(" --ranks {}", world->size()) : std::string();
  bench::Report report = make_report(arguments.json, shell_command() + ranks);
  bench::run_suite(arguments.suite, *world, report);
}

void run_map(const MapArguments& arguments) {
  base::set_num_threads(arguments.threads);
  bench::Report report = make_report(arguments.json, shell_command());
  bench::run_map(arguments.map, report);
}

void add_out(CLI::App& command, std::string& out, bool& json, int& threads) {
  command.add_option("--out", out,
                     "file of rows, NAME.jsonl: those that it has are not measured again");
  command.add_flag("--json", json, "one JSON object per result");
  command.add_option("--threads", threads, "CPU threads; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

}  // namespace

void add_bench_suite(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "suite", "Training steps from a plain trainer to all that this one does, step by step.");
  const auto arguments = std::make_shared<SuiteArguments>();
  bench::Settings& s = arguments->suite.bench;
  s.repeats = {2, 2};
  s.preset = "hstu-suite-zipf";
  s.config.clear();
  CLI::Option* preset =
      command
          ->add_option("--preset", s.preset,
                       fmt::format("what is trained: {}", fmt::join(train::preset_names(), ", ")))
          ->capture_default_str();
  command->add_option("--config", s.config, "a config with random samples, in place of a preset")
      ->excludes(preset);
  command->add_option("--set", s.sets, "override one value of it; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--lengths", arguments->suite.lengths,
                   fmt::format("of samples, in place of its own: {}",
                               fmt::join(bench::length_names(), ", ")))
      ->delimiter(',');
  command->add_option("--ids", arguments->suite.ids, "likewise: uniform, zipf")->delimiter(',');
  command
      ->add_option("--only", arguments->suite.only,
                   "experiments, e.g. \"baseline,fast attention\"; all others are left out")
      ->delimiter(',');
  command->add_option("--repeat", s.repeats.timed, "timed rounds over four batches")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--warm-up", s.repeats.warm_up, "steps before them")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command->add_option("--device", s.device, "auto (a GPU if there is one), cpu or cuda:N")
      ->capture_default_str();
  command
      ->add_option("--ranks", arguments->ranks,
                   "start this many ranks on this machine (mpirun and srun start their own)")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  add_out(*command, arguments->suite.out, arguments->json, arguments->threads);
  command->callback([arguments] {
    bench::Settings& settings = arguments->suite.bench;
    if (!settings.config.empty()) settings.preset.clear();
    run_suite(*arguments);
  });
}

void add_bench_map(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "map", "Attention over numbers of sequences, lengths and widths of heads.");
  const auto arguments = std::make_shared<MapArguments>();
  bench::MapSettings& m = arguments->map;
  const auto list = [&](const char* name, std::vector<int64_t>& values, const char* help) {
    command->add_option(name, values, help)->delimiter(',');
  };
  list("--sequences", m.sequences, "numbers of sequences; on a GPU 1 to 512");
  list("--lengths", m.lengths, "their lengths; on a GPU 64 to 16384");
  list("--head-dims", m.head_dims, "widths of a head; on a GPU 64, 128, 256");
  command->add_option("--heads", m.heads, "attention heads")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  command->add_option("--cell-seconds", m.cell_seconds, "for the timed runs of one direction")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--device", m.device, "auto (a GPU if there is one), cpu or cuda:N")
      ->capture_default_str();
  add_out(*command, m.out, arguments->json, arguments->threads);
  command->callback([arguments] { run_map(*arguments); });
}

}  // namespace segue::cli
