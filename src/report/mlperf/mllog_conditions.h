#pragma once

#include <optional>
#include <string>

#include "report/mlperf/mllog_reader.h"
#include "report/mlperf/mllog_rules.h"

namespace segue::report {

/// What the events before have told; every list of rules starts from an empty one.
struct LintState {
  bool init_started = false, init_stopped = false, run_started = false;
  double first_init_ms = 9e99;
  double init_minutes = 0;  // allowed; none while the division is not known
  std::optional<EvalGrid> grid;
  std::optional<double> batch;
  std::optional<MllogValue> learning_rate;
};

/// What keeps the condition from holding, as "`x` must be ..."; nullopt: it holds. `broken` says
/// that the value is of a kind that cannot be compared at all.
struct Objection {
  std::string text;
  bool broken = false;
};
std::optional<Objection> objection(const Condition& condition, const MllogEvent& event,
                                   const LintState& state);

}  // namespace segue::report
