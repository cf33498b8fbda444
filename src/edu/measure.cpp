#include "edu/measure.h"

#include <algorithm>
#include <cmath>

namespace segue::edu {

void StepTimer::add(const SpanSeconds& spans) { steps_.push_back(spans); }

void StepTimer::train(MicroDlrm& model, const BatchPool& pool, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    model.step(pool[next_++], {});
    add(model.spans());
  }
}

void StepTimer::predict(MicroDlrm& model, const BatchPool& pool, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    model.predict(pool[next_++], {});
    add(model.spans());
  }
}

StepTimes StepTimer::times() const {
  StepTimes t;
  t.steps = std::ssize(steps_);
  if (steps_.empty()) return t;
  std::vector<double> values;
  for (size_t span = 0; span < kSpanCount; ++span) {
    values.clear();
    for (const SpanSeconds& s : steps_) values.push_back(s[span]);
    std::ranges::sort(values);
    const auto at = [&](double share) {
      return values[static_cast<size_t>(
          std::lround(share * static_cast<double>(values.size() - 1)))];
    };
    t.median[span] = at(0.5);
    t.p10[span] = at(0.1);
    t.p90[span] = at(0.9);
  }
  for (const SpanSeconds& s : steps_) t.wall_seconds += step_seconds(s);
  return t;
}

}  // namespace segue::edu
