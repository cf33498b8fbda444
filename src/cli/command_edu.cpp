#include <memory>
#include <string>

#include <fmt/format.h>

#include "cli/app.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "edu/edu.h"
#include "edu/experiment.h"
#include "edu/registry.h"

namespace segue::cli {
namespace {

void print_line(const std::string& line) {
  print(line + "\n");
  flush_output();
}

std::string experiment_list() {
  std::string text = "Experiments:\n";
  for (const edu::ExperimentKind& kind : edu::experiment_kinds()) {
    text += fmt::format("  {} {}\n", kind.id, kind.title);
  }
  return text;
}

/// A workload, with the options that all of them have.
CLI::App* add_workload(CLI::App& parent, const char* name, const char* help,
                       const std::shared_ptr<edu::Options>& o) {
  CLI::App* command = parent.add_subcommand(name, help);
  command->add_option(
      "--data", o->data,
      "folder of MovieLens-100K (u.data, u.user, u.item); default: data of the same "
      "shape, made up, whose truth is known");
  command->add_option("--seed", o->seed, "of data, split, weights and batches")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--threads", o->threads, "CPU threads; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--quick", o->quick,
                    "tiny shapes, a few seconds: everything runs, nothing is judged");
  command->add_flag("--split-by-time", o->split_by_time,
                    "validate on the newest fifth of the ratings, not on a random one");
  return command;
}

void add_measured(CLI::App& command, const std::shared_ptr<edu::Options>& o) {
  command.add_option("--out", o->out, "folder for sidecars and, of compare, tables and a page");
  command.add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command.add_flag("!--no-huge-pages", o->huge_pages,
                   "tables in pages of 4 KiB: what does the TLB cost?");
}

void add_variant(CLI::App& command, const std::shared_ptr<edu::Options>& o) {
  command
      .add_option(
          "--variant", o->variant,
          "cross: feature crosses of the history; uniform: random keys; faithful: as published")
      ->check(CLI::IsMember({"cross", "uniform", "faithful"}))
      ->capture_default_str();
}

struct RegistryLint {
  std::string registry = "configs/edu/workloads.yaml", sidecars;
};

void lint_registry(const RegistryLint& arguments) {
  const edu::LintResult result = edu::lint_registry(arguments.registry, arguments.sidecars);
  for (const std::string& finding : result.findings) print_line(finding);
  print_line(fmt::format("{}: {} workloads, {} sidecars, {} findings", arguments.registry,
                         result.workloads, result.sidecars, result.findings.size()));
  if (result.exit_code() != 0) throw ExitWith{result.exit_code()};
}

void add_registry_lint(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "lint", "Judge a registry of workloads, and the sidecars that it stands on.");
  command->footer("Exit codes: 0 fine, 1 findings, 2 no registry, or an empty one.");
  const auto arguments = std::make_shared<RegistryLint>();
  command->add_option("registry", arguments->registry, "YAML or JSON")->capture_default_str();
  command->add_option("--verify-against-sidecars", arguments->sidecars,
                      "folder of sidecars: computes each again and compares labels, numbers and "
                      "recorded SHA-256");
  command->callback([arguments] { lint_registry(*arguments); });
}

}  // namespace

void add_edu(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("edu", "The micro-DLRM trio: see where a step's time goes, and why.");
  command->require_subcommand(1);
  command->footer(experiment_list());
  const auto o = std::make_shared<edu::Options>();

  CLI::App* micro = add_workload(*command, "micro-dlrm", "Tables that fit into the cache.", o);
  add_measured(*micro, o);
  micro->callback([o] { edu::run_micro_dlrm(*o, print_line); });

  CLI::App* dram =
      add_workload(*command, "micro-dlrm-dram", "The same model on a table that does not.", o);
  add_measured(*dram, o);
  add_variant(*dram, o);
  dram->callback([o] { edu::run_micro_dlrm_dram(*o, print_line); });

  CLI::App* distributed = add_workload(*command, "micro-dlrm-distributed",
                                       "Ranks against micro-batches: the same training.", o);
  distributed->add_option("--ranks", o->ranks, "as threads of this process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  distributed->callback([o] { edu::run_micro_dlrm_distributed(*o, print_line); });

  CLI::App* compare =
      add_workload(*command, "compare", "All of them and the experiments, explained.", o);
  add_measured(*compare, o);
  add_variant(*compare, o);
  compare
      ->add_option("--experiment", o->experiments,
                   "some of the experiments only, e.g. E2,E4; default: all")
      ->delimiter(',');
  compare->callback([o] { edu::run_compare(*o, print_line, version_line()); });

  add_registry_lint(*command);
}

}  // namespace segue::cli
