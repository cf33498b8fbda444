#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/run_reader.h"

namespace segue::report::detail {
namespace {

using json = nlohmann::ordered_json;  // stages and tasks stay in the order of the file

double number(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return kAbsent;
  if (found->is_null()) return kNotFinite;
  return found->is_number() ? found->get<double>() : kAbsent;
}

double first_present(double a, double b) { return a == a ? a : b; }

RunPoint place_of(const json& line) {
  const double step = number(line, "step");
  RunPoint place;
  place.step = step >= 0 && step < 9e15 ? static_cast<int64_t>(step) : 0;
  place.samples = number(line, "samples");
  place.wall_s = number(line, "wall_s");
  return place;
}

TrainPoint train_point(const json& line) {
  TrainPoint p;
  p.at = place_of(line);
  p.loss = first_present(number(line, "loss_window"), number(line, "loss"));
  p.auc = first_present(number(line, "auc_window"), number(line, "auc"));
  p.lr = number(line, "lr");
  p.sparse_lr = number(line, "sparse_lr");
  p.grad_norm = number(line, "grad_norm");
  p.loss_z = number(line, "loss_z");
  p.grad_norm_z = number(line, "grad_norm_z");
  p.skipped_steps = number(line, "skipped_steps");
  p.samples_per_s = number(line, "samples_per_s");
  p.tokens_per_s = number(line, "tokens_per_s");
  p.mfu_jagged = number(line, "mfu_jagged");
  p.mfu_padded = number(line, "mfu_padded");
  p.loader_wait = number(line, "loader_wait_s") * p.samples_per_s / number(line, "samples_window");
  p.memory_peak_bytes = number(line, "memory_peak_bytes");
  p.table_bytes = number(line, "table_bytes");
  if (const auto stages = line.find("stages"); stages != line.end() && stages->is_object()) {
    for (const auto& [name, seconds] : stages->items()) {
      if (seconds.is_number()) p.stages.emplace_back(name, seconds.get<double>());
    }
  }
  const double bin = number(line, "length_bin");
  const auto lengths = line.find("lengths");
  if (bin >= 1 && bin < 1e9 && lengths != line.end() && lengths->is_array()) {
    p.length_bin = static_cast<int64_t>(bin);
    for (const json& count : *lengths) {
      p.lengths.push_back(count.is_number() ? count.get<double>() : 0.0);
    }
  }
  return p;
}

std::string text(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The objects of a list.
template <class Each>
void for_each_in(const json& object, const char* key, Each each) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return;
  for (const json& item : *list) {
    if (item.is_object()) each(item);
  }
}

std::vector<AucOfSome> slices(const json& task, const char* key) {
  std::vector<AucOfSome> result;
  for_each_in(task, key, [&](const json& item) {
    result.push_back({text(item, "of"), number(item, "labels"), number(item, "auc"),
                      number(item, "auc_low"), number(item, "auc_high")});
  });
  return result;
}

TaskMetrics task_metrics(const std::string& name, const json& values) {
  TaskMetrics task{name, number(values, "auc"), number(values, "normalized_entropy"),
                   number(values, "accuracy"), number(values, "calibration")};
  const auto one_class = values.find("one_class");
  task.one_class = one_class != values.end() && *one_class == true;
  if (task.one_class) task.auc = task.normalized_entropy = kAbsent;
  task.auc_low = number(values, "auc_low");
  task.auc_high = number(values, "auc_high");
  if (const auto ranked = values.find("per_user"); ranked != values.end() && ranked->is_object()) {
    task.users = number(*ranked, "users");
    task.user_auc = number(*ranked, "auc");
    task.ndcg = number(*ranked, "ndcg");
    task.recall = number(*ranked, "recall");
    task.k = number(*ranked, "k");
  }
  task.calibration_error = number(values, "calibration_error");
  for_each_in(values, "calibration_curve", [&](const json& bin) {
    task.calibration_curve.push_back(
        {number(bin, "labels"), number(bin, "prediction"), number(bin, "share")});
  });
  task.by_history = slices(values, "by_history");
  task.by_item = slices(values, "by_item");
  return task;
}

/// A run writes the mean over all tasks, as the reference has it. One whose labels are all alike
/// has an entropy of some 10^11 there: the mean of the others takes its place.
void leave_out_single_classes(EvalPoint& p) {
  if (std::ranges::none_of(p.tasks, &TaskMetrics::one_class)) return;
  double sum = 0, count = 0;
  for (const TaskMetrics& task : p.tasks) {
    if (std::isnan(task.normalized_entropy)) continue;
    sum += task.normalized_entropy;
    ++count;
  }
  p.normalized_entropy = count > 0 ? sum / count : kAbsent;
}

EvalPoint eval_point(const json& line) {
  EvalPoint p;
  p.at = place_of(line);
  p.auc = number(line, "auc");
  p.loss = number(line, "loss");
  p.normalized_entropy = number(line, "normalized_entropy");
  p.oracle_auc = number(line, "oracle_auc");
  p.auc_low = number(line, "auc_low");
  p.auc_high = number(line, "auc_high");
  p.baseline_auc = number(line, "baseline_auc");
  p.baseline = text(line, "baseline");
  p.above_by = number(line, "above_baseline_by");
  p.above_error = number(line, "above_baseline_error");
  if (const auto rules = line.find("baselines"); rules != line.end() && rules->is_object()) {
    for (const auto& [name, auc] : rules->items()) {
      if (auc.is_number()) p.baselines.emplace_back(name, auc.get<double>());
    }
  }
  p.device = text(line, "device");
  p.model = text(line, "model");
  if (const auto tasks = line.find("tasks"); tasks != line.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (values.is_object()) p.tasks.push_back(task_metrics(name, values));
    }
  }
  leave_out_single_classes(p);
  if (p.one_class()) p.auc = kAbsent;  // 0.5 in the file
  return p;
}

LayersPoint layers_point(const json& line) {
  LayersPoint p;
  p.at = place_of(line);
  p.device_s = number(line, "device_s");
  p.imbalance = number(line, "imbalance");
  if (const auto parts = line.find("parts"); parts != line.end() && parts->is_object()) {
    for (const auto& [name, part] : parts->items()) {
      if (part.is_object()) p.parts.push_back({name, number(part, "s"), number(part, "tflops")});
    }
  }
  return p;
}

/// A resumed run does some steps again: forgets what was beyond them.
void rewind(Run& run, int64_t step) {
  std::erase_if(run.train, [step](const TrainPoint& p) { return p.at.step > step; });
  std::erase_if(run.eval, [step](const EvalPoint& p) { return p.at.step > step; });
  std::erase_if(run.layers, [step](const LayersPoint& p) { return p.at.step > step; });
}

template <class Point>
void put(std::vector<Point>& points, Point point) {
  if (!points.empty() && points.back().at.step == point.at.step) points.pop_back();
  points.push_back(std::move(point));
}

void add_line(const json& line, Run& run, int64_t& last_step) {
  const auto event = line.find("event");
  if (event == line.end() || !event->is_string()) return;
  const auto& kind = event->get_ref<const std::string&>();
  if (kind == "end") {
    const auto status = line.find("status");
    run.status = status != line.end() && status->is_string() ? status->get<std::string>() : "ended";
    return;
  }
  if (kind == "layers") {  // of a step before those of the lines around it
    return put(run.layers, layers_point(line));
  }
  if (kind != "train" && kind != "eval") return;
  run.status = "unfinished";
  const int64_t step = place_of(line).step;
  if (step < last_step) rewind(run, step);
  last_step = step;
  if (kind == "train") put(run.train, train_point(line));
  if (kind == "eval") put(run.eval, eval_point(line));
}

}  // namespace

void read_metrics(const std::string& text, const std::string& place, Run& run) {
  Warnings warnings(run);
  int64_t number = 0, last_step = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool whole = end < text.size();
    const std::string_view raw(text.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (raw.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const json line = json::parse(raw, nullptr, /*allow_exceptions=*/false);
    if (line.is_object()) {
      add_line(line, run, last_step);
    } else if (whole) {
      warnings.add(place, number, "not a JSON object");
    }
  }
}

}  // namespace segue::report::detail
