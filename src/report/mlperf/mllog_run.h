#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "report/mlperf/mllog.h"

namespace segue::report {

struct MllogSubmission {
  std::string benchmark = "dlrmv4";
  std::string division = "closed";  // or open
  std::string org, platform;        // not empty
  std::string status = "onprem";    // cloud, research
};

/// What the rules ask about; the values of the closed division are the defaults where it has one.
struct MllogHyperparameters {
  int64_t global_batch_size = 0;
  int64_t gradient_accumulation_steps = 1;
  int64_t seed = 0;  // every run of a submission has its own
  int64_t train_samples = 0;
  int64_t eval_samples = 0;
  int64_t max_sequence_length = 0;

  std::string opt_name = "Adam";
  double opt_base_learning_rate = 0;
  double opt_adam_beta_1 = 0.95;
  double opt_adam_beta_2 = 0.999;
  double opt_adam_epsilon = 1e-8;
  double opt_weight_decay = 0;
  double opt_gradient_clip_norm = 1;
  int64_t opt_learning_rate_warmup_steps = 24'000;
  double opt_learning_rate_warmup_start_lr = 0;
  std::string opt_sparse_name = "RowWiseAdagrad";
  double opt_sparse_base_learning_rate = 0;

  double eval_every_data_pct = 0.001;  // a share: 0.001 is a thousandth
  std::optional<double> skip_eval_epoch_pct;

  // To be disclosed since 6.1.0. Precisions are words like fp32, tf32, bfloat16, fp16, fp8.
  std::string lowest_numerical_precision_in_linear = "fp32";
  std::string lowest_numerical_precision_in_attn = "fp32";
  std::string lowest_numerical_precision_in_comm = "fp32";
  int64_t tensor_parallelism = 1;
  int64_t pipeline_parallelism = 1;
  int64_t context_parallelism = 1;
  int64_t expert_parallelism = 1;
  int64_t micro_batch_size = 0;
  std::string config_filename;
};

/// What a checkpoint keeps of the log.
struct MllogState {
  bool run_opened = false;    // run_start is written
  bool sizes_logged = false;  // train_samples and eval_samples are written
  bool run_stopped = false;   // run_stop is written: the log is complete
  bool in_block = false;
  int64_t samples = 0;             // trained, at the last event that tells
  int64_t last_eval_samples = -1;  // -1: none yet
  double last_eval_accuracy = 0;
  bool operator==(const MllogState&) const = default;
};
std::string to_json(const MllogState& state);  // one line
/// Error(kCorrupt) if the text is not one.
MllogState mllog_state_from_json(std::string_view text);

enum class MllogStatus { kSuccess, kAborted };

/// Writes the MLPerf log of one run, which may live in several processes one after the other. Rank
/// 0 has one; the others none. The order of calls:
///
///   MllogRun log(path, MllogWriter::Mode::kTruncate);       // kAppend and the state when resuming
///   log.init_start();                                       // before devices and model are set up
///   log.open(submission, hyperparameters);                  // after; all ranks have met
///   per interval: block_start, train_loss..., block_stop, eval_start, eval_done
///   log.stop(MllogStatus::kSuccess, samples);               // all ranks have met
///
/// Resumed: the same calls with Mode::kAppend. The file itself tells what was written, so a
/// checkpoint older than the log does no harm: what may occur once is not repeated, evaluations
/// behind the checkpoint are written again (the last one counts). After run_stop nothing is
/// written. A run that was killed before open() returned has trained nothing: start it anew, with
/// kTruncate. Calling a method again changes nothing, except that train_loss and eval_done write
/// again. Call sync() before a checkpoint becomes valid, so that the log is never behind it.
class MllogRun {
 public:
  /// kAppend: Error(kCorrupt) if `state` knows of events that the file does not have.
  MllogRun(const std::string& path, MllogWriter::Mode mode, const MllogState& state = {},
           base::WhenFull when_full = base::WhenFull::kFail);

  void init_start();  // cache_clear and init_start

  /// Hyperparameters, init_stop, run_start. Error(kConfig): something is empty or not positive that
  /// must not be, or differs from what the log of the resumed run already says.
  void open(const MllogSubmission& submission, const MllogHyperparameters& hyperparameters);

  // `samples`: trained so far, by all ranks.
  void block_start(int64_t samples);
  void block_stop(int64_t samples);
  void train_loss(int64_t samples, double loss, double learning_rate);
  void eval_start(int64_t samples);
  /// Error(kNumeric) if the value is not in [0, 1]: such a log fails.
  void eval_done(int64_t samples, double accuracy);
  /// Ends an open block, too.
  void stop(MllogStatus status, int64_t samples);

  void sync() { writer_.sync(); }
  const MllogState& state() const { return state_; }

 private:
  struct Seen;  // what the file had when it was opened
  MllogRun(const std::string& path, MllogWriter::Mode mode, const MllogState& state,
           base::WhenFull when_full, Seen seen);

  bool once(std::string_view key);
  bool running(int64_t samples);
  MllogMetadata progress(int64_t samples) const;

  MllogWriter writer_;
  MllogState state_;
  bool in_eval_ = false;
  double train_samples_ = 0;
  std::map<std::string, MllogValue, std::less<>> written_;  // first value by key
};

}  // namespace segue::report
