#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace segue::report {

/// A number that a line did not have is NaN; one that it had as null (not finite) is infinity.
inline constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kNotFinite = std::numeric_limits<double>::infinity();

/// Where a line stands in its run.
struct RunPoint {
  int64_t step = 0;
  double samples = kAbsent;  // trained so far, all ranks
  double wall_s = kAbsent;   // seconds of the run so far
};

struct TrainPoint {
  RunPoint at;
  double loss = kAbsent, auc = kAbsent;  // of the samples since the previous line
  double lr = kAbsent, sparse_lr = kAbsent;
  double grad_norm = kAbsent, loss_z = kAbsent, grad_norm_z = kAbsent, skipped_steps = kAbsent;
  double samples_per_s = kAbsent, tokens_per_s = kAbsent;
  double mfu_jagged = kAbsent, mfu_padded = kAbsent;  // of the device's peak, 0 to 1
  double loader_wait = kAbsent;                       // share of the time since the previous line
  double memory_peak_bytes = kAbsent;
  double table_bytes = kAbsent;                        // rows, state and indices
  std::vector<std::pair<std::string, double>> stages;  // seconds since the previous line
  int64_t length_bin = 0;       // tokens per bin of `lengths`; 0: there are none
  std::vector<double> lengths;  // samples since the previous line by number of tokens
};

/// A tracked step: where the time of the device went.
struct LayersPoint {
  RunPoint at;
  struct Part {
    std::string name;
    double seconds = kAbsent, tflops = kAbsent;
  };
  std::vector<Part> parts;
  double device_s = kAbsent, imbalance = kAbsent;
};

/// AUC of the labels that have something in common.
struct AucOfSome {
  std::string of;
  double labels = kAbsent;
  double auc = kAbsent, low = kAbsent, high = kAbsent;  // absent: of one class
};

struct CalibrationPoint {
  double labels = kAbsent, prediction = kAbsent, share = kAbsent;
};

struct TaskMetrics {
  std::string name;
  double auc = kAbsent, normalized_entropy = kAbsent, accuracy = kAbsent, calibration = kAbsent;
  bool one_class = false;  // all labels alike: AUC and entropy say nothing then, and are absent
  double auc_low = kAbsent, auc_high = kAbsent;  // 95 % interval
  // Ranked per user, over the first `k` places.
  double users = kAbsent, user_auc = kAbsent, ndcg = kAbsent, recall = kAbsent, k = kAbsent;
  double calibration_error = kAbsent;
  std::vector<CalibrationPoint> calibration_curve = {};
  std::vector<AucOfSome> by_history = {}, by_item = {};
};

struct EvalPoint {
  RunPoint at;
  double auc = kAbsent, loss = kAbsent;
  double normalized_entropy = kAbsent;           // over the tasks that have labels of both classes
  double auc_low = kAbsent, auc_high = kAbsent;  // 95 % interval
  double oracle_auc = kAbsent;
  double baseline_auc = kAbsent;                          // of the best simple rule
  std::string baseline;                                   // its name
  double above_by = kAbsent, above_error = kAbsent;       // the model's lead over it, +- at 95 %
  std::vector<std::pair<std::string, double>> baselines;  // all of them
  std::vector<TaskMetrics> tasks;
  std::string device, model;  // in words; empty: not said

  bool one_class() const;  // no task has labels of both classes
};

/// Settings as they are compared: "model.layers" and "3".
using Settings = std::vector<std::pair<std::string, std::string>>;

struct Run {
  std::string path;  // as given
  std::string name;  // the shortest end of the path that tells it from the other runs
  std::string status = "unfinished";  // no end line: still running, or killed
  std::vector<TrainPoint> train;      // steps increase: what a resumed run did again counts once
  std::vector<EvalPoint> eval;
  std::vector<LayersPoint> layers;
  std::string config_text;  // config.toml as it is; empty: none
  Settings config;          // its values
  Settings mlperf;          // parameters in the MLPerf log
  std::vector<std::string> warnings;

  bool empty() const { return train.empty() && eval.empty(); }
  /// A value of the config; empty if it has none.
  std::string setting(const std::string& key) const;
  RunPoint last() const;  // the furthest line
};

/// Reads what each path names: a run folder (metrics.jsonl, config.toml and mlperf.log beside it),
/// or a log with :::MLLOG lines, of whatever system. A half-written last line is normal, a broken
/// one before it is skipped and becomes a warning with its number. Error(kNotFound) for a path that
/// is not there or a folder without metrics, Error(kCorrupt) for a file that is no MLPerf log or
/// when no run has a line to show.
std::vector<Run> read_runs(const std::vector<std::string>& paths);

/// One of them; `name` is the last part of the path.
Run read_run(const std::string& path);

namespace detail {
/// Adds the lines of a metrics file; `place` names it in warnings.
void read_metrics(const std::string& text, const std::string& place, Run& run);
/// Adds the parameters and, with `points`, the measurements of an MLPerf log. Returns how many
/// :::MLLOG lines there were.
int64_t read_mlperf_log(const std::string& text, const std::string& place, bool points, Run& run);
/// All values of a TOML file by dotted key, sorted. Throws Error(kConfig).
Settings flatten_toml(const std::string& text);
/// Warnings beyond the first few of a file are only counted.
class Warnings {
 public:
  explicit Warnings(Run& run) : run_(run) {}
  ~Warnings();
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  void add(const std::string& place, int64_t line, const std::string& what);

 private:
  Run& run_;
  std::string place_;
  int64_t count_ = 0;
};
}  // namespace detail

}  // namespace segue::report
