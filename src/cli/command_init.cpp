#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/output.h"
#include "train/run/init_config.h"

namespace segue::cli {

void add_init(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("init", "Propose a config for an event store: segue init STORE > my.toml");
  const auto store = std::make_shared<std::string>();
  command->add_option("store", *store, "event store, as `segue prep` makes it")->required();
  command->callback([store] { print(train::config_for_store(*store)); });
}

}  // namespace segue::cli
