#include <memory>

#include "base/config.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "train/run_config.h"

namespace segue::cli {

void add_config_sources(CLI::App& command, base::ConfigSources& sources, bool file_required) {
  command.add_option("config", sources.file, "TOML file (see configs/)")->required(file_required);
  add_sets(command, sources.sets);
}

void add_sets(CLI::App& command, std::vector<std::string>& sets) {
  command
      .add_option("--set", sets,
                  "override one value, for example --set model.layers=3; may be repeated")
      ->allow_extra_args(false);
}

void print_config(const train::RunConfig& config) { print(base::to_toml(config)); }

void add_config(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("config", "Check a config file and print all its values, with help.");
  const auto sources = std::make_shared<base::ConfigSources>();
  add_config_sources(*command, *sources);
  command->callback([sources] { print_config(train::load_run_config(*sources)); });
}

}  // namespace segue::cli
