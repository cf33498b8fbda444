#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json_line.h"
#include "base/time.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_model.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;

struct CheckpointArguments {
  std::string path, out;
  bool json = false, tables = false;
};

/// A path may be that of a run, of its folder of checkpoints or of one checkpoint.
std::vector<std::string> checkpoints_at(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) fail(ErrorCode::kNotFound, path + ": no such folder");
  const std::string of_run = path + "/checkpoints";
  std::vector<std::string> found;
  for (const std::string& folder : {of_run, path}) {
    for (const train::CheckpointEntry& e : train::list_checkpoints(folder)) found.push_back(e.path);
    if (!found.empty() || base::exists(of_run)) break;
  }
  const std::string name = fs::path(path).lexically_normal().filename().string();
  const bool is_one =
      base::exists(path + "/" + train::kCheckpointManifest) || name.starts_with("step-");
  if (found.empty() && is_one) found.push_back(path);
  if (found.empty()) {
    fail(ErrorCode::kNotFound,
         fmt::format("{}: no checkpoints; give a run, its checkpoints folder or one checkpoint",
                     path));
  }
  return found;
}

/// When the checkpoint was complete; the manifest is written last.
std::string saved_at(const std::string& path) {
  struct stat info {};
  const std::string manifest = path + "/" + train::kCheckpointManifest;
  return ::stat(manifest.c_str(), &info) == 0 ? base::iso_time(info.st_mtime) : "?";
}

void list(const CheckpointArguments& arguments) {
  for (const std::string& path : checkpoints_at(arguments.path)) {
    try {
      const auto manifest = train::CheckpointManifest::read(path);
      const auto files = static_cast<int64_t>(manifest.files.size());
      const std::string saved = saved_at(path);
      if (arguments.json) {
        print(base::json_line({{"path", path},
                               {"step", manifest.step},
                               {"bytes", manifest.bytes()},
                               {"files", files},
                               {"ranks", manifest.ranks},
                               {"increment", manifest.increment ? manifest.increment->number : 0},
                               {"saved", saved},
                               {"segue", manifest.segue_version}}) +
              "\n");
      } else {
        const std::string ranks =
            manifest.ranks == 1 ? "" : fmt::format(" of {} ranks", manifest.ranks);
        const std::string increment =
            manifest.increment ? fmt::format(", increment {} after step {}",
                                             manifest.increment->number, manifest.increment->step)
                               : "";
        print(fmt::format("step {:>10}  {:>16} bytes in {:>3} {}{}{}  {}  {}\n", manifest.step,
                          manifest.bytes(), files, files == 1 ? "file " : "files", ranks, increment,
                          saved, path));
      }
    } catch (const Error& error) {
      if (arguments.json) {
        print(base::json_line({{"path", path}, {"error", error.what()}}) + "\n");
      } else {
        print(fmt::format("damaged: {}\n", error.what()));
      }
    }
  }
}

void verify(const CheckpointArguments& arguments) {
  std::vector<std::string> damaged;
  for (const std::string& path : checkpoints_at(arguments.path)) {
    try {
      const train::Checkpoint checkpoint(path);
      print(fmt::format("{}: ok, {} arrays, {} bytes\n", path, checkpoint.arrays().size(),
                        checkpoint.manifest().bytes()));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      damaged.emplace_back(error.what());
    }
  }
  if (!damaged.empty()) fail(ErrorCode::kCorrupt, fmt::format("{}", fmt::join(damaged, "\n")));
}

void export_checkpoint(const CheckpointArguments& arguments) {
  const train::Checkpoint checkpoint(checkpoints_at(arguments.path).back());
  const train::Exported exported =
      train::export_weights(checkpoint, arguments.out, arguments.tables);
  print(fmt::format("{}: {} tensors of step {}, {} bytes\n", arguments.out, exported.tensors,
                    checkpoint.step(), exported.bytes));
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("checkpoint", "List, verify or export the checkpoints of a run.");
  command->require_subcommand(1);
  const auto arguments = std::make_shared<CheckpointArguments>();
  const auto add = [&](const char* name, const char* help) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_option("path", arguments->path, "a run, its checkpoints folder or one checkpoint")
        ->required();
    return sub;
  };
  CLI::App* ls = add("ls", "Tell which there are; reads manifests only.");
  ls->add_flag("--json", arguments->json, "one JSON object per line");
  ls->callback([arguments] { list(*arguments); });

  add("verify", "Compare every byte with its checksum; exit code 4 when one is damaged.")
      ->callback([arguments] { verify(*arguments); });

  CLI::App* exporting =
      add("export", "Write the weights of the (newest) checkpoint as safetensors.");
  exporting->add_option("--out", arguments->out, "file to write")->required();
  exporting->add_flag("--tables", arguments->tables, "embedding tables too");
  exporting->callback([arguments] { export_checkpoint(*arguments); });
}

}  // namespace segue::cli
