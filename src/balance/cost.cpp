#include "balance/cost.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::balance {
namespace {

/// first + (first + 1) + ... + (last - 1)
int64_t sum_of_range(int64_t first, int64_t last) {
  return last <= first ? 0 : (first + last - 1) * (last - first) / 2;
}

/// Pairs that the window takes away from the rows after the contextual prefix.
int64_t pairs_outside_window(const SampleShape& shape, int64_t contextual, int64_t history,
                             int64_t targets) {
  if (shape.window <= 0) return 0;
  const int64_t end = contextual + history;
  // The contextual prefix counts as one place.
  const int64_t shift = contextual > 0 ? contextual - 1 : 0;
  // Row i sees the columns i - window ... i - 1 and itself.
  const int64_t first = std::max(contextual, shift + shape.window + 1);
  const int64_t last = shape.min_full > 0 ? end - shape.min_full : end;
  int64_t lost = sum_of_range(first - shape.window, last - shape.window);
  if (shape.min_full <= 0 && end - shift > shape.window) lost += targets * (end - shape.window);
  return lost;
}

double squared_error(std::span<const Timing> timings, double token, double pair) {
  double sum = 0;
  for (const Timing& t : timings) {
    const double error = token * t.tokens + pair * t.pairs - t.seconds;
    sum += error * error;
  }
  return sum;
}

}  // namespace

int64_t attention_pairs(const SampleShape& shape, int64_t contextual, int64_t history,
                        int64_t targets) {
  const int64_t c = shape.contextual_mask ? contextual : 0;
  const int64_t h = history + contextual - c;
  const int64_t group = std::max<int64_t>(1, shape.target_group);
  const int64_t rest = targets % group;
  const int64_t among_targets = targets / group * (group * (group + 1) / 2) + rest * (rest + 1) / 2;
  return c * (c + h) + c * h + h * (h + 1) / 2 + targets * (c + h) + among_targets -
         pairs_outside_window(shape, c, h, targets);
}

int64_t reference_cost(int64_t tokens, int64_t heads, int64_t head_dim) {
  const int64_t width = heads * head_dim;
  return 10 * tokens * width * width + 4 * heads * width * tokens * tokens;
}

std::vector<SampleCost> sample_costs(const Batch& batch, const SampleShape& shape, CostKind kind,
                                     const CostWeights& weights) {
  const std::span<const int64_t> history = batch.offsets(batch.column(shape.history));
  const std::span<const int64_t> targets = shape.candidate.empty()
                                               ? std::span<const int64_t>()
                                               : batch.offsets(batch.column(shape.candidate));
  std::vector<SampleCost> costs(static_cast<size_t>(batch.num_samples()));
  for (size_t b = 0; b < costs.size(); ++b) {
    const int64_t h = (history[b + 1] - history[b]) * shape.tokens_per_event;
    const int64_t t = targets.empty() ? 0 : targets[b + 1] - targets[b];
    costs[b].tokens = shape.contextual_tokens + h + t;
    if (kind == CostKind::kReference) {
      costs[b].cost = reference_cost(h, shape.heads, shape.head_dim);
      continue;
    }
    const auto pairs = static_cast<double>(attention_pairs(shape, shape.contextual_tokens, h, t));
    costs[b].cost = std::llround(weights.token_ps * static_cast<double>(costs[b].tokens) +
                                 weights.pair_ps * pairs);
  }
  return costs;
}

CostWeights calibrate(std::span<const Timing> timings) {
  double tt = 0, tp = 0, pp = 0, ts = 0, ps = 0;
  for (const Timing& t : timings) {
    tt += t.tokens * t.tokens;
    tp += t.tokens * t.pairs;
    pp += t.pairs * t.pairs;
    ts += t.tokens * t.seconds;
    ps += t.pairs * t.seconds;
  }
  if (!(ts > 0 || ps > 0)) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("none of {} timings has work that took time; costs cannot be calibrated",
                     timings.size()));
  }
  // With two unknowns the best non-negative answer is the free one or lies on an axis.
  std::array<std::array<double, 2>, 3> candidates{};
  candidates[0] = {tt > 0 ? std::max(0.0, ts / tt) : 0, 0};
  candidates[1] = {0, pp > 0 ? std::max(0.0, ps / pp) : 0};
  candidates[2] = candidates[0];
  const double determinant = tt * pp - tp * tp;
  if (determinant > 1e-12 * tt * pp) {
    const double token = (ts * pp - ps * tp) / determinant;
    const double pair = (ps * tt - ts * tp) / determinant;
    if (token >= 0 && pair >= 0) candidates[2] = {token, pair};
  }
  const auto& best = *std::ranges::min_element(
      candidates, {}, [&](const auto& c) { return squared_error(timings, c[0], c[1]); });
  constexpr double kPicoseconds = 1e12;
  return {best[0] * kPicoseconds, best[1] * kPicoseconds};
}

}  // namespace segue::balance
