#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "ops/metrics.h"
#include "train/checkpoint/checkpoint_shards.h"
#include "train/step/held_out.h"

namespace segue::train {

/// Quality of the predictions of one task.
struct TaskQuality {
  std::string name;
  bool binary = true;
  double loss = 0;  // mean per label, times the task's weight
  double auc = 0.5, normalized_entropy = 0, accuracy = 0, calibration = 0;  // binary tasks only
  // All labels are alike: AUC is 0.5, and entropy, divided by almost nothing as in the reference,
  // a number that says nothing.
  bool one_class = false;
  std::optional<double> auc_error;     // standard error of the AUC; of evaluations
  std::optional<TaskDetails> details;  // of evaluations whose samples are known
};
/// AUC and entropy as people read them, when there is none.
inline constexpr const char* kOneClass = "n/a (one class)";
/// Means over the binary tasks; 0.5 and 0 without any.
double mean_auc(std::span<const TaskQuality> tasks);
double mean_normalized_entropy(std::span<const TaskQuality> tasks);
/// For people: over the binary tasks that have labels of both classes; none without such a task.
std::optional<double> telling_normalized_entropy(std::span<const TaskQuality> tasks);

/// Predictions on samples that were not trained on.
struct Evaluation {
  double loss = 0;
  std::vector<TaskQuality> tasks;
  int64_t samples = 0, labels = 0;
  std::optional<double> auc_error;       // standard error of auc()
  std::optional<Comparison> comparison;  // with simple rules, where there are some
  int64_t top_k = 0;                     // of the details of tasks

  bool one_class() const;  // no task has labels of both classes
  double auc() const { return mean_auc(tasks); }
  double normalized_entropy() const { return mean_normalized_entropy(tasks); }
  std::optional<double> telling_entropy() const { return telling_normalized_entropy(tasks); }
};

/// An AUC with its 95 % interval, as people read it: "0.7546 ± 0.0048".
std::string auc_text(double auc, const std::optional<double>& error);
/// The limits of that interval.
struct AucInterval {
  double low = 0, high = 1;
};
AucInterval auc_interval(double auc, double error);

/// Collects one evaluation. AUC is exact over every label, so it keeps all predictions: 8 bytes per
/// label and task, and twice as much while the error is computed.
class Evaluator {
 public:
  explicit Evaluator(std::span<const model::TaskConfig> tasks);
  void add(const model::Pass& pass);
  Evaluation result() const;
  /// Adds details and comparison to a result().
  void add_facts(const HeldOutFacts& facts, int64_t top_k, Evaluation& result) const;
  std::span<const float> predictions(size_t task) const { return predictions_[task]; }
  std::span<const float> labels(size_t task) const { return labels_[task]; }

 private:
  std::vector<model::TaskConfig> tasks_;
  std::vector<double> loss_sums_;
  std::vector<std::vector<float>> predictions_, labels_;  // per task
  std::vector<ops::NormalizedEntropy> entropy_;
  int64_t samples_ = 0, num_labels_ = 0;
};

/// AUC over everything seen, per task, in bins: bounded and mergeable, so it can be saved.
class LifetimeAuc {
 public:
  explicit LifetimeAuc(std::span<const model::TaskConfig> tasks);
  void add(size_t task, std::span<const float> predictions, std::span<const float> labels);
  double value(size_t task) const { return auc_[task].value(); }
  double mean() const;  // over the binary tasks
  std::vector<CheckpointArray> arrays(const std::string& prefix) const;

 private:
  std::vector<model::TaskConfig> tasks_;
  std::vector<ops::BinnedAuc> auc_;
};

/// Metrics over the last `capacity` labels of training, exact. A ring of fixed size, so that it can
/// be saved.
class WindowMetrics {
 public:
  WindowMetrics(std::span<const model::TaskConfig> tasks, int64_t capacity);
  void add(const model::Pass& pass);
  TaskQuality quality(size_t task) const;  // without the loss
  std::vector<CheckpointArray> arrays(const std::string& prefix) const;
  int64_t labels_seen() const { return seen_; }
  void restore_seen(int64_t seen) { seen_ = seen; }

 private:
  std::vector<model::TaskConfig> tasks_;
  int64_t capacity_ = 0, seen_ = 0;                       // labels so far
  std::vector<std::vector<float>> predictions_, labels_;  // per task [capacity]
};

/// Part `task` of a [tasks][labels] array.
std::span<const float> of_task(const std::vector<float>& values, size_t task, int64_t labels);

}  // namespace segue::train
