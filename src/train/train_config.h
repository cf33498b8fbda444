#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "data/sample/gather.h"
#include "data/sample/loader.h"
#include "data/sample/sample_stream.h"
#include "data/store/verified_files.h"
#include "data/synth/interactions.h"
#include "data/synth/random_batches.h"
#include "tensor/exec.h"

namespace segue::train {

/// Where samples come from: an event store in time order, a made-up log of interactions, or at
/// random.
struct DataConfig {
  std::string store;     // empty: random samples
  std::string stage_to;  // a disk of every machine to read the store from; empty: where it is
  std::string index;     // where to keep what is derived from a read-only store
  data::VerifyMode verify = data::VerifyMode::kAuto;
  bool follow = false;        // at the end of the store, wait for what is appended to it
  double follow_seconds = 0;  // how long at most while nothing comes; 0: for ever
  int64_t batch_size = 64;
  data::GatherConfig gather{.history_length = 0};
  data::StreamConfig stream;
  data::LoaderConfig loader;
  data::RandomDataConfig random;
  data::InteractionConfig interactions{.samples = 0};

  bool has_interactions() const { return interactions.samples > 0; }
  bool is_random() const { return store.empty() && !has_interactions(); }
  data::StreamConfig stream_config() const;  // with the batch size
  data::RandomDataConfig random_config() const;
  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, DataConfig& c);

enum class NonFinite { kStop, kSkip };

/// How a run goes; what is trained stands in the other sections.
struct TrainConfig {
  int64_t steps = 0;
  int64_t epochs = 1;
  std::string init_from;
  int64_t seed = 1;
  int64_t threads = 0;
  std::string device = "auto";
  Precision precision = Precision::kF32;
  int64_t micro_batch_tokens = 0;  // 0: chosen, see choose_micro_batch
  double distinct_share = 1;
  double arena_gib = 0;
  int64_t log_every = 10;
  int64_t metric_window = 2500;
  NonFinite non_finite = NonFinite::kStop;
  int64_t max_skipped = 100;
  double warn_z_score = 8;
  double watchdog_seconds = 300;
  double peak_tflops = 0;
  int64_t track_layers_every = 0;  // steps; 0: never

  /// Of a CPU, and where nothing has been chosen.
  static constexpr int64_t kUsualMicroBatch = 65536;
  int64_t micro_batch() const {
    return micro_batch_tokens > 0 ? micro_batch_tokens : kUsualMicroBatch;
  }

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, TrainConfig& c);

enum class EvalRounding { kNearest, kUp };
enum class FirstEval { kShare, kMlperf };
enum class EvalDetails { kAuto, kOn, kOff };

/// When to evaluate. At most one cadence is on; one evaluation always ends a run that was not
/// stopped before.
struct EvalConfig {
  int64_t every_windows = 0;
  double every_share = 0;
  int64_t every_steps = 0;
  EvalRounding rounding = EvalRounding::kNearest;
  FirstEval first = FirstEval::kShare;
  double skip_share = 0;
  bool at_end = true;
  int64_t max_batches = 0;
  double target_auc = 0;
  EvalDetails details = EvalDetails::kAuto;
  int64_t top_k = 10;

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, EvalConfig& c);

enum class Pipeline { kAuto, kOn, kOff };

/// How several ranks share the work; none of it changes what is trained.
struct ParallelConfig {
  int64_t tensor_parallel = 1;
  Pipeline pipeline = Pipeline::kAuto;
  double device_gib = 0, host_gib = 0;

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, ParallelConfig& c);

/// What the MLPerf log says about the submission; the rest of it comes from the other sections.
struct MlperfConfig {
  bool log = false;
  std::string benchmark = "dlrmv4";
  std::string division = "open";
  std::string org = "segue";
  std::string platform = "unnamed";
  std::string status = "research";

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, MlperfConfig& c);

/// Versions for serving (docs/publishing.md), one of every checkpoint.
struct PublishSettings {
  std::string folder;  // empty: none
  enum class Format { kSafetensors, kParquet } format = Format::kSafetensors;
  enum class RowType { kF32, kBf16, kInt8 } dtype = RowType::kF32;
};
void describe(base::ConfigVisitor& v, PublishSettings& c);

/// Traces of what host and device do: see report::TracePlan for which steps.
struct TraceConfig {
  std::vector<int64_t> steps;
  int64_t wait = 0, warm_up = 1, active = 5, repeat = 0;

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, TraceConfig& c);

}  // namespace segue::train
