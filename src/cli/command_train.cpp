#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/time.h"
#include "cli/app.h"
#include "cli/commands.h"
#include "cli/parquet.h"
#include "cli/start_ranks.h"
#include "comm/join/environment.h"
#include "publish/publish.h"
#include "publish/table_file.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/loop.h"
#include "train/run/stop_signals.h"
#include "train/run_config.h"
#include "train/step/ranks.h"

namespace segue::cli {
namespace {

struct TrainArguments {
  base::ConfigSources sources;
  std::string run_dir;
  train::LoopOptions options;
  std::optional<std::string> device;
  std::optional<int64_t> threads, steps, seed;
  int64_t ranks = 1;
  bool print_config = false;
};

/// runs/demo-20260131T235959Z: beside earlier runs of the same config, never over them.
std::string default_run_dir(const std::string& config_file) {
  std::string time = base::iso_time_now();
  std::erase_if(time, [](char c) { return c == '-' || c == ':'; });
  return fmt::format("runs/{}-{}", std::filesystem::path(config_file).stem().string(), time);
}

/// `segue train --run DIR` resumes with the config of the run itself.
void take_config_of_run(TrainArguments& arguments) {
  if (arguments.run_dir.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "give a CONFIG to train, or --run with the folder of a run to resume");
  }
  arguments.sources.file = arguments.run_dir + "/config.toml";
  if (base::exists(arguments.sources.file)) return;
  fail(ErrorCode::kNotFound,
       fmt::format("{} holds no run to resume; give a CONFIG to start one", arguments.run_dir));
}

/// What is wrong with a command line or a config is wrong on all ranks, as a rule. The first one
/// says it and ends, whereupon mpirun ends the others before they say it again; a rank that is
/// alone with its error still reports it.
void wait_for_first_rank_error() {
  if (comm::read_launch().rank > 0) std::this_thread::sleep_for(std::chrono::seconds(2));
}

train::RunConfig load_checked(TrainArguments& arguments) {
  try {
    if (arguments.sources.file.empty()) take_config_of_run(arguments);
    train::RunConfig config = train::load_run_config(arguments.sources);
    train::require_ranks(config, std::max<int64_t>(arguments.ranks, comm::read_launch().ranks));
    return config;
  } catch (const Error&) {
    wait_for_first_rank_error();
    throw;
  }
}

/// Checkpoints are verified when they are opened; this process has just written them.
std::function<void(const std::string&)> publisher_of(const train::PublishSettings& settings) {
  publish::PublishConfig config;
  config.folder = settings.folder;
  config.format = static_cast<publish::FileFormat>(settings.format);
  config.dtype = static_cast<publish::RowType>(settings.dtype);
  config.parquet = parquet_vectors();
  publish::require_format(*config.format, config.parquet);
  return [config](const std::string& path) {
    const publish::PublishResult result =
        publish::publish(config, train::Checkpoint(path, train::Verify::kSizes));
    if (!result.published) return;
    const publish::VersionManifest& version = result.version;
    base::log_info(fmt::format("published step {} as version {}{}, {} bytes, lag {:.1f} s",
                               version.step, version.number, version.is_base() ? " (base)" : "",
                               version.bytes(), result.lag_seconds));
  };
}

void train(TrainArguments& arguments) {
  train::hold_early_signals();
  std::vector<std::string>& sets = arguments.sources.sets;
  // Options of their own are --set in short form: they show in the resolved config.
  if (arguments.device) sets.push_back("train.device=" + *arguments.device);
  if (arguments.threads) sets.push_back(fmt::format("train.threads={}", *arguments.threads));
  if (arguments.steps) sets.push_back(fmt::format("train.steps={}", *arguments.steps));
  if (arguments.seed) sets.push_back(fmt::format("train.seed={}", *arguments.seed));
  const train::RunConfig config = load_checked(arguments);
  if (arguments.print_config) return print_config(config);
  const std::string run_dir =
      arguments.run_dir.empty() ? default_run_dir(arguments.sources.file) : arguments.run_dir;
  if (arguments.ranks > 1) {
    const int code =
        start_ranks(arguments.ranks, config.comm, {"--ranks", "--run"}, {"--run=" + run_dir});
    if (code != 0) base::detail::write_stderr(flight_line(run_dir), /*stays_open=*/false);
    throw ExitWith{code};
  }
  if (!config.publish.folder.empty()) arguments.options.publish = publisher_of(config.publish);
  train::train_loop(config, run_dir, arguments.options);
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model, or resume a run.");
  const auto arguments = std::make_shared<TrainArguments>();
  add_config_sources(*command, arguments->sources, false);
  command->add_option(
      "--run", arguments->run_dir,
      "folder of the run (default: runs/CONFIG-TIME); a run that it holds is resumed");
  command->add_flag("--overwrite", arguments->options.overwrite, "replace the run in that folder");
  command
      ->add_option("--allow-config-change", arguments->options.allow_config_changes,
                   "key that may differ from the run's own config; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--device", arguments->device, "auto, cpu, cuda or cuda:N");
  command->add_option("--threads", arguments->threads,
                      "CPU threads of a rank; 0: all cores, shared with the ranks beside it");
  command->add_option("--steps", arguments->steps, "optimizer steps; 0: all samples");
  command
      ->add_option("--ranks", arguments->ranks,
                   "start this many ranks on this machine (mpirun and srun start their own)")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  command->add_option("--seed", arguments->seed, "of initial values, dropout and random data");
  command->add_flag("--print-config", arguments->print_config,
                    "print the config that would be trained, and end");
  command->callback([arguments] { train(*arguments); });
}

}  // namespace segue::cli
