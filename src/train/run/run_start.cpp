#include "train/run/run_start.h"

#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/stage.h"
#include "tensor/device_memory.h"
#include "train/idle_keys.h"
#include "train/run/stage_store.h"
#include "train/run/store_record.h"

namespace segue::train {
namespace {

/// Without a checkpoint the run begins again from nothing, and may do so with another config: that
/// is what a mistake in the first one needs.
void load_state(const std::string& config_toml, const LoopOptions& options, RunStart& start) {
  const base::Stage stage("open checkpoint");
  NewestCheckpoint newest = newest_checkpoint(start.folder->checkpoints_path());
  if (!newest.checkpoint && !newest.damaged.empty()) {
    fail(ErrorCode::kCorrupt,
         fmt::format("no checkpoint in {} is whole:\n{}\nStart over with --overwrite",
                     start.folder->checkpoints_path(), fmt::join(newest.damaged, "\n")));
  }
  if (newest.checkpoint) {
    start.checkpoint = std::make_unique<Checkpoint>(std::move(*newest.checkpoint));
    start.state = run_state_of(*start.checkpoint);
  } else {
    start.state.config = base::read_file(start.folder->config_path());
    start.resuming = config_differences(start.state.config, config_toml).empty();
    if (start.resuming) return;
    base::log_info("the run in this folder has saved no step; it begins anew with this config");
    start.state = {};
    return;
  }
  std::vector<std::string> allowed = options.allow_config_changes;
  const std::string store = recorded_config(config_toml).data.store;
  if (require_store(start.state, start.checkpoint->path(), store, allowed)) {
    allowed.emplace_back(kStoreKey);  // wherever it lies by now
  }
  require_same_config(start.state.config, config_toml, allowed);
}

/// Ranks of one run that compute something else would train wrongly without a word.
void require_config_of_first(const std::string& config_toml, const Ranks& ranks) {
  std::string differences;
  for (const ConfigDifference& d : config_differences(ranks.from_first(config_toml), config_toml)) {
    differences += fmt::format("\n  {}: {} there, {} here", d.key, d.before, d.now);
  }
  if (differences.empty()) return;
  fail(ErrorCode::kConfig,
       fmt::format("rank {} has another config than rank 0; start all ranks with the same one:{}",
                   ranks.rank(), differences));
}

/// The other ranks go on from where the first one does.
void share_state(const Ranks& ranks, RunStart& start) {
  const Checkpoint* found = start.checkpoint.get();
  const std::string path = ranks.from_first(found != nullptr ? found->path() : "");
  const std::string state = ranks.from_first(found != nullptr ? found->state_json() : "");
  const std::string resuming = ranks.from_first(start.resuming ? "yes" : "no");
  if (ranks.first()) return;
  start.resuming = resuming == "yes";
  if (path.empty()) return;
  start.checkpoint = std::make_unique<Checkpoint>(path, Verify::kSizes);
  start.state = run_state_from_json(state);
}

/// Where this machine reads the store.
std::string staged_store(const DataConfig& data, const Ranks& ranks, bool first_here) {
  const base::Stage stage("stage store");
  std::future<std::string> copy;
  if (first_here) {
    copy = std::async(std::launch::async, stage_store, data.store, data.stage_to);
  }
  ranks.wait_until([&](double seconds) {
    return !first_here ||
           copy.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
  });
  return first_here ? copy.get() : stage_store(data.store, data.stage_to);  // finds it there
}

}  // namespace

void note_idle_keys(const RunConfig& config, const Ranks& ranks, Device device) {
  if (!ranks.first()) return;
  for (const IdleKey& key : idle_keys(config, {ranks.size(), device.is_cuda()})) {
    base::log_warning(
        fmt::format("{} = {} has no effect in this run: {}", key.key, key.value, key.why));
  }
}

/// The first rank makes the indexes that a store lacks, before the others look for them; of a
/// staged store the first of every machine does. The store may grow meanwhile.
std::unique_ptr<Source> open_source(const RunConfig& config, const Ranks& ranks, bool first_here) {
  RunConfig here = config;
  const bool staged = !config.data.stage_to.empty() && !config.data.store.empty();
  if (staged) here.data.store = staged_store(config.data, ranks, first_here);
  const auto open = [&](int64_t segments) {
    return make_source(here, ranks.rank(), ranks.size(), first_here, segments);
  };
  std::unique_ptr<Source> source;
  if (ranks.first()) source = open(data::kAllSegments);
  const int64_t segments =
      std::stoll(ranks.from_first(std::to_string(source != nullptr ? source->segments() : 0)));
  if (staged && first_here && source == nullptr) source = open(segments);
  if (staged && !ranks.alone()) ranks.results->barrier().throw_if_failed();
  return source != nullptr ? std::move(source) : open(segments);
}

Device take_device(const RunConfig& config, const comm::World& world) {
  Device device = choose_device(config.train.device);
  const bool chosen = config.train.device != "auto" && config.train.device != "cuda";
  if (device.is_cuda() && !chosen) {
    device = Device::cuda(world.local_rank() % cuda_device_count());
  }
  use_device(device);
  return device;
}

void require_place(const data::StreamPosition& next, const Source& source) {
  const int64_t first = source.first().window, end = source.end().window;
  if (next.window >= first && next.window <= end) return;
  fail(
      ErrorCode::kConfig,
      fmt::format("the run goes on in window {}, but the windows to train on are {} to {} here; go "
                  "on with the store and the data.stream that it was started with",
                  next.window, first, end - 1));
}

void begin_with_weights(const std::string& path, const std::string& store, Trainer& trainer) {
  try {
    const Checkpoint from = open_checkpoint(path);
    if (trainer.ranks().first()) require_ids(run_state_of(from), from.path(), store);
    trainer.begin_with(from);
    if (!trainer.ranks().first()) return;
    base::log_info(
        fmt::format("begins with the weights of {} (step {})", from.path(), from.step()));
  } catch (const Error& error) {
    fail(error.code(), fmt::format("train.init_from = \"{}\": {}", path, error.what()));
  }
}

bool keep_choices(const std::string& recorded, const Ranks& ranks, RunConfig& config) {
  int64_t& tokens = config.train.micro_batch_tokens;
  if (tokens > 0) return false;
  if (ranks.first()) tokens = recorded_config(recorded).train.micro_batch();
  tokens = std::stoll(ranks.from_first(std::to_string(tokens)));
  return true;
}

RunStart find_run_start(const std::string& run_dir, const std::string& config_toml,
                        const LoopOptions& options, const Ranks& ranks) {
  RunStart start;
  if (ranks.first()) {
    start.folder = std::make_unique<RunFolder>(run_dir);
    if (!options.overwrite) start.folder->require_free_or_run();
    start.resuming = start.folder->holds_run() && !options.overwrite;
    if (start.resuming) load_state(config_toml, options, start);
  }
  if (!ranks.alone()) {
    require_config_of_first(config_toml, ranks);
    share_state(ranks, start);
  }
  return start;
}

}  // namespace segue::train
