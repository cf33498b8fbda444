#include "edu/measure.h"

#include <algorithm>
#include <cmath>

namespace segue::edu {

std::vector<SpanSeconds> run_steps(MicroDlrm& model, const BatchPool& pool, int64_t first,
                                   int64_t steps, Passes passes) {
  std::vector<SpanSeconds> out;
  for (int64_t i = first; i < first + steps; ++i) {
    const Batch& batch = pool[static_cast<size_t>(i)];
    if (passes == Passes::kWhole) {
      model.step(batch, {});
    } else {
      model.predict(batch, {});
    }
    out.push_back(model.spans());
  }
  return out;
}

StepTimes times_of(std::span<const SpanSeconds> steps) {
  StepTimes t;
  t.steps = std::ssize(steps);
  if (steps.empty()) return t;
  std::vector<double> values;
  for (size_t span = 0; span < kSpanCount; ++span) {
    values.clear();
    for (const SpanSeconds& s : steps) values.push_back(s[span]);
    std::ranges::sort(values);
    const auto at = [&](double share) {
      return values[static_cast<size_t>(
          std::lround(share * static_cast<double>(values.size() - 1)))];
    };
    t.median[span] = at(0.5);
    t.p10[span] = at(0.1);
    t.p90[span] = at(0.9);
  }
  for (const SpanSeconds& s : steps) t.wall_seconds += step_seconds(s);
  return t;
}

}  // namespace segue::edu
