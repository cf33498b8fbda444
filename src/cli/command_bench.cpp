#include <memory>
#include <string>

#include <fmt/format.h>

#include "base/parallel.h"
#include "bench/bench.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace segue::cli {
namespace {

struct BenchArguments {
  std::string name;
  bench::Settings settings;
  bool json = false;
  int threads = 0;
};

void run(const BenchArguments& arguments) {
  base::set_num_threads(arguments.threads);
  bench::Report report(
      [](const std::string& line) {
        print(line + "\n");
        flush_output();
      },
      arguments.json);
  bench::run_bench(arguments.name, arguments.settings, report);
}

std::string footer() {
  std::string text = "Benches:\n";
  for (const bench::Bench& b : bench::benches())
    text += fmt::format("  {:<10} {}\n", b.name, b.help);
  return text;
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Measure speed.");
  command->footer(footer());
  const auto arguments = std::make_shared<BenchArguments>();
  bench::Settings& s = arguments->settings;
  command->add_option("name", arguments->name, "what to measure, see below")->required();
  command->add_flag("--json", arguments->json, "one JSON object per result");
  command->add_option("--repeat", s.repeats.timed, "timed runs")->capture_default_str();
  command->add_option("--warm-up", s.repeats.warm_up, "runs before them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "CPU threads; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--dim", s.layer.dim, "width of the layer")->capture_default_str();
  command->add_option("--heads", s.layer.heads, "attention heads")->capture_default_str();
  command->add_option("--head-dim", s.layer.head_dim, "width of a head")->capture_default_str();
  command->add_option("--sequences", s.layer.sequences, "sequences")->capture_default_str();
  command->add_option("--length", s.layer.length, "tokens of a sequence")->capture_default_str();
  command->add_flag("--jagged", s.layer.jagged, "lengths from 1 to twice that");
  command->add_option("--dropout", s.layer.dropout, "of the layer")->capture_default_str();
  command->add_option(
      "--preset", s.preset,
      "of the bench `step`: dlrmv4-1gpu, the reference's model beside 70 GB of tables");
  command->add_option("--device", s.device, "of the bench `stack`: auto, cpu or cuda:N")
      ->capture_default_str();
  command->add_option("--layers", s.layers, "of the bench `stack`")->capture_default_str();
  command->add_option("--config", s.config, "config of the bench `step`")->capture_default_str();
  command->add_option("--set", s.sets, "override one value of that config; may be repeated")
      ->allow_extra_args(false);
  command->callback([arguments] { run(*arguments); });
}

}  // namespace segue::cli
