#include <memory>
#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_line.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "report/mlperf/eval_grid.h"
#include "report/mlperf/mllog_lint.h"
#include "report/mlperf/rcp.h"

namespace segue::cli {
namespace {

/// A verdict is no error of the program, but scripts must see it: exit code 1.
[[noreturn]] void fail_verdict(const std::string& message) {
  flush_output();
  throw std::runtime_error(message);
}

struct LintArguments {
  std::string path;
  report::LintOptions options;
  bool json = false;
};

/// A log may satisfy the rules as proposed and not as released; a submitter should know.
void note_released_rules(const report::LintReport& result, const LintArguments& arguments) {
  if (result.verdict != report::LintVerdict::kPassed ||
      arguments.options.ruleset != report::kDefaultRuleset) {
    return;
  }
  report::LintOptions released = arguments.options;
  released.ruleset = report::kReleasedRuleset;
  const report::LintReport stricter = report::lint_mllog(arguments.path, released);
  if (stricter.findings.empty()) return;
  std::string keys;
  for (const report::LintFinding& f : stricter.findings) {
    keys += (keys.empty() ? "" : ", ") + f.key;
  }
  print(fmt::format("note: the rules of the released package 4.1.68 (--ruleset {}) want more: {}\n",
                    report::kReleasedRuleset, keys));
}

void lint(const LintArguments& arguments) {
  const report::LintReport result = report::lint_mllog(arguments.path, arguments.options);
  print(arguments.json ? lint_json(result) + "\n" : lint_text(result));
  if (!arguments.json) note_released_rules(result, arguments);
  if (result.verdict == report::LintVerdict::kFailed) {
    fail_verdict(fmt::format("{}: {} finding(s); MLPerf would not accept this log", arguments.path,
                             result.findings.size()));
  }
  if (result.verdict == report::LintVerdict::kNotJudged) {
    flush_output();
    fail(ErrorCode::kUnsupported,
         fmt::format(
             "{}: this program has no rules for the benchmark `{}`; use MLPerf's own checker",
             arguments.path, result.benchmark));
  }
}

void add_lint(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand("lint", "Judge a log by MLPerf's compliance rules.");
  const auto arguments = std::make_shared<LintArguments>();
  command->add_option("file", arguments->path, "the log")->required();
  command
      ->add_option("--ruleset", arguments->options.ruleset,
                   "6.1.0 (as proposed), 6.1.0-release (package 4.1.68) or 6.0.0")
      ->capture_default_str();
  command->add_flag("--werror", arguments->options.werror, "warnings count as findings");
  command->add_flag("--quiet", arguments->options.quiet, "do not show warnings");
  command->add_flag("--json", arguments->json, "the same as one JSON object");
  command->callback([arguments] { lint(*arguments); });
}

struct RcpArguments {
  std::string folder, reference;
  bool all_records = false, write_scaling = false, json = false;
};

std::string rcp_json(const report::RcpSubmission& submission, const report::RcpVerdict& verdict) {
  nlohmann::ordered_json line = {{"verdict", verdict.passed ? "passed" : "failed"},
                                 {"reason", verdict.reason},
                                 {"benchmark", submission.benchmark},
                                 {"batch_size", submission.batch},
                                 {"runs", submission.runs.size()},
                                 {"mean", verdict.mean}};
  if (verdict.record) {
    line["reference_mean"] = verdict.record->mean;
    line["smallest_acceptable_mean"] = verdict.record->smallest;
  }
  line["scaling_factor"] = verdict.scaling_factor;
  return base::json_line(line);
}

std::string rcp_text(const report::RcpSubmission& submission, const report::RcpVerdict& verdict) {
  const int decimals = submission.benchmark == "dlrm_dcnv2" ? 3 : 0;
  FactSheet sheet;
  FactTable& runs = sheet.table("runs");
  for (const auto& run : submission.runs) {
    runs.rows.push_back(
        {run.file, {run.converged_at ? Fact::real(*run.converged_at, decimals) : "not converged"}});
  }
  FactTable& table = sheet.table("convergence");
  table.rows.push_back({"benchmark", {submission.benchmark}});
  table.rows.push_back({"batch size", {submission.batch}});
  table.rows.push_back({"mean of the runs", {Fact::real(verdict.mean, decimals)}});
  if (verdict.record) {
    table.rows.push_back({"reference mean", {Fact::real(verdict.record->mean, decimals)}});
    table.rows.push_back({"smallest acceptable", {Fact::real(verdict.record->smallest, decimals)}});
  }
  table.rows.push_back({"scaling factor", {Fact::real(verdict.scaling_factor, 4)}});
  std::string text = sheet.text();
  if (submission.runs.size() != report::kRcpSubmissionRuns) {
    text += fmt::format("\nwarning: {} runs; a submission has exactly {}", submission.runs.size(),
                        report::kRcpSubmissionRuns);
  }
  return text + fmt::format("\n{}: {}\n", verdict.passed ? "passed" : "failed", verdict.reason);
}

void rcp(const RcpArguments& arguments) {
  const report::RcpSubmission submission = report::read_submission(arguments.folder);
  report::RcpReference reference = arguments.reference.empty()
                                       ? report::builtin_rcp(submission.benchmark)
                                       : report::read_rcp(arguments.reference);
  if (reference.benchmark != submission.benchmark) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{} is about {}, the runs are about {}", arguments.reference,
                     reference.benchmark, submission.benchmark));
  }
  if (!arguments.all_records) reference = pruned(std::move(reference));
  const report::RcpVerdict verdict = judge_convergence(submission, reference);
  if (arguments.write_scaling) report::write_scaling(arguments.folder, verdict);
  print(arguments.json ? rcp_json(submission, verdict) + "\n" : rcp_text(submission, verdict));
  if (!verdict.passed) fail_verdict(fmt::format("{}: {}", arguments.folder, verdict.reason));
}

