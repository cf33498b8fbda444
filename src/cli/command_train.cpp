#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "cli/commands.h"
#include "train/loop.h"
#include "train/run_config.h"

namespace segue::cli {
namespace {

struct TrainArguments {
  base::ConfigSources sources;
  std::string run_dir;
  train::LoopOptions options;
  std::optional<std::string> device;
  std::optional<int64_t> threads, steps, seed;
};

/// runs/demo-20260131T235959Z: beside earlier runs of the same config, never over them.
std::string default_run_dir(const std::string& config_file) {
  std::string time = base::iso_time_now();
  std::erase_if(time, [](char c) { return c == '-' || c == ':'; });
  return fmt::format("runs/{}-{}", std::filesystem::path(config_file).stem().string(), time);
}

/// `segue train --run DIR` goes on as the run itself says.
void take_config_of_run(TrainArguments& arguments) {
  if (arguments.run_dir.empty()) {
    fail(ErrorCode::kInvalidArgument, "give a CONFIG to train, or --run with a folder to go on in");
  }
  arguments.sources.file = arguments.run_dir + "/config.toml";
  if (base::exists(arguments.sources.file)) return;
  fail(ErrorCode::kNotFound,
       fmt::format("{} holds no run to go on with; give a CONFIG to start one", arguments.run_dir));
}

void train(TrainArguments& arguments) {
  std::vector<std::string>& sets = arguments.sources.sets;
  // Options of their own are --set in short form: they show in the resolved config.
  if (arguments.device) sets.push_back("train.device=" + *arguments.device);
  if (arguments.threads) sets.push_back(fmt::format("train.threads={}", *arguments.threads));
  if (arguments.steps) sets.push_back(fmt::format("train.steps={}", *arguments.steps));
  if (arguments.seed) sets.push_back(fmt::format("train.seed={}", *arguments.seed));
  if (arguments.sources.file.empty()) take_config_of_run(arguments);
  const train::RunConfig config = train::load_run_config(arguments.sources);
  train::train_loop(
      config,
      arguments.run_dir.empty() ? default_run_dir(arguments.sources.file) : arguments.run_dir,
      arguments.options);
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model, or go on with a run.");
  const auto arguments = std::make_shared<TrainArguments>();
  add_config_sources(*command, arguments->sources, false);
  command->add_option("--run", arguments->run_dir,
                      "folder of the run (default: runs/CONFIG-TIME); one that holds a run is gone "
                      "on with");
  command->add_flag("--overwrite", arguments->options.overwrite, "replace the run in that folder");
  command
      ->add_option("--allow-config-change", arguments->options.allow_config_changes,
                   "key that may differ from the run's own config; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--device", arguments->device, "auto, cpu, cuda or cuda:N");
  command->add_option("--threads", arguments->threads, "CPU threads; 0: all cores");
  command->add_option("--steps", arguments->steps, "optimizer steps; 0: all samples");
  command->add_option("--seed", arguments->seed, "of initial values, dropout and random data");
  command->callback([arguments] { train(*arguments); });
}

}  // namespace segue::cli
