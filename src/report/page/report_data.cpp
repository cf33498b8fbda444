#include "report/page/report_data.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

namespace segue::report {
namespace {

using json = nlohmann::ordered_json;

json to_json(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

void append(json& x, const RunPoint& at) {
  x["step"].push_back(at.step);
  x["samples"].push_back(to_json(at.samples));
  x["time"].push_back(to_json(at.wall_s));
}

json empty_places() {
  return {{"step", json::array()}, {"samples", json::array()}, {"time", json::array()}};
}

template <class Point>
struct Column {
  const char* name;
  double Point::*value;
};

constexpr Column<TrainPoint> kTrainColumns[] = {
    {"loss", &TrainPoint::loss},
    {"auc", &TrainPoint::auc},
    {"lr", &TrainPoint::lr},
    {"sparse_lr", &TrainPoint::sparse_lr},
    {"grad_norm", &TrainPoint::grad_norm},
    {"loss_z", &TrainPoint::loss_z},
    {"grad_norm_z", &TrainPoint::grad_norm_z},
    {"samples_per_s", &TrainPoint::samples_per_s},
    {"tokens_per_s", &TrainPoint::tokens_per_s},
    {"mfu_jagged", &TrainPoint::mfu_jagged},
    {"mfu_padded", &TrainPoint::mfu_padded},
    {"loader_wait", &TrainPoint::loader_wait},
};
constexpr Column<EvalPoint> kEvalColumns[] = {
    {"auc", &EvalPoint::auc},
    {"loss", &EvalPoint::loss},
    {"normalized_entropy", &EvalPoint::normalized_entropy},
    {"auc_low", &EvalPoint::auc_low},
    {"auc_high", &EvalPoint::auc_high},
    {"oracle_auc", &EvalPoint::oracle_auc},
    {"baseline_auc", &EvalPoint::baseline_auc},
};

/// {"x": places, "series": {name: {"i": rows of x, "y": values}}}. Each series keeps the points
/// that matter to it; "x" has those that any series kept, and "i" is left out where that is all of
/// them.
template <class Point, size_t kCount>
json points_json(const std::vector<Point>& points, const Column<Point> (&columns)[kCount]) {
  std::vector<std::vector<size_t>> kept(kCount);
  std::map<size_t, size_t> row_of;  // index of a point -> row of x
  for (size_t c = 0; c < kCount; ++c) {
    std::vector<size_t> present;
    std::vector<double> values;
    for (size_t i = 0; i < points.size(); ++i) {
      const double value = points[i].*columns[c].value;
      if (std::isnan(value)) continue;
      present.push_back(i);
      values.push_back(value);
    }
    for (const size_t k : keep_points(values)) {
      kept[c].push_back(present[k]);
      row_of[present[k]] = 0;
    }
  }
  json x = empty_places();
  size_t row = 0;
  for (auto& [point, index] : row_of) {
    append(x, points[point].at);
    index = row++;
  }
  json series = json::object();
  for (size_t c = 0; c < kCount; ++c) {
    if (kept[c].empty()) continue;
    json one = json::object();
    if (kept[c].size() < row_of.size()) {
      for (const size_t i : kept[c]) one["i"].push_back(row_of[i]);
    }
    for (const size_t i : kept[c]) one["y"].push_back(to_json(points[i].*columns[c].value));
    series[columns[c].name] = std::move(one);
  }
  return {{"x", std::move(x)}, {"series", std::move(series)}};
}

json stages_json(const StageColumns& columns) {
  json x = empty_places();
  for (const RunPoint& at : columns.at) append(x, at);
  return {{"names", columns.names},
          {"x", std::move(x)},
          {"steps", columns.steps},
          {"seconds", columns.seconds}};
}

/// The calibration curves of the last evaluation: [{"task", "labels", "prediction", "share"}].
json calibration_json(const Run& run) {
  json curves = json::array();
  if (run.eval.empty()) return curves;
  for (const TaskMetrics& task : run.eval.back().tasks) {
    if (task.calibration_curve.empty()) continue;
    json labels, prediction, share;
    for (const CalibrationPoint& p : task.calibration_curve) {
      labels.push_back(to_json(p.labels));
      prediction.push_back(to_json(p.prediction));
      share.push_back(to_json(p.share));
    }
    curves.push_back({{"task", task.name},
                      {"error", to_json(task.calibration_error)},
                      {"labels", std::move(labels)},
                      {"prediction", std::move(prediction)},
                      {"share", std::move(share)}});
  }
  return curves;
}

}  // namespace

std::vector<size_t> keep_points(std::span<const double> values, size_t limit) {
  const size_t n = values.size();
  std::vector<size_t> kept;
  if (n <= limit) {
    for (size_t i = 0; i < n; ++i) kept.push_back(i);
    return kept;
  }
  const size_t stretches = (limit - 2) / 2;
  kept.push_back(0);
  for (size_t s = 0; s < stretches; ++s) {
    const size_t begin = 1 + s * (n - 2) / stretches, end = 1 + (s + 1) * (n - 2) / stretches;
    size_t low = end, high = end;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(values[i])) continue;
      if (low == end || values[i] < values[low]) low = i;
      if (high == end || values[i] > values[high]) high = i;
    }
    if (low == end) {
      kept.push_back(begin);
    } else {
      kept.push_back(std::min(low, high));
      if (low != high) kept.push_back(std::max(low, high));
    }
  }
  kept.push_back(n - 1);
  return kept;
}

