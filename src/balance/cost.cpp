#include "balance/cost.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::balance {
namespace {

double squared_error(std::span<const Timing> timings, double token, double pair) {
  double sum = 0;
  for (const Timing& t : timings) {
    const double error = token * t.tokens + pair * t.pairs - t.seconds;
    sum += error * error;
  }
  return sum;
}

}  // namespace

int64_t reference_cost(int64_t tokens, int64_t heads, int64_t head_dim) {
  const int64_t width = heads * head_dim;
  return 10 * tokens * width * width + 4 * heads * width * tokens * tokens;
}

SampleCost sample_cost(const SampleShape& shape, int64_t events, int64_t targets,
                       const CostWeights& weights) {
  const int64_t tokens = shape.contextual_tokens + events * shape.tokens_per_event + targets;
  const int64_t pairs = shape.pairs ? shape.pairs(tokens, targets) : 0;
  return {std::llround(weights.token_ps * static_cast<double>(tokens) +
                       weights.pair_ps * static_cast<double>(pairs)),
          tokens};
}

std::vector<SampleCost> sample_costs(const Batch& batch, const SampleShape& shape, CostKind kind,
                                     const CostWeights& weights) {
  const std::span<const int64_t> history = batch.offsets(batch.column(shape.history));
  const std::span<const int64_t> targets = shape.candidate.empty()
                                               ? std::span<const int64_t>()
                                               : batch.offsets(batch.column(shape.candidate));
  std::vector<SampleCost> costs(static_cast<size_t>(batch.num_samples()));
  for (size_t b = 0; b < costs.size(); ++b) {
    const int64_t events = history[b + 1] - history[b];
    costs[b] =
        sample_cost(shape, events, targets.empty() ? 0 : targets[b + 1] - targets[b], weights);
    if (kind == CostKind::kReference) {
      costs[b].cost = reference_cost(events * shape.tokens_per_event, shape.heads, shape.head_dim);
    }
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
