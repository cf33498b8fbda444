#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "data/random_batches.h"
#include "model/config.h"
#include "sparse/tables.h"
#include "tensor/exec.h"

namespace segue::train {

/// How a run goes; what is trained stands in the other sections.
struct TrainConfig {
  int64_t steps = 200;
  int64_t seed = 1;
  int64_t threads = 0;
  std::string device = "auto";
  Precision precision = Precision::kF32;
  int64_t micro_batch_tokens = 65536;
  double arena_gib = 16;
  int64_t log_every = 10;
  int64_t eval_batches = 20;

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, TrainConfig& c);

/// Everything that determines a run: the file given to `segue train`, and what the run folder
/// keeps.
struct RunConfig {
  std::string preset;
  model::ModelConfig model;
  sparse::TablesConfig sparse;
  model::OptimizerConfig optimizer;
  data::RandomDataConfig data;
  TrainConfig train;

  /// Each section, and what only shows between sections: features against tables, lengths of the
  /// data against the model, task bits against what the labels can hold. Error(kConfig).
  void validate() const;
};
void describe(base::ConfigVisitor& v, RunConfig& c);

/// Reads and validates. A preset gives the starting values, whatever else the sources say is laid
/// over it.
RunConfig load_run_config(const base::ConfigSources& sources);

/// The device that `name` stands for; "auto" is the fastest one that the whole model runs on.
/// Error(kInvalidArgument) for an unknown word, Error(kUnsupported) when this program cannot use
/// it.
Device choose_device(const std::string& name);

}  // namespace segue::train
