#pragma once

// For tests only.

#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/test_util.h"
#include "report/mlperf/eval_grid.h"
#include "report/mlperf/mllog_lint.h"
#include "report/mlperf/mllog_run.h"

namespace segue::report {

inline MllogSubmission test_submission(const std::string& division = "closed") {
  MllogSubmission s;
  s.org = "Segue";
  s.platform = "one GPU";
  s.division = division;
  return s;
}

inline MllogHyperparameters test_hyperparameters(int64_t batch) {
  MllogHyperparameters h;
  h.global_batch_size = batch;
  h.seed = 17;
  h.train_samples = kDlrmv4TrainSamples;
  h.eval_samples = kDlrmv4EvalSamples;
  h.max_sequence_length = 4096;
  h.opt_base_learning_rate = 1e-6 * static_cast<double>(batch) / 8192;
  h.opt_sparse_base_learning_rate = h.opt_base_learning_rate;
  h.micro_batch_size = 64;
  h.config_filename = "configs/yambda-5b.toml";
  return h;
}

/// The calls of a trainer whose AUC reaches the target at evaluation number `evals`, from 1.
inline std::vector<std::function<void(MllogRun&)>> training_calls(const EvalGrid& grid,
                                                                  int64_t evals) {
  std::vector<std::function<void(MllogRun&)>> calls;
  for (int64_t e = 1; e <= evals; ++e) {
    const int64_t to = grid.first_eval_samples + (e - 1) * grid.interval_samples;
    const int64_t from = e == 1 ? 0 : to - grid.interval_samples;
    const double auc = e == evals ? 0.7501 : 0.74;
    calls.push_back([=](MllogRun& run) { run.block_start(from); });
    calls.push_back([=](MllogRun& run) { run.train_loss((from + to) / 2, 0.5, 1e-6); });
    calls.push_back([=](MllogRun& run) { run.block_stop(to); });
    calls.push_back([=](MllogRun& run) { run.eval_start(to); });
    calls.push_back([=](MllogRun& run) { run.eval_done(to, auc); });
  }
  const int64_t end = grid.first_eval_samples + (evals - 1) * grid.interval_samples;
  calls.push_back([=](MllogRun& run) { run.stop(MllogStatus::kSuccess, end); });
  return calls;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

inline std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

/// A whole log without a fault.
inline std::vector<std::string> good_log(int64_t batch, int64_t evals = 3,
                                         const std::string& division = "closed",
                                         EvalRounding rounding = EvalRounding::kUp) {
  const std::string path = base::temp_path("good.log");
  MllogRun run(path, MllogWriter::Mode::kTruncate);
  run.init_start();
  run.open(test_submission(division), test_hyperparameters(batch));
  for (const auto& call : training_calls(dlrmv4_eval_grid(batch, rounding), evals)) call(run);
  return lines_of(base::read_file(path));
}

inline LintReport lint_text_of(const std::string& text,
                               const LintOptions& options = {.ruleset = "6.1.0-release"}) {
  MllogFile file;
  for (const MllogLine& line : split_mllog(text)) parse_mllog_line(line, file);
  return lint_mllog(file, options);
}

inline LintReport lint_lines(const std::vector<std::string>& lines, bool werror = true) {
  return lint_text_of(text_of(lines), {.ruleset = "6.1.0-release", .werror = werror});
}

/// Index of the first line with this key.
inline size_t line_of(const std::vector<std::string>& lines, const std::string& key) {
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find("\"key\": \"" + key + "\"") != std::string::npos) return i;
  }
  ADD_FAILURE() << "no line of " << key;
  return 0;
}

inline std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  if (at == std::string::npos) {
    ADD_FAILURE() << "no <" << what << "> in <" << text << ">";
    return text;
  }
  return text.replace(at, what.size(), by);
}

}  // namespace segue::report
