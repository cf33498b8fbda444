#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/config.h"

namespace segue::train {
struct RunConfig;
}

namespace segue::cli {

// One function per subcommand, each in a file of its own: adds the subcommand with its options; the
// work is done in its callback.
void add_train(CLI::App& app);
void add_bench(CLI::App& app);
void add_checkpoint(CLI::App& app);
void add_config(CLI::App& app);
void add_init(CLI::App& app);
void add_edu(CLI::App& app);
void add_inspect(CLI::App& app);
void add_mllog(CLI::App& app);
void add_prep(CLI::App& app);
void add_publish(CLI::App& app);
void add_report(CLI::App& app);
void add_synth(CLI::App& app);
void add_trace(CLI::App& app);
void add_version(CLI::App& app);
void add_doctor(CLI::App& app);
void add_eval(CLI::App& app);
void add_flight(CLI::App& app);
void add_plan(CLI::App& app);
void add_score(CLI::App& app);

/// The resolved config, all of it: what `segue config` and `segue train --print-config` print.
void print_config(const train::RunConfig& config);

/// The positional CONFIG and the repeatable --set of a command.
void add_config_sources(CLI::App& command, base::ConfigSources& sources, bool file_required = true);

/// The repeatable --set alone.
void add_sets(CLI::App& command, std::vector<std::string>& sets);

/// What the flight records of a run that broke say, as a line; empty where they say nothing.
std::string flight_line(const std::string& run);

/// The words that this process was started with.
std::vector<std::string> command_line();
/// The same as a line for a shell, without the folder of the program.
std::string shell_command();

/// "segue 0.2.0 (commit)"
std::string version_line();

}  // namespace segue::cli
