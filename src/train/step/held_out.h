#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/inspect/baselines.h"
#include "ops/list_metrics.h"
#include "ops/metrics.h"

namespace segue::train {

/// What is known of the labels of an evaluation beside their predictions: one element per label, in
/// their order; a list is empty where nothing is known. It has the same content on any number of
/// ranks, and so has what is made of it.
struct HeldOutFacts {
  std::vector<int64_t> lists;    // what is ranked together: the user's, or the sample's candidates
  std::vector<int64_t> history;  // events of the user before it
  std::vector<int64_t> item_events;  // events of the item that training may have seen
  /// Per task what simple rules predict; none for a regression. NaN where a rule has no prediction.
  std::vector<std::vector<data::Rule>> rules;
};

/// AUC over some of the labels.
struct AucSlice {
  std::string name;  // "32 to 127"
  int64_t labels = 0;
  double auc = 0.5;
  bool one_class = false;
  std::optional<double> error;  // standard error of the AUC
};

/// More about the predictions of a binary task.
struct TaskDetails {
  ops::CalibrationCurve calibration;
  ops::ListQuality lists;  // none counted: nothing is known of lists
  std::vector<AucSlice> by_history, by_item;
};
TaskDetails task_details(std::span<const float> predictions, std::span<const float> labels,
                         const HeldOutFacts& facts, int64_t top_k);

/// Predictions and labels of one binary task.
struct TaskLabels {
  std::span<const float> predictions, labels;
  size_t task = 0;
};

/// A mean of AUCs over tasks, and its standard error where it has one.
struct MeanAuc {
  double auc = 0.5;
  std::vector<double> parts;  // as in ops::AucParts; empty: none
};
MeanAuc mean_auc_parts(std::span<const ops::AucParts> tasks);

/// The model beside simple rules, on the same samples. AUCs are means over the binary tasks.
struct Comparison {
  struct RuleAuc {
    std::string name;
    double auc = 0.5;
  };
  std::vector<RuleAuc> rules;
  size_t best = 0;              // of the rules; the first of several equal ones
  double difference = 0;        // AUC of the model - that of the best rule
  std::optional<double> error;  // standard error of the difference
  int64_t labels = 0;           // that were compared

  const RuleAuc& best_rule() const { return rules[best]; }
  bool above() const { return difference > 0; }
  /// Half of the 95 % interval of the difference; 0 where it has none.
  double margin() const { return ops::kNormal95 * error.value_or(0); }
  bool significant() const { return std::abs(difference) > margin(); }
};
/// None where there are no rules, or nothing to compare: labels of one class in every task.
std::optional<Comparison> compare_with_rules(std::span<const TaskLabels> tasks,
                                             const HeldOutFacts& facts);

}  // namespace segue::train
