#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/parquet.h"
#include "publish/chain.h"
#include "publish/publish.h"
#include "train/checkpoint/checkpoint.h"

namespace segue::cli {
namespace {

struct PublishArguments {
  std::string path, to, format, dtype;
  std::vector<std::string> tables;
  bool base = false;
  int64_t version = 0;
};

std::string kind_of(const publish::VersionManifest& version) {
  return version.is_base() ? "base" : fmt::format("increment on base {}", version.base);
}

void publish_checkpoint(const PublishArguments& arguments) {
  if (arguments.path.empty() || arguments.to.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "give a run or a checkpoint, and --to FOLDER (see `segue publish --help`)");
  }
  publish::PublishConfig config;
  config.folder = arguments.to;
  if (!arguments.format.empty()) config.format = publish::file_format_of(arguments.format);
  if (!arguments.dtype.empty()) config.dtype = publish::row_type_of(arguments.dtype);
  config.tables = arguments.tables;
  config.base = arguments.base;
  config.parquet = parquet_vectors();
  const train::Checkpoint checkpoint = train::open_checkpoint(arguments.path);
  const publish::PublishResult result = publish::publish(config, checkpoint);
  const publish::VersionManifest& version = result.version;
  const std::string path = publish::version_path(arguments.to, version.number);
  if (!result.published) {
    print(fmt::format("{}: has step {} already, nothing was changed\n", path, version.step));
    return;
  }
  print(fmt::format("{}: {}, step {}, {} bytes, {:.2f}% of a base, lag {:.1f} s\n", path,
                    kind_of(version), version.step, version.bytes(), 100 * result.share,
                    result.lag_seconds));
  for (const publish::PublishedTable& table : version.tables) {
    print(fmt::format("  {}: {} rows, {} new or changed, {} removed\n", table.name, table.rows,
                      table.in_file, table.removed));
  }
}

void verify(const PublishArguments& arguments) {
  const publish::Verified verified = publish::verify(arguments.path, parquet_vectors());
  if (!verified.problems.empty()) {
    fail(ErrorCode::kCorrupt, fmt::format("{}", fmt::join(verified.problems, "\n")));
  }
  print(fmt::format("{}: ok, {} version{}, {} bytes\n", arguments.path, verified.versions,
                    verified.versions == 1 ? "" : "s", verified.bytes));
}

void apply(const PublishArguments& arguments) {
  const publish::VersionManifest made =
      publish::apply(arguments.path, arguments.to, arguments.version, parquet_vectors());
  print(fmt::format("{}: {}, step {}, {} bytes\n", publish::version_path(arguments.to, made.number),
                    kind_of(made), made.step, made.bytes()));
}

}  // namespace

void add_publish(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "publish", "Give a checkpoint to serving: a base, then increments of what changed.");
  const auto arguments = std::make_shared<PublishArguments>();
  command->add_option("path", arguments->path, "a run, its checkpoints folder or one checkpoint");
  command->add_option("--to", arguments->to, "folder of versions; made if it is not there");
  command->add_option("--format", arguments->format,
                      "of the files of tables: safetensors or parquet; default: as before");
  command->add_option("--dtype", arguments->dtype,
                      "of the rows: f32, bf16 or int8; default: as before");
  command
      ->add_option("--tables", arguments->tables, "some only, e.g. item,user; default: as before")
      ->delimiter(',');
  command->add_flag("--base", arguments->base, "all rows, even where an increment would do");

  CLI::App* verifying = command->add_subcommand(
      "verify",
      "Compare versions with their checksums and with each other; exit code 4 when "
      "something is wrong.");
  verifying->add_option("folder", arguments->path, "folder of versions")->required();
  verifying->callback([arguments] { verify(*arguments); });

  CLI::App* applying =
      command->add_subcommand("apply", "Replay a base and its increments into one base.");
  applying->add_option("folder", arguments->path, "folder of versions")->required();
  applying->add_option("--to", arguments->to, "folder for the base; empty or not there")
      ->required();
  applying->add_option("--version", arguments->version, "up to which; default: the newest")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  applying->callback([arguments] { apply(*arguments); });

  command->callback([arguments, command] {
    if (!command->get_subcommands().empty()) return;  // it has done its work
    publish_checkpoint(*arguments);
  });
}

}  // namespace segue::cli
