#include "report/run_reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "base/error.h"
#include "base/file.h"
#include "base/toml_depth.h"

namespace segue::report {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWarningsPerFile = 10;

std::string scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* boolean = node.as_boolean()) return boolean->get() ? "true" : "false";
  std::ostringstream out;
  node.visit([&out](const auto& value) { out << value; });
  return out.str();
}

void flatten(const toml::node& node, const std::string& key, Settings& out) {
  if (const toml::table* table = node.as_table()) {
    for (const auto& [name, value] : *table) {
      flatten(value, key.empty() ? std::string(name.str()) : fmt::format("{}.{}", key, name.str()),
              out);
    }
    return;
  }
  const toml::array* array = node.as_array();
  if (array == nullptr) {
    out.emplace_back(key, scalar_text(node));
    return;
  }
  const bool nested = std::any_of(array->begin(), array->end(), [](const toml::node& item) {
    return item.is_table() || item.is_array();
  });
  if (nested) {
    for (size_t i = 0; i < array->size(); ++i) {
      flatten(*array->get(i), fmt::format("{}.{}", key, i), out);
    }
    return;
  }
  std::vector<std::string> items;
  for (const toml::node& item : *array) items.push_back(scalar_text(item));
  out.emplace_back(key, fmt::format("[{}]", fmt::join(items, ", ")));
}

void read_config(const std::string& path, Run& run) {
  if (!base::exists(path)) return;
  run.config_text = base::read_file(path);
  try {
    run.config = detail::flatten_toml(run.config_text);
  } catch (const Error& error) {
    run.warnings.push_back(
        fmt::format("{}: {}; it is left out of the comparison", path, error.what()));
  }
}

Run read_folder(const std::string& path) {
  Run run;
  run.path = path;
  const std::string metrics = path + "/metrics.jsonl", log = path + "/mlperf.log";
  const bool has_metrics = base::exists(metrics);
  if (!has_metrics && !base::exists(log)) {
    fail(ErrorCode::kNotFound,
         fmt::format("{}: there is no metrics.jsonl in this folder; give a run folder (what `segue "
                     "train --run DIR` writes) or an MLPerf log",
                     path));
  }
  read_config(path + "/config.toml", run);
  if (has_metrics) detail::read_metrics(base::read_file(metrics), metrics, run);
  if (base::exists(log)) {
    detail::read_mlperf_log(base::read_file(log), log, /*points=*/!has_metrics, run);
  }
  return run;
}

Run read_log(const std::string& path) {
  Run run;
  run.path = path;
  if (detail::read_mlperf_log(base::read_file(path), path, /*points=*/true, run) == 0) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: has no :::MLLOG lines; give a run folder or an MLPerf log", path));
  }
  return run;
}

/// The parts of a path from its end: "runs/a/" and "runs/a/metrics.jsonl" are both called "a".
std::vector<std::string> parts_from_end(const std::string& path) {
  std::error_code ignored;
  fs::path full = fs::absolute(path, ignored).lexically_normal();
  if (!full.has_filename() || full.filename() == "metrics.jsonl") full = full.parent_path();
  std::vector<std::string> parts;
  for (; full.has_filename(); full = full.parent_path()) parts.push_back(full.filename().string());
  if (parts.empty()) parts.push_back(path);
  return parts;
}

std::string name_of(const std::vector<std::string>& parts, size_t depth) {
  std::string name = parts[0];
  for (size_t i = 1; i < std::min(depth, parts.size()); ++i) name = parts[i] + "/" + name;
  return name;
}

/// Runs of the same name get more of their path, and a number when even the paths are equal.
void name_runs(std::vector<Run>& runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::vector<std::string> own = parts_from_end(runs[i].path);
    size_t depth = 1, twins = 0;
    for (size_t k = 0; k < runs.size(); ++k) {
      const std::vector<std::string> other = parts_from_end(runs[k].path);
      if (k != i && other == own) twins += k < i ? 1 : 0;
      if (k == i || other == own) continue;
      while (depth <= own.size() && name_of(own, depth) == name_of(other, depth)) ++depth;
    }
    runs[i].name = name_of(own, depth);
    if (twins > 0) runs[i].name += fmt::format(" ({})", twins + 1);
  }
}

}  // namespace

namespace detail {

Settings flatten_toml(const std::string& text) {
  Settings settings;
  if (const int64_t line = base::line_of_deep_key(text); line > 0) {
    fail(ErrorCode::kConfig,
         fmt::format("line {}: a key of more than {} parts", line, base::kMostKeyParts));
  }
  try {
    flatten(toml::parse(text), "", settings);
  } catch (const toml::parse_error& error) {
    fail(ErrorCode::kConfig,
         fmt::format("line {}: {}", error.source().begin.line, error.description()));
  }
  std::sort(settings.begin(), settings.end());
  return settings;
}

void Warnings::add(const std::string& place, int64_t line, const std::string& what) {
  place_ = place;
  if (++count_ <= kWarningsPerFile) {
    run_.warnings.push_back(fmt::format("{}:{}: {}; the line is skipped", place, line, what));
  }
}

Warnings::~Warnings() {
  if (count_ <= kWarningsPerFile) return;
  run_.warnings.push_back(
      fmt::format("{}: {} more lines are skipped", place_, count_ - kWarningsPerFile));
}

}  // namespace detail

bool EvalPoint::one_class() const {
  return std::ranges::any_of(tasks, &TaskMetrics::one_class) &&
         std::ranges::all_of(tasks, [](const TaskMetrics& task) { return std::isnan(task.auc); });
}

std::string Run::setting(const std::string& key) const {
  const auto found = std::ranges::find(config, key, &Settings::value_type::first);
  return found == config.end() ? std::string() : found->second;
}

RunPoint Run::last() const {
  RunPoint last;
  if (!train.empty()) last = train.back().at;
  if (!eval.empty() && (train.empty() || eval.back().at.step >= last.step)) last = eval.back().at;
  return last;
}

Run read_run(const std::string& path) {
  if (!base::exists(path)) {
    fail(ErrorCode::kNotFound,
         fmt::format("{}: no such run folder or log; give what `segue train --run DIR` wrote",
                     path));
  }
  Run run;
  if (fs::is_directory(path)) {
    run = read_folder(path);
  } else if (fs::path(path).filename() == "metrics.jsonl") {
    const std::string folder = fs::path(path).parent_path().string();
    run = read_folder(folder.empty() ? "." : folder);
    run.path = path;
  } else {
    run = read_log(path);
  }
  run.name = name_of(parts_from_end(path), 1);
  return run;
}

std::vector<Run> read_runs(const std::vector<std::string>& paths) {
  std::vector<Run> runs;
  runs.reserve(paths.size());
  for (const std::string& path : paths) runs.push_back(read_run(path));
  name_runs(runs);
  bool any = false;
  for (Run& run : runs) {
    any = any || !run.empty();
    if (run.empty()) run.warnings.push_back(run.path + ": has no train or eval line yet");
  }
  if (!any) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: no train or eval line to show yet; try again after the first one{}",
                     fmt::join(paths, ", "),
                     !runs.empty() && runs[0].warnings.size() > 1
                         ? fmt::format(" ({})", runs[0].warnings[0])
                         : ""));
  }
  return runs;
}

}  // namespace segue::report