void add_rcp(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand(
      "rcp", "Compare when the runs of a submission converged with the reference.");
  const auto arguments = std::make_shared<RcpArguments>();
  command->add_option("folder", arguments->folder, "folder with result_*.txt")->required();
  command->add_option("--reference", arguments->reference,
                      "MLPerf's JSON of convergence points; default: dlrmv4 of 6.1.0");
  command->add_flag("--all-records", arguments->all_records,
                    "use records, too, that MLPerf drops as too slow");
  command->add_flag("--write-scaling", arguments->write_scaling,
                    "write scaling.json into the folder if needed; remove an old one if not");
  command->add_flag("--json", arguments->json, "the result as one JSON object");
  command->callback([arguments] { rcp(*arguments); });
}

struct GridArguments {
  int64_t batch = 0;
  bool released = false, json = false;
};

void grid(const GridArguments& arguments) {
  const report::EvalGrid grid = report::dlrmv4_eval_grid(
      arguments.batch,
      arguments.released ? report::EvalRounding::kUp : report::EvalRounding::kNearest);
  FactSheet sheet;
  FactTable& table = sheet.table("grid");
  table.rows.push_back({"batch size", {arguments.batch}});
  table.rows.push_back({"interval steps", {grid.interval_steps}});
  table.rows.push_back({"interval samples", {grid.interval_samples}});
  table.rows.push_back({"first eval step", {grid.first_eval_samples / arguments.batch}});
  table.rows.push_back({"first eval samples", {grid.first_eval_samples}});
  print(arguments.json ? sheet.json() : sheet.text());
}

void add_grid(CLI::App& parent) {
  CLI::App* command =
      parent.add_subcommand("grid", "When MLPerf wants DLRMv4 evaluated, by batch size.");
  const auto arguments = std::make_shared<GridArguments>();
  command->add_option("--batch", arguments->batch, "samples of all ranks in a step")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  command->add_flag("--release", arguments->released, "by the rules as released (rounded up)");
  command->add_flag("--json", arguments->json, "the same as one JSON object");
  command->callback([arguments] { grid(*arguments); });
}

}  // namespace

void add_mllog(CLI::App& app) {
  CLI::App* command = app.add_subcommand("mllog", "MLPerf logs: lint, rcp, grid.");
  command->require_subcommand(1);
  add_lint(*command);
  add_rcp(*command);
  add_grid(*command);
}

}  // namespace segue::cli
