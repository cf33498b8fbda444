#include <memory>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/parquet.h"
#include "data/propose/propose_schema.h"
#include "train/run/init_config.h"

namespace segue::cli {

void add_init(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("init", "Propose a config for an event store: segue init STORE > my.toml");
  command->footer(
      "`segue init --raw LOG > schema.toml` proposes the schema that `segue prep` needs, from the\n"
      "files themselves (Parquet or CSV, plain, gzip or zstd).");
  struct Arguments {
    std::string store, raw;
  };
  const auto a = std::make_shared<Arguments>();
  CLI::Option* store =
      command->add_option("store", a->store, "event store, as `segue prep` makes it");
  command->add_option("--raw", a->raw, "raw log instead, a folder or a file: propose its schema")
      ->excludes(store);
  command->callback([a] {
    if (a->raw.empty() == a->store.empty()) {
      fail(
          ErrorCode::kInvalidArgument,
          "name a store to propose a config for, or --raw LOG to propose a schema (see `segue init "
          "--help`)");
    }
    print(a->raw.empty() ? train::config_for_store(a->store)
                         : data::propose_schema(a->raw, parquet()));
  });
}

}  // namespace segue::cli
