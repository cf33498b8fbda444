#include "train/step/held_out.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::train {
namespace {

constexpr int64_t kHistoryBounds[] = {0, 32, 128, 512, 2048};
constexpr int64_t kItemBounds[] = {0, 1, 10, 100, 1000};

std::string name_of(std::span<const int64_t> bounds, size_t b) {
  if (b + 1 == bounds.size()) return fmt::format("{} and more", bounds[b]);
  if (bounds[b + 1] == bounds[b] + 1) return fmt::format("{}", bounds[b]);
  return fmt::format("{} to {}", bounds[b], bounds[b + 1] - 1);
}

/// Labels by where their value lies; slices without any are left out.
std::vector<AucSlice> slices(std::span<const float> predictions, std::span<const float> labels,
                             std::span<const int64_t> values, std::span<const int64_t> bounds) {
  std::vector<AucSlice> result;
  if (values.empty()) return result;
  std::vector<std::vector<float>> p(bounds.size()), l(bounds.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto above = std::ranges::upper_bound(bounds, values[i]) - bounds.begin();
    const auto b = static_cast<size_t>(std::max<int64_t>(0, above - 1));
    p[b].push_back(predictions[i]);
    l[b].push_back(labels[i]);
  }
  for (size_t b = 0; b < bounds.size(); ++b) {
    if (l[b].empty()) continue;
    const ops::AucParts auc = ops::auc_parts(p[b], l[b]);
    AucSlice& slice = result.emplace_back();
    slice = {name_of(bounds, b), std::ssize(l[b]), auc.auc, auc.one_class, {}};
    if (!auc.parts.empty()) slice.error = ops::standard_error(auc.parts);
  }
  return result;
}

/// The part of a list of facts that belongs to the labels: an evaluation may have ended early.
template <class T>
std::span<const T> first_of(const std::vector<T>& facts, size_t labels) {
  if (facts.empty()) return {};
  SEGUE_ASSERT(facts.size() >= labels, "every label of an evaluation has its facts");
  return std::span<const T>(facts).first(labels);
}

/// The labels that rules have a prediction for. Rules of a task know the same events, and so do
/// those of all tasks.
std::vector<size_t> comparable(std::span<const TaskLabels> tasks, const HeldOutFacts& facts) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < tasks[0].labels.size(); ++i) {
    if (!std::isnan(facts.rules[tasks[0].task][0].predictions[i])) chosen.push_back(i);
  }
  return chosen;
}

std::vector<float> pick(std::span<const float> values, std::span<const size_t> chosen) {
  std::vector<float> picked;
  picked.reserve(chosen.size());
  for (const size_t i : chosen) picked.push_back(values[i]);
  return picked;
}

}  // namespace

TaskDetails task_details(std::span<const float> predictions, std::span<const float> labels,
                         const HeldOutFacts& facts, int64_t top_k) {
  TaskDetails details;
  details.calibration = ops::calibration_curve(predictions, labels);
  const std::span<const int64_t> lists = first_of(facts.lists, labels.size());
  if (!lists.empty()) details.lists = ops::list_quality(predictions, labels, lists, top_k);
  details.by_history =
      slices(predictions, labels, first_of(facts.history, labels.size()), kHistoryBounds);
  details.by_item =
      slices(predictions, labels, first_of(facts.item_events, labels.size()), kItemBounds);
  return details;
}

MeanAuc mean_auc_parts(std::span<const ops::AucParts> tasks) {
  MeanAuc mean{.auc = 0};
  const auto n = static_cast<double>(tasks.size());
  bool known = true;  // a class of one label has an AUC, and nobody knows how far off it is
  for (const ops::AucParts& task : tasks) {
    mean.auc += task.auc;
    known = known && (task.one_class || !task.parts.empty());
    if (task.parts.empty()) continue;
    mean.parts.resize(task.parts.size());
    for (size_t i = 0; i < task.parts.size(); ++i) mean.parts[i] += task.parts[i] / n;
  }
  if (!known) mean.parts.clear();
  mean.auc = tasks.empty() ? 0.5 : mean.auc / n;
  return mean;
}

std::optional<Comparison> compare_with_rules(std::span<const TaskLabels> tasks,
                                             const HeldOutFacts& facts) {
  const auto has_rules = [&](const TaskLabels& task) {
    return task.task < facts.rules.size() && !facts.rules[task.task].empty();
  };
  if (tasks.empty() || !std::ranges::all_of(tasks, has_rules)) return std::nullopt;
  const std::vector<size_t> chosen = comparable(tasks, facts);
  if (chosen.empty()) return std::nullopt;

  std::vector<std::vector<float>> labels;
  for (const TaskLabels& task : tasks) labels.push_back(pick(task.labels, chosen));
  // `values`: of a task.
  const auto aucs = [&](auto values) {
    std::vector<ops::AucParts> parts;
    for (size_t k = 0; k < tasks.size(); ++k) {
      parts.push_back(ops::auc_parts(pick(values(tasks[k]), chosen), labels[k]));
    }
    return parts;
  };
  const std::vector<ops::AucParts> own =
      aucs([](const TaskLabels& task) { return task.predictions; });
  if (std::ranges::all_of(own, &ops::AucParts::one_class)) return std::nullopt;
  const MeanAuc model = mean_auc_parts(own);
  Comparison result{.labels = std::ssize(chosen)};
  MeanAuc best;
  const std::vector<data::Rule>& rules = facts.rules[tasks[0].task];
  for (size_t r = 0; r < rules.size(); ++r) {
    MeanAuc rule = mean_auc_parts(aucs([&](const TaskLabels& task) {
      return std::span<const float>(facts.rules[task.task][r].predictions);
    }));
    result.rules.push_back({rules[r].name, rule.auc});
    if (r > 0 && rule.auc <= best.auc) continue;
    result.best = r;
    best = std::move(rule);
  }
  result.difference = model.auc - best.auc;
  if (model.parts.empty()) return result;
  std::vector<double> parts = model.parts;
  for (size_t i = 0; i < parts.size(); ++i) parts[i] -= best.parts[i];
  result.error = ops::standard_error(parts);
  return result;
}

}  // namespace segue::train
