#include "train/step/metrics.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace segue::train {
namespace {

bool is_binary(const model::TaskConfig& task) { return task.kind == ops::TaskKind::kBinary; }

/// Over the tasks that count; none without any.
std::optional<double> mean_over(std::span<const TaskQuality> tasks, double TaskQuality::*value,
                                bool (*counts)(const TaskQuality&)) {
  double sum = 0;
  int64_t count = 0;
  for (const TaskQuality& task : tasks) {
    if (!counts(task)) continue;
    sum += task.*value;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}
bool has_quality(const TaskQuality& task) { return task.binary; }
bool has_two_classes(const TaskQuality& task) { return task.binary && !task.one_class; }

void set_quality(TaskQuality& quality, double auc, const ops::NormalizedEntropy& entropy) {
  quality.auc = auc;
  quality.normalized_entropy = entropy.value();
  quality.accuracy = entropy.accuracy();
  quality.calibration = entropy.calibration();
  quality.one_class = entropy.positive_labels == 0 || entropy.negative_labels == 0;
}

template <class T>
CheckpointArray metric_array(std::string name, std::span<const T> values) {
  return {"metrics", std::move(name),
          Tensor(const_cast<T*>(values.data()), kDTypeOf<T>, Device::cpu(),  // restored in place
                 {static_cast<int64_t>(values.size())})};
}

}  // namespace

double mean_auc(std::span<const TaskQuality> tasks) {
  return mean_over(tasks, &TaskQuality::auc, has_quality).value_or(0.5);
}
double mean_normalized_entropy(std::span<const TaskQuality> tasks) {
  return mean_over(tasks, &TaskQuality::normalized_entropy, has_quality).value_or(0);
}
std::optional<double> telling_normalized_entropy(std::span<const TaskQuality> tasks) {
  return mean_over(tasks, &TaskQuality::normalized_entropy, has_two_classes);
}

bool Evaluation::one_class() const {
  return std::ranges::any_of(tasks, has_quality) && std::ranges::none_of(tasks, has_two_classes);
}

AucInterval auc_interval(double auc, double error) {
  return {std::max(0.0, auc - ops::kNormal95 * error), std::min(1.0, auc + ops::kNormal95 * error)};
}

std::string auc_text(double auc, const std::optional<double>& error) {
  return error ? fmt::format("{:.4f} ± {:.4f}", auc, ops::kNormal95 * *error)
               : fmt::format("{:.4f}", auc);
}

std::span<const float> of_task(const std::vector<float>& values, size_t task, int64_t labels) {
  const auto n = static_cast<size_t>(labels);
  return std::span(values).subspan(task * n, n);
}

Evaluator::Evaluator(std::span<const model::TaskConfig> tasks)
    : tasks_(tasks.begin(), tasks.end()),
      loss_sums_(tasks.size(), 0.0),
      predictions_(tasks.size()),
      labels_(tasks.size()),
      entropy_(tasks.size()) {}

void Evaluator::add(const model::Pass& pass) {
  samples_ += pass.samples;
  num_labels_ += pass.num_labels;
  for (size_t k = 0; k < tasks_.size(); ++k) {
    loss_sums_[k] += pass.task_losses[k] * static_cast<double>(pass.num_labels);
    const std::span<const float> p = of_task(pass.predictions, k, pass.num_labels);
    const std::span<const float> l = of_task(pass.labels, k, pass.num_labels);
    predictions_[k].insert(predictions_[k].end(), p.begin(), p.end());
    labels_[k].insert(labels_[k].end(), l.begin(), l.end());
    if (is_binary(tasks_[k])) entropy_[k].add(p, l, {});
  }
}

Evaluation Evaluator::result() const {
  Evaluation result;
  result.samples = samples_;
  result.labels = num_labels_;
  std::vector<ops::AucParts> aucs;
  for (size_t k = 0; k < tasks_.size(); ++k) {
    TaskQuality& task = result.tasks.emplace_back();
    task.name = tasks_[k].name;
    task.binary = is_binary(tasks_[k]);
    task.loss = loss_sums_[k] / static_cast<double>(std::max<int64_t>(1, num_labels_));
    result.loss += task.loss;
    if (!task.binary) continue;
    const ops::AucParts& auc = aucs.emplace_back(ops::auc_parts(predictions_[k], labels_[k]));
    set_quality(task, auc.auc, entropy_[k]);
    if (!auc.parts.empty()) task.auc_error = ops::standard_error(auc.parts);
  }
  const std::vector<double> parts = mean_auc_parts(aucs).parts;
  if (!parts.empty()) result.auc_error = ops::standard_error(parts);
  return result;
}

void Evaluator::add_facts(const HeldOutFacts& facts, int64_t top_k, Evaluation& result) const {
  result.top_k = top_k;
  std::vector<TaskLabels> binary;
  for (size_t k = 0; k < tasks_.size(); ++k) {
    if (!result.tasks[k].binary || num_labels_ == 0) continue;
    result.tasks[k].details = task_details(predictions_[k], labels_[k], facts, top_k);
    binary.push_back({predictions_[k], labels_[k], k});
  }
  result.comparison = compare_with_rules(binary, facts);
}

LifetimeAuc::LifetimeAuc(std::span<const model::TaskConfig> tasks)
    : tasks_(tasks.begin(), tasks.end()), auc_(tasks.size()) {}

void LifetimeAuc::add(size_t task, std::span<const float> predictions,
                      std::span<const float> labels) {
  if (is_binary(tasks_[task])) auc_[task].add(predictions, labels, {});
}

double LifetimeAuc::mean() const {
  double sum = 0;
  int64_t count = 0;
  for (size_t k = 0; k < tasks_.size(); ++k) {
    if (!is_binary(tasks_[k])) continue;
    sum += auc_[k].value();
    ++count;
  }
  return count == 0 ? 0.5 : sum / static_cast<double>(count);
}

std::vector<CheckpointArray> LifetimeAuc::arrays(const std::string& prefix) const {
  std::vector<CheckpointArray> result;
  for (size_t k = 0; k < tasks_.size(); ++k) {
    const std::string name = prefix + "/" + tasks_[k].name;
    result.push_back(metric_array(name + "/positive", auc_[k].positive()));
    result.push_back(metric_array(name + "/negative", auc_[k].negative()));
  }
  return result;
}

WindowMetrics::WindowMetrics(std::span<const model::TaskConfig> tasks, int64_t capacity)
    : tasks_(tasks.begin(), tasks.end()),
      capacity_(capacity),
      predictions_(tasks.size(), std::vector<float>(static_cast<size_t>(capacity))),
      labels_(predictions_) {}

void WindowMetrics::add(const model::Pass& pass) {
  for (int64_t i = std::max<int64_t>(0, pass.num_labels - capacity_); i < pass.num_labels; ++i) {
    const auto place = static_cast<size_t>((seen_ + i) % capacity_);
    for (size_t k = 0; k < tasks_.size(); ++k) {
      const size_t from = k * static_cast<size_t>(pass.num_labels) + static_cast<size_t>(i);
      predictions_[k][place] = pass.predictions[from];
      labels_[k][place] = pass.labels[from];
    }
  }
  seen_ += pass.num_labels;
}

TaskQuality WindowMetrics::quality(size_t task) const {
  TaskQuality quality;
  quality.name = tasks_[task].name;
  quality.binary = is_binary(tasks_[task]);
  if (!quality.binary) return quality;
  const auto n = static_cast<size_t>(std::min(seen_, capacity_));
  const auto predictions = std::span(predictions_[task]).first(n);
  const auto labels = std::span(labels_[task]).first(n);
  ops::NormalizedEntropy entropy;
  entropy.add(predictions, labels, {});
  set_quality(quality, ops::exact_auc(predictions, labels), entropy);
  return quality;
}

std::vector<CheckpointArray> WindowMetrics::arrays(const std::string& prefix) const {
  std::vector<CheckpointArray> result;
  for (size_t k = 0; k < tasks_.size(); ++k) {
    const std::string name = prefix + "/" + tasks_[k].name;
    result.push_back(metric_array(name + "/predictions", std::span<const float>(predictions_[k])));
    result.push_back(metric_array(name + "/labels", std::span<const float>(labels_[k])));
  }
  return result;
}

}  // namespace segue::train
