#include "report/trace_plan.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace segue::report {

std::optional<int64_t> TracePlan::window_of(int64_t step) const {
  if (active < 1) return std::nullopt;
  if (repeat != 0) {
    const int64_t cycle = wait + warm_up + active, number = (step - 1) / cycle;
    const int64_t first = 1 + number * cycle + wait + warm_up;
    if (step < 1 || step < first || (repeat > 0 && number >= repeat)) return std::nullopt;
    return first;
  }
  std::vector<int64_t> sorted = steps;
  std::ranges::sort(sorted);
  std::optional<int64_t> first;
  int64_t end = 0;
  for (const int64_t s : sorted) {
    if (s > step) break;
    if (!first || s >= end) first = s;
    end = s + active;
  }
  return first && step < end ? first : std::nullopt;
}

bool TracePlan::ends_after(int64_t step) const {
  const std::optional<int64_t> window = window_of(step);
  return window && window_of(step + 1) != window;
}

bool TracePlan::rehearses(int64_t step) const {
  if (window_of(step)) return false;
  for (int64_t ahead = 1; ahead <= warm_up; ++ahead) {
    if (starts_at(step + ahead)) return true;
  }
  return false;
}

int64_t TracePlan::last_step() const {
  if (!any()) return 0;
  if (repeat < 0) return std::numeric_limits<int64_t>::max();
  if (repeat > 0) return repeat * (wait + warm_up + active);
  return *std::ranges::max_element(steps) + active - 1;
}

std::string trace_file_name(int64_t first_step, int rank, int ranks) {
  if (ranks == 1) return fmt::format("trace_step{}.json", first_step);
  return fmt::format("trace_step{}_rank{}.json", first_step, rank);
}

}  // namespace segue::report
