#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "balance/config.h"
#include "base/config.h"
#include "comm/world.h"
#include "model/config.h"
#include "model/model.h"
#include "sparse/tables_config.h"
#include "tensor/device.h"
#include "train/checkpoint/checkpoint_config.h"
#include "train/train_config.h"

namespace segue::train {

/// Everything that determines a run: the file given to `segue train`, and what the run folder
/// keeps.
struct RunConfig {
  std::string preset;
  model::ModelConfig model;
  sparse::TablesConfig sparse;
  model::OptimizerConfig optimizer;
  DataConfig data;
  TrainConfig train;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  PublishSettings publish;
  MlperfConfig mlperf;
  TraceConfig trace;
  comm::CommConfig comm;
  ParallelConfig parallel;
  balance::BalanceConfig balance;

  /// Each section, and what only shows between sections: features against tables, lengths of the
  /// data against the model, task bits against what the labels can hold. Error(kConfig).
  void validate() const;
};
void describe(base::ConfigVisitor& v, RunConfig& c);

/// As the config says, not yet allocated.
std::unique_ptr<model::Model> make_model(const RunConfig& config);

/// Most events of a history from a store that fit the model; Error(kConfig) when none does.
int64_t history_budget(const RunConfig& config);
/// Whether samples of a store have the anchors of a user's window as events that are predicted, not
/// one candidate.
bool has_labelled_events(const RunConfig& config);
inline constexpr int64_t kStoreCandidates = 1;

/// Reads and validates. A preset gives the starting values, whatever else the sources say is laid
/// over it.
RunConfig load_run_config(const base::ConfigSources& sources);

/// What a run recorded, with the defaults of keys that it lacks; not validated.
RunConfig recorded_config(const std::string& toml);

/// The device that `name` stands for; "auto" is the fastest one that the whole model runs on.
/// Error(kInvalidArgument) for an unknown word, Error(kUnsupported) when this program cannot use
/// it.
Device choose_device(const std::string& name);

}  // namespace segue::train
