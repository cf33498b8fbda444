#include "train/run/evaluation_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace segue::train {
namespace {

using Json = nlohmann::ordered_json;

void add_interval(double auc, const std::optional<double>& error, Json& to) {
  if (!error) return;
  const AucInterval interval = auc_interval(auc, *error);
  to["auc_low"] = interval.low;
  to["auc_high"] = interval.high;
}

Json slices_json(const std::vector<AucSlice>& slices) {
  Json all = Json::array();
  for (const AucSlice& slice : slices) {
    Json& one = all.emplace_back(Json{{"of", slice.name}, {"labels", slice.labels}});
    if (slice.one_class) {
      one["one_class"] = true;
      continue;
    }
    one["auc"] = slice.auc;
    add_interval(slice.auc, slice.error, one);
  }
  return all;
}

void add_details(const TaskDetails& d, int64_t top_k, Json& task) {
  if (d.lists.lists > 0) {
    task["per_user"] = {{"users", d.lists.lists}, {"labels", d.lists.labels}, {"auc", d.lists.auc},
                        {"ndcg", d.lists.ndcg},   {"recall", d.lists.recall}, {"k", top_k}};
  }
  Json bins = Json::array();
  for (const ops::CalibrationCurve::Bin& bin : d.calibration.bins) {
    bins.push_back({{"labels", bin.labels}, {"prediction", bin.prediction}, {"share", bin.share}});
  }
  task["calibration_error"] = d.calibration.error;
  task["calibration_curve"] = std::move(bins);
  if (!d.by_history.empty()) task["by_history"] = slices_json(d.by_history);
  if (!d.by_item.empty()) task["by_item"] = slices_json(d.by_item);
}

Json task_json(const TaskQuality& q, int64_t top_k) {
  Json task;
  task["loss"] = q.loss;
  if (!q.binary) return task;
  task["auc"] = q.auc;
  add_interval(q.auc, q.auc_error, task);
  task["normalized_entropy"] = q.normalized_entropy;
  task["accuracy"] = q.accuracy;
  task["calibration"] = q.calibration;
  if (q.one_class) task["one_class"] = true;
  if (q.details) add_details(*q.details, top_k, task);
  return task;
}

}  // namespace

void add_evaluation(const Evaluation& e, Json& line) {
  Json tasks;
  for (const TaskQuality& q : e.tasks) tasks[q.name] = task_json(q, e.top_k);
  line["loss"] = e.loss;
  line["tasks"] = std::move(tasks);
  line["auc"] = e.auc();
  add_interval(e.auc(), e.auc_error, line);
  line["normalized_entropy"] = e.normalized_entropy();
  if (!e.comparison) return;
  const Comparison& c = *e.comparison;
  Json& baselines = line["baselines"];
  for (const Comparison::RuleAuc& rule : c.rules) baselines[rule.name] = rule.auc;
  line["baseline"] = c.best_rule().name;
  line["baseline_auc"] = c.best_rule().auc;
  line["above_baseline"] = c.above();
  line["above_baseline_by"] = c.difference;
  if (c.error) line["above_baseline_error"] = c.margin();
}

std::vector<std::pair<std::string, double>> evaluation_scalars(const Evaluation& e) {
  std::vector<std::pair<std::string, double>> scalars = {{"eval/auc", e.auc()},
                                                         {"eval/loss", e.loss}};
  if (e.auc_error) {
    const AucInterval interval = auc_interval(e.auc(), *e.auc_error);
    scalars.emplace_back("eval/auc_low", interval.low);
    scalars.emplace_back("eval/auc_high", interval.high);
  }
  if (const std::optional<double> entropy = e.telling_entropy()) {
    scalars.emplace_back("eval/normalized_entropy", *entropy);
  }
  if (e.comparison) {
    scalars.emplace_back("eval/baseline_auc", e.comparison->best_rule().auc);
    scalars.emplace_back("eval/above_baseline_by", e.comparison->difference);
  }
  for (const TaskQuality& q : e.tasks) {
    if (!q.details) continue;
    const auto add = [&](const char* what, double value) {
      scalars.emplace_back(fmt::format("eval/{}/{}", q.name, what), value);
    };
    add("calibration_error", q.details->calibration.error);
    if (q.details->lists.lists == 0) continue;
    add("auc_per_user", q.details->lists.auc);
    add("ndcg", q.details->lists.ndcg);
    add("recall", q.details->lists.recall);
  }
  return scalars;
}

}  // namespace segue::train
