#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "report/run_reader.h"

namespace segue::report {

/// Points that a chart can still show; a longer series is thinned out.
inline constexpr size_t kMaxPoints = 2000;
/// Columns of a stacked chart; more are added up.
inline constexpr size_t kMaxColumns = 240;

/// Indices to keep of a series, at most `limit` (>= 4) or all if there are fewer: the first, the
/// last and of every stretch between them the lowest and the highest value, so that no peak is
/// lost. A stretch without a finite value keeps one point, which shows as a gap.
std::vector<size_t> keep_points(std::span<const double> values, size_t limit = kMaxPoints);

/// Settings that are not the same in all runs: one value per run, "" where a run has none.
struct Difference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<Difference> differences(const std::vector<const Settings*>& settings);

/// Seconds of each stage, per column of at most `limit`; lines that share a column are added up.
struct StageColumns {
  std::vector<std::string> names;            // in the order of their first line
  std::vector<RunPoint> at;                  // end of each column
  std::vector<double> steps;                 // optimizer steps in each column
  std::vector<std::vector<double>> seconds;  // [name][column]
};
StageColumns stage_columns(const std::vector<TrainPoint>& train, size_t limit = kMaxColumns);

/// Samples by number of tokens over the whole run.
struct Lengths {
  int64_t bin = 0;  // 0: the run did not say
  std::vector<double> counts;
};
Lengths total_lengths(const std::vector<TrainPoint>& train);

/// What the page's script draws, as JSON that is safe inside <script>.
std::string page_data(const std::vector<Run>& runs);

/// The same JSON, safe in a script element of a page.
std::string inside_script(const std::string& json);

}  // namespace segue::report
