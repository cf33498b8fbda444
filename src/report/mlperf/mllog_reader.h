#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/mlperf/mllog.h"

namespace segue::report {

inline constexpr std::string_view kMllogToken = ":::MLLOG ";

/// MLPerf's convergence checker takes a line for such an event if the word stands anywhere in it.
inline constexpr std::array<std::string_view, 5> kMllogWords = {
    "global_batch_size", "submission_benchmark", "eval_accuracy", "eval_error", "run_stop"};

/// Where an event stands: MLPerf's tools count lines with a token, from 0; editors count all,
/// from 1.
struct MllogPlace {
  int64_t number = 0;
  int64_t line = 0;
};

struct MllogLine {
  MllogPlace place;
  std::string json;  // what follows the last token, in UTF-8
};

struct MllogEvent {
  MllogPlace place;
  double time_ms = 0;
  std::string key;  // empty: something that is no text, which no rule looks at
  MllogValue value;
  std::optional<MllogMetadata> metadata;  // nullopt: something that is no object

  const MllogValue* find(std::string_view name) const;  // in the metadata; nullptr: not there
};

struct MllogProblem {
  MllogPlace place;
  std::string text;
};

struct MllogFile {
  std::vector<MllogEvent> events;      // in the order of the file
  std::vector<MllogProblem> problems;  // lines that are no events
};

/// The lines of a latin-1 text that have the token; other lines and all before the last token of a
/// line are left out.
std::vector<MllogLine> split_mllog(std::string_view text);

/// Appends to `file.events` or to `file.problems`.
void parse_mllog_line(const MllogLine& line, MllogFile& file);

MllogFile read_mllog(const std::string& path);

/// A line that says all it has to, though its line end may be missing.
bool is_whole_mllog_line(std::string_view line);

// Python's notions, on which the rules are built: true is 1 and 2 is 2.0.
std::optional<double> as_number(const MllogValue& value);
bool same_value(const MllogValue& a, const MllogValue& b);

}  // namespace segue::report