std::vector<Difference> differences(const std::vector<const Settings*>& settings) {
  std::map<std::string, std::vector<std::string>> values;
  for (size_t run = 0; run < settings.size(); ++run) {
    for (const auto& [key, value] : *settings[run]) {
      auto& row = values[key];
      row.resize(settings.size());
      row[run] = value;
    }
  }
  std::vector<Difference> result;
  for (auto& [key, row] : values) {
    if (std::adjacent_find(row.begin(), row.end(), std::not_equal_to<>()) != row.end()) {
      result.push_back({key, std::move(row)});
    }
  }
  return result;
}

StageColumns stage_columns(const std::vector<TrainPoint>& train, size_t limit) {
  StageColumns result;
  std::map<std::string, size_t> index;
  std::vector<size_t> lines;  // those that have stages
  for (size_t i = 0; i < train.size(); ++i) {
    if (train[i].stages.empty()) continue;
    lines.push_back(i);
    for (const auto& [name, seconds] : train[i].stages) {
      if (index.emplace(name, result.names.size()).second) result.names.push_back(name);
    }
  }
  const size_t columns = std::min(lines.size(), limit);
  result.at.resize(columns);
  result.steps.assign(columns, 0);
  result.seconds.assign(result.names.size(), std::vector<double>(columns, 0));
  for (size_t k = 0; k < lines.size(); ++k) {
    const size_t column = k * columns / lines.size();
    const TrainPoint& p = train[lines[k]];
    result.at[column] = p.at;
    result.steps[column] +=
        static_cast<double>(p.at.step - (lines[k] > 0 ? train[lines[k] - 1].at.step : 0));
    for (const auto& [name, seconds] : p.stages) result.seconds[index[name]][column] += seconds;
  }
  return result;
}

Lengths total_lengths(const std::vector<TrainPoint>& train) {
  Lengths total;
  for (const TrainPoint& p : train) {
    if (p.length_bin == 0) continue;
    if (p.length_bin != total.bin) total = {p.length_bin, {}};  // a resumed run may bin anew
    total.counts.resize(std::max(total.counts.size(), p.lengths.size()), 0.0);
    for (size_t i = 0; i < p.lengths.size(); ++i) total.counts[i] += p.lengths[i];
  }
  while (!total.counts.empty() && total.counts.back() == 0) total.counts.pop_back();
  return total;
}

std::string page_data(const std::vector<Run>& runs) {
  json data = {{"runs", json::array()}};
  for (const Run& run : runs) {
    const Lengths lengths = total_lengths(run.train);
    data["runs"].push_back({{"name", run.name},
                            {"baseline", run.eval.empty() ? "" : run.eval.back().baseline},
                            {"calibration", calibration_json(run)},
                            {"train", points_json(run.train, kTrainColumns)},
                            {"eval", points_json(run.eval, kEvalColumns)},
                            {"stages", stages_json(stage_columns(run.train))},
                            {"lengths", {{"bin", lengths.bin}, {"counts", lengths.counts}}}});
  }
  return inside_script(data.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string inside_script(const std::string& text) {
  // In JSON "<" stands only inside strings; escaped, no text can end the script element.
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace segue::report
