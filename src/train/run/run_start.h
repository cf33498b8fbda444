#pragma once

#include <memory>
#include <string>

#include "train/checkpoint/checkpoint.h"
#include "train/run/loop.h"
#include "train/run/run_folder.h"
#include "train/run/run_state.h"
#include "train/step/ranks.h"
#include "train/step/source.h"
#include "train/step/trainer.h"

namespace segue::train {

/// Where a process takes up its run.
struct RunStart {
  std::unique_ptr<RunFolder> folder;  // of the first rank
  bool resuming = false;              // the folder holds this run
  RunState state;
  std::unique_ptr<Checkpoint> checkpoint;  // whose arrays are to be read; absent: from nothing
};

/// The device of this rank; "auto" and "cuda" spread the ranks of a machine over its GPUs.
Device take_device(const RunConfig& config, const comm::World& world);

/// Warns of keys that somebody set and that do nothing here; the first rank does.
void note_idle_keys(const RunConfig& config, const Ranks& ranks, Device device);

/// Collective. The samples of this rank. One rank of a machine, `first_here`, verifies the store,
/// and copies it first where it is to be staged.
std::unique_ptr<Source> open_source(const RunConfig& config, const Ranks& ranks, bool first_here);

/// Error(kConfig) when a run that is not finished would go on where `source` has nothing.
void require_place(const data::StreamPosition& next, const Source& source);

/// From the newest good checkpoint in `run_dir`: the first rank looks, the others follow it.
/// Nothing is written. Error(kConfig) when `config_toml` contradicts the run, or differs between
/// ranks; Error(kCorrupt) when there are checkpoints and none is whole.
RunStart find_run_start(const std::string& run_dir, const std::string& config_toml,
                        const LoopOptions& options, const Ranks& ranks);

/// A new run's weights are those of another one, or of a checkpoint, at `path`, whose ids `store`
/// must have.
void begin_with_weights(const std::string& path, const std::string& store, Trainer& trainer);

/// What a run chose for itself when it began, as the first rank finds it in `recorded`, where
/// `config` leaves it open: tokens of a micro-batch, which show in the bits. True: it did.
bool keep_choices(const std::string& recorded, const Ranks& ranks, RunConfig& config);

}  // namespace segue::train
