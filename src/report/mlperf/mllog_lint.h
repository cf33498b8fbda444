#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/mlperf/mllog_reader.h"
#include "report/mlperf/mllog_rules.h"

namespace segue::report {

struct LintOptions {
  std::string ruleset = std::string(kDefaultRuleset);
  bool werror = false;  // warnings count as findings
  bool quiet = false;   // warnings are not reported; no effect together with werror
};

struct LintFinding {
  std::string key;                  // empty: of the file as a whole
  std::optional<MllogPlace> place;  // the last offending event; nullopt: something is missing
  std::string text;
};

enum class LintVerdict {
  kPassed,
  kFailed,
  kNotJudged,  // nothing wrong, but this program has no rules for the benchmark
};
std::string_view to_string(LintVerdict verdict);

struct LintReport {
  std::string ruleset;
  std::string division, benchmark;  // empty: not found
  int64_t events = 0;
  LintVerdict verdict = LintVerdict::kPassed;
  std::vector<LintFinding> findings;  // one per key at most, as MLPerf's checker does
  std::vector<LintFinding> warnings;
};

/// Judges a log as MLPerf's compliance checker does. Where that one stops with an exception, the
/// log fails with a sentence.
LintReport lint_mllog(const MllogFile& file, const LintOptions& options);
LintReport lint_mllog(const std::string& path, const LintOptions& options);

std::string lint_text(const LintReport& report);  // for people, with the verdict in the last line
std::string lint_json(const LintReport& report);  // one object on one line

}  // namespace segue::report
