#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensor/card.h"
#include "train/run_config.h"
#include "train/step/metrics.h"

namespace segue::train {

struct TrainSummary {
  int64_t steps = 0, samples = 0;        // of the whole run
  double first_loss = 0, last_loss = 0;  // means over the first and the last log interval
  std::optional<Evaluation> held_out;    // the last one of this process
  std::optional<double> oracle_auc;      // of the probabilities that its labels were drawn with
  bool nothing_held_out = false;         // an evaluation had no sample
  double samples_per_s = 0, tokens_per_s = 0, model_flops_per_s = 0;  // of training alone
  double checkpoint_stall_seconds = 0;  // how long saving kept training from going on
  double seconds = 0;                   // of this process
  bool resumed = false, finished = false, target_reached = false;
};

struct LoopOptions {
  bool own_process =
      true;  // signals, threads and the log are this rank's; not where ranks are threads
  bool overwrite = false;                         // start over in a folder that holds a run
  std::vector<std::string> allow_config_changes;  // keys that may differ from the run's own config
  /// What the first rank does with every checkpoint, given its path, while training goes on; one at
  /// a time, and first with the one that the run goes on from. What it throws is a warning.
  std::function<void(const std::string& checkpoint)> publish;
  std::shared_ptr<const CardSensor> card;  // in place of the device's own, for tests
};

/// Trains as `config` says and leaves its results in `run_dir`. A folder that holds a run is
/// resumed from its newest good checkpoint: what follows is bit for bit what an uninterrupted run
/// would have done. Error(kConfig) when `config` contradicts that run. SIGTERM and SIGINT end it in
/// order, with a checkpoint.
/// Started as one of several ranks (see comm::join_world) it does its part of the run: all ranks
/// give the same arguments, the first one writes the folder.
TrainSummary train_loop(const RunConfig& config, const std::string& run_dir,
                        const LoopOptions& options = {});
/// The same as a rank of `world`.
TrainSummary train_loop(const RunConfig& config, const std::string& run_dir,
                        const LoopOptions& options, comm::World& world);

}  // namespace segue::train
