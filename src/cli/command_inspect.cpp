#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/npy.h"
#include "base/safetensors.h"
#include "cli/commands.h"
#include "cli/inspect_store.h"
#include "cli/inspect_table.h"
#include "cli/output.h"

namespace segue::cli {
namespace {

struct Entry {
  std::string name, dtype, shape;
  size_t bytes = 0;
};

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void print_entries(const std::vector<Entry>& entries) {
  size_t name_width = 4, shape_width = 5, total = 0;
  for (const Entry& e : entries) {
    name_width = std::max(name_width, e.name.size());
    shape_width = std::max(shape_width, e.shape.size());
    total += e.bytes;
  }
  const auto row = [&](std::string_view name, std::string_view dtype, std::string_view shape,
                       std::string_view bytes) {
    print(fmt::format("{:<{}}  {:<5}  {:<{}}  {:>12}\n", name, name_width, dtype, shape,
                      shape_width, bytes));
  };
  row("name", "dtype", "shape", "bytes");
  for (const Entry& e : entries) row(e.name, e.dtype, e.shape, std::to_string(e.bytes));
  print(fmt::format("{} {}, {} bytes\n", entries.size(), entries.size() == 1 ? "array" : "arrays",
                    total));
}

void inspect_npy(const std::string& path) {
  const base::NpyFile file(path);
  const std::string name = path.substr(path.find_last_of('/') + 1);
  print_entries({{name, file.descr(), shape_text(file.shape()), file.bytes().size()}});
}

void inspect_safetensors(const std::string& path) {
  const base::SafetensorsFile file(path);
  std::vector<Entry> entries;
  for (const auto& [name, tensor] : file.tensors()) {
    entries.push_back({name, tensor.dtype, shape_text(tensor.shape), tensor.bytes.size()});
  }
  print_entries(entries);
  for (const auto& [key, value] : file.metadata()) {
    print(fmt::format("metadata {}: {}\n", key, value));
  }
}

void inspect(const InspectArguments& arguments) {
  const std::string& path = arguments.path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    if (is_checkpoint_folder(path)) return inspect_tables(path, arguments.table, arguments.json);
    if (!arguments.table.empty()) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("{}: --table is for runs and checkpoints, and this is neither", path));
    }
    return inspect_store(arguments);
  }
  if (arguments.json || arguments.verify || !arguments.table.empty()) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{}: --json, --verify and --table are for folders", path));
  }
  if (path.ends_with(".npy")) return inspect_npy(path);
  if (path.ends_with(".safetensors")) return inspect_safetensors(path);
  if (!base::exists(path)) fail(ErrorCode::kNotFound, path + ": no such file or folder");
  fail(ErrorCode::kInvalidArgument,
       fmt::format("{}: inspect knows event stores, runs and checkpoints (folders), .npy and "
                   ".safetensors files; `segue prep` makes an event store of a raw log",
                   path));
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Check an event store, a run's tables or a file and tell what is in it.");
  const auto arguments = std::make_shared<InspectArguments>();
  data::InspectConfig& config = arguments->config;
  command->add_option("path", arguments->path, "event store, run, checkpoint, .npy or .safetensors")
      ->required();
  command->add_flag("--json", arguments->json, "folders: the same numbers as one JSON object");
  command->add_option("--table", arguments->table, "run or checkpoint: this table alone");
  command->add_flag("--verify", arguments->verify,
                    "store: compare checksums and look at every event");
  command->add_flag("--baselines", arguments->baselines,
                    "store: AUC of simple predictions, also when the truth is not known");
  command->add_option("--truth", arguments->truth,
                      "store: folder of the synthetic raw log that it was prepared from");
  command->add_option("--index", arguments->index,
                      "store: folder for what is derived from a read-only store");
  command
      ->add_option("--history", config.history_length,
                   "store: events a history asks for; 0: as the store was made")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--min-history", config.min_history,
                   "store: earlier events that an anchor needs; default: as the store was made")
      ->check(CLI::NonNegativeNumber);
  command->callback([arguments] { inspect(*arguments); });
}

}  // namespace segue::cli
